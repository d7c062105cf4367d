"""Gradients of graphs: one seam, several engines.

Everything above asks :func:`ortboost.autodiff.engine.differentiate` for ``<name>_grad`` tensors and
never knows which engine made them.
"""
