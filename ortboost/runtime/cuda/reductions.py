r"""Sums and means over the batch and the positions of an image, in two steps.

The gradient of a bias and the statistics of a batch normalization reduce `[N, C, H, W]` over
`N, H, W`. The CUDA provider has fast kernels for axes at the start or the end of a shape; any other
set of axes goes to cuDNN's generic reduction, which reaches 3 % of the memory bandwidth:

    sum_{n, h, w} x[n, c, h, w] = sum_n (sum_{h, w} x[n, c, h, w])

All such reductions of a step of ResNet-50, 128 images in float32 on an H200: 98 ms before, 8 after.

Sums of 16-bit values are computed in float32: the sum of one image must not be rounded.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import SHORT_FLOATS, known_shape
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["reductions_in_two_steps"]


def reductions_in_two_steps(model: ir.Model) -> bool:
    """Reduce the last axes first, then the others; True if there was such a reduction."""
    rules = dict.fromkeys(("ReduceSum", "ReduceMean"), _in_two_steps)
    return rewrite_nodes(model, "two_steps", rules).modified


def _in_two_steps(site: Site) -> list[ir.Value | None] | None:
    axes, x = site.array(1), site.input(0)
    shape = known_shape(x)
    if axes is None or shape is None or x.dtype not in (ir.DataType.FLOAT, *SHORT_FLOATS):
        return None
    rank, reduced = len(shape), sorted({int(axis) % len(shape) for axis in axes.tolist()})
    first = rank  # of the last block of axes
    while first - 1 in reduced:
        first -= 1
    others = [axis for axis in reduced if axis < first]
    # The second step reduces the leading axes of what is left.
    if first == rank or not others or others != list(range(len(others))):
        return None
    op_type, kept = site.node.op_type, site.integer("keepdims", 1)
    wide = site.builder.cast(x, ir.DataType.FLOAT) if x.dtype in SHORT_FLOATS else x
    part = site.op(op_type, wide, site.ints(*range(first, rank)), keepdims=kept)
    whole = site.op(op_type, part, site.ints(*others), keepdims=kept)
    if x.dtype in SHORT_FLOATS:
        whole = site.builder.cast(whole, x.dtype)
    whole.shape = site.node.outputs[0].shape
    return [whole]
