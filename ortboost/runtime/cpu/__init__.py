"""Faster forms of a step graph on the CPU; see :mod:`ortboost.runtime.peepholes`."""
