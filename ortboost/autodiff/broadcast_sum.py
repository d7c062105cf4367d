"""The shape that values broadcast to, and the sum that reverses the broadcast in a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import known_shape

__all__ = ["Shape", "broadcast_shape", "sum_broadcast_axes"]

Shape = tuple[int | str | None, ...]
"""A possibly symbolic shape: ints, names, and ``None`` for unknown dimensions."""


def broadcast_shape(values: Sequence[ir.Value]) -> Shape | None:
    """The shape that values broadcast to; ``None`` if uncertain. Equal names mean equal lengths."""
    shapes = [known_shape(value) for value in values]
    found: list[int | str | None] = []
    for shape in shapes:
        if shape is None:
            return None
        while len(found) < len(shape):
            found.insert(0, 1)
        for offset, dim in enumerate(reversed(shape), 1):  # aligned at the last axis
            known = found[-offset]
            if dim == 1 or (dim == known and dim is not None):
                continue
            if known != 1 or dim is None:  # either may be 1 at run time
                return None
            found[-offset] = dim
    return tuple(found)


def sum_broadcast_axes(
    builder: Builder, gradient: ir.Value, want: ir.Value, shape: ir.Shape | None = None
) -> ir.Value:
    """Sum a gradient over the axes along which an operand was broadcast.

    Args:
        builder: Receives the nodes.
        gradient: Gradient with the shape of the broadcast result.
        want: Shape of the operand at run time, an int64 vector.
        shape: The static shape of the operand, if known.

    Returns:
        The gradient in the shape of the operand: summed over the axes that the operand lacks, and
        over those whose lengths differ.
    """
    have = builder.op("Shape", gradient)
    padded = _in_rank_of(builder, gradient, want, shape, have)
    same = builder.op("Equal", have, padded)
    # Always sum a new first axis: ReduceSum over no axes is wrong if a length is 0.
    new = builder.const([True], ir.DataType.BOOL)
    differs = builder.op("Concat", new, builder.op("Not", same), axis=0)
    found = builder.op("NonZero", differs)  # [1, k]
    axes = builder.op("Reshape", found, builder.ints(-1))
    stacked = builder.op("Unsqueeze", gradient, builder.ints(0))
    reduced = builder.op("ReduceSum", stacked, axes, keepdims=1)
    return builder.op("Reshape", reduced, want, shape=shape, allowzero=1)


def _in_rank_of(
    builder: Builder, gradient: ir.Value, want: ir.Value, shape: ir.Shape | None, have: ir.Value
) -> ir.Value:
    """`[1, 1, ..., want]`, padded to the rank of the gradient.

    Known ranks are not computed at run time. On a GPU, the result of Expand is on the device, but
    ReduceSum needs its axes on the host: the copy would synchronize the host for every sum.
    """
    known = known_shape(gradient)
    if known is None or shape is None:
        ranks = [builder.op("Shape", vector) for vector in (have, want)]
        ones = builder.op("Expand", builder.ints(1), builder.op("Sub", *ranks))
    elif len(known) == len(shape):
        return want
    else:
        ones = builder.ints(*[1] * (len(known) - len(shape)))
    return builder.op("Concat", ones, want, axis=0)
