r"""Gradients of operators that draw random numbers."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.graph.query import constant, input_at, known_shape

__all__: list[str] = []


@register("Dropout")
def dropout(b: Backward) -> Gradients:
    """`y = x m / (1 - r)` with the mask `m` of the forward pass: `g / (1 - r)` where `m`, else 0.

    In inference mode, or with a ratio of 0, it is the identity. If the mode is computed in the
    graph, then in inference mode the mask is all true and the ratio counts as 0.
    """
    g, shape, mode, ratio = b.gradient(), b.output().shape, b.optional(2), b.optional(1)
    fixed_mode = False if mode is None else b.array(2)
    fixed_ratio = 0.5 if ratio is None else b.array(1)
    off = fixed_mode is not None and not bool(fixed_mode)
    if off or (fixed_ratio is not None and float(fixed_ratio) == 0.0):
        return [g]
    mask = b.extra_output(1, ir.DataType.BOOL, b.output().shape)
    if fixed_ratio is not None:
        scale = b.const(1.0 / (1.0 - float(fixed_ratio)))
    else:
        assert ratio is not None  # else fixed_ratio is 0.5
        same = b.cast(ratio)
        scale = b.op("Reciprocal", b.op("Sub", b.const(1.0), same, shape=ratio.shape))
    if fixed_mode is None:
        scale = b.op("Where", mode, scale, b.const(1.0))
    return [b.masked(mask, b.op("Mul", g, scale, shape=shape))]


@refuses("Dropout")
def _form(node: ir.Node) -> str | None:
    ratio = input_at(node, 1)
    if ratio is not None and known_shape(ratio) not in (None, ()):
        return "its ratio is not a scalar"
    known = None if ratio is None else constant(ratio)
    if known is not None and not 0.0 <= float(known) < 1.0:
        return f"its ratio {float(known):g} is not in [0, 1)"
    return None
