"""Lengths and shapes at run time, shared by rules and rewrites; constant if known."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortboost.graph.query import SHORT_FLOATS, known_shape, static_shape
from ortboost.graph.rewriting import Site

__all__ = [
    "INT64",
    "Size",
    "computed",
    "dims",
    "joined",
    "length",
    "padded",
    "product",
    "reshape_like",
    "wider",
    "zeros",
]

INT64 = ir.DataType.INT64
Size = int | ir.Value
"""A length: an int, or an int64 vector of one element."""
_ARITHMETIC = {
    "Add": operator.add,
    "Div": operator.floordiv,
    "Mul": operator.mul,
    "Sub": operator.sub,
}


def length(b: Site, value: ir.Value, axis: int) -> Size:
    """Length of a non-negative axis; an int if it is known."""
    shape = known_shape(value)
    dim = None if shape is None else shape[axis]
    return dim if isinstance(dim, int) else b.shape_of(value, axis, axis + 1)


def dims(b: Site, value: ir.Value) -> ir.Value:
    """The shape as an int64 vector, constant if known."""
    shape = static_shape(value)
    return b.shape_of(value) if shape is None else b.ints(*shape)


def joined(b: Site, parts: Sequence[Size]) -> ir.Value:
    """Concatenate lengths to a vector; a constant if all are ints."""
    pieces: list[ir.Value] = []
    numbers: list[int] = []  # a run of ints, which becomes one constant
    for part in parts:
        if isinstance(part, int):
            numbers.append(part)
            continue
        if numbers:
            pieces.append(b.ints(*numbers))
            numbers = []
        pieces.append(part)
    if numbers or not pieces:
        pieces.append(b.ints(*numbers))
    return b.builder.combined("Concat", pieces, axis=0)


def computed(b: Site, op_type: str, left: Size, right: Size) -> Size:
    """The sum, difference, product or quotient of two lengths."""
    if isinstance(left, int) and isinstance(right, int):
        return int(_ARITHMETIC[op_type](left, right))
    # Adding 0 or multiplying by 1 needs no node.
    if isinstance(right, int) and right == (0 if op_type in ("Add", "Sub") else 1):
        return left
    if isinstance(left, int) and left == {"Add": 0, "Mul": 1}.get(op_type):
        return right
    return b.op(op_type, joined(b, [left]), joined(b, [right]))


def product(b: Site, parts: Sequence[Size]) -> Size:
    """The product of lengths."""
    result: Size = 1
    for part in parts:
        if not isinstance(part, int):
            result = computed(b, "Mul", result, part)
    number = math.prod(part for part in parts if isinstance(part, int))
    return computed(b, "Mul", result, number)


def reshape_like(b: Site, gradient: ir.Value, value: ir.Value) -> ir.Value:
    """Reshape a gradient to the shape of a value.

    A single unknown dimension becomes -1 if no other dimension is zero: then the value itself is
    not needed and its memory can be freed.
    """
    shape = known_shape(value)
    if shape is not None:
        numbers = [dim if isinstance(dim, int) else -1 for dim in shape]
        # Beside a 0, -1 stands for no definite length.
        if numbers.count(-1) == 0 or (numbers.count(-1) == 1 and 0 not in numbers):
            target = b.ints(*numbers)
            return b.op("Reshape", gradient, target, shape=shape, allowzero=int(0 in numbers))
    return b.op("Reshape", gradient, b.shape_of(value), shape=shape, allowzero=1)


def padded(
    b: Site,
    value: ir.Value,
    margins: Mapping[int, tuple[Size, Size]],
    rank: int,
    shape: ir.Shape | None = None,
) -> ir.Value:
    """Pad with zeros before and after along some axes.

    Pads are given for all axes, without an axes input: when onnxruntime (1.19 to 1.31) moves a
    Transpose through a Pad, it permutes the pads as if they were for all axes.
    """
    each = [margins.get(axis, (0, 0)) for axis in range(rank)]
    pads = joined(b, [*(before for before, _ in each), *(after for _, after in each)])
    return b.op("Pad", value, pads, shape=shape)


def wider(dtype: ir.DataType) -> ir.DataType:
    """The type to divide by a count in: in 16 bits, counts overflow and their inverses are 0."""
    return ir.DataType.FLOAT if dtype in SHORT_FLOATS else dtype


def zeros(b: Site, value: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
    """Zeros with the shape of a value."""
    return b.filled(0, dims(b, value), dtype or value.dtype, value.shape)
