"""Gradients of graphs: one interface, several engines.

Higher layers call :func:`ortboost.autodiff.engine.differentiate` for ``<name>_grad`` tensors and do
not depend on the engine that computes them.
"""
