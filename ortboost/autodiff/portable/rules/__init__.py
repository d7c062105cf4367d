"""Gradient rules by family of operators; the docstring of each rule states its formula."""
