"""Compute the 0/1 mask of a Relu in one pass of a branch-free kernel.

``ReluGrad`` (and ``Where``) branch on every element, and the processor mispredicts the signs. A
comparison and a cast take two passes, 81 (onnxruntime 1.19) and 41 (1.31) microseconds for
32x24x16x16 elements; a steep HardSigmoid, `min(max(a y, 0), 1)` with the largest finite `a`, takes
27 and 22. There are two differences. For `y` below 3e-39, where `a y < 1`, the mask is between 0
and 1, but that is at the kink. And a non-finite incoming gradient, or `y`, gives NaN instead of 0,
so that such a step always counts as an overflow. Other comparisons, such as those of a model that
marks missing data by NaN, are left alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.graph.patterns import Op, match
from ortboost.graph.query import constant
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["steep_masks"]

_STEEPEST = float(np.finfo(np.float32).max)
_FLOAT = ir.DataType.FLOAT


def steep_masks(model: ir.Model) -> bool:
    """Make ``ReluGrad`` and ``Cast(Greater(Relu(x), 0))`` a steep HardSigmoid; True if one was."""
    masks = rewrite_nodes(model, "relu", {"Cast": _mask})
    gradients = rewrite_nodes(model, "relu", {"ReluGrad": _relu_gradient}, domain="com.microsoft")
    return masks.modified or gradients.modified


def _steep(site: Site, value: ir.Value) -> ir.Value:
    return site.op("HardSigmoid", value, shape=value.shape, alpha=_STEEPEST, beta=0.0)


def _relu_gradient(site: Site) -> list[ir.Value | None]:
    """`dX = dY (Y > 0)`."""
    incoming, value, dtype = site.input(0), site.input(1), site.dtype
    if dtype == _FLOAT:
        mask = _steep(site, value)
    else:
        on = site.op("Greater", value, site.const(0.0), dtype=ir.DataType.BOOL, shape=value.shape)
        mask = site.cast(on)
    return [site.op("Mul", incoming, mask, dtype=dtype, shape=value.shape)]


def _mask(site: Site) -> list[ir.Value | None] | None:
    """`1` where `y > 0`, else `0`."""
    found = match(site.input(0), Op("Greater", Op("Relu", "x", name="y"), "zero"))
    if found is None or site.integer("to", 0) != int(_FLOAT):
        return None
    zero = constant(found["zero"])
    if zero is None or zero.dtype != np.float32 or zero.ndim or zero.any():
        return None
    return [_steep(site, found["y"])]
