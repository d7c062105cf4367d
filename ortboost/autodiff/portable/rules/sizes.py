"""Shapes and indices at run time, shared by the rules; constants where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Site

__all__ = [
    "INT64",
    "Size",
    "dims",
    "joined",
    "length",
    "padded",
    "product",
    "reshape_like",
    "zeros",
]

INT64 = ir.DataType.INT64
Size = int | ir.Value
"""A length: a number, or an int64 vector of one element."""


def length(b: Site, value: ir.Value, axis: int) -> Size:
    """Length of an axis, counted from the front; a number if it is known."""
    shape = known_shape(value)
    dim = None if shape is None else shape[axis]
    return dim if isinstance(dim, int) else b.shape_of(value, axis, axis + 1)


def dims(b: Site, value: ir.Value) -> ir.Value:
    """The shape as an int64 vector: a constant if it is known."""
    shape = known_shape(value)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return b.shape_of(value)
    return b.ints(*(int(dim) for dim in shape if isinstance(dim, int)))


def joined(b: Site, parts: Sequence[Size]) -> ir.Value:
    """A vector of lengths; one constant where all are numbers."""
    pieces: list[ir.Value] = []
    numbers: list[int] = []
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
    return pieces[0] if len(pieces) == 1 else b.op("Concat", *pieces, axis=0, dtype=INT64)


def product(b: Site, parts: Sequence[Size]) -> Size:
    """The product of lengths."""
    number, result = 1, None
    for part in parts:
        if isinstance(part, int):
            number *= part
        else:
            result = part if result is None else b.op("Mul", result, part, dtype=INT64)
    if result is None:
        return number
    return result if number == 1 else b.op("Mul", result, b.ints(number), dtype=INT64)


def reshape_like(b: Site, gradient: ir.Value, value: ir.Value) -> ir.Value:
    """The elements of a gradient in the shape of a value.

    One dimension that is not known, among others that are and are not zero, becomes -1: then the
    value itself is not needed and its memory is free.
    """
    shape = known_shape(value)
    if shape is not None:
        numbers = [dim if isinstance(dim, int) else -1 for dim in shape]
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
    """Zeros before and behind along some axes.

    Pads for all axes, not an axes input: onnxruntime (1.19 to 1.31), where it moves a Transpose
    through a
    Pad, permutes the pads as if they were those of all axes.
    """
    each = [margins.get(axis, (0, 0)) for axis in range(rank)]
    pads = joined(b, [*(before for before, _ in each), *(after for _, after in each)])
    return b.op("Pad", value, pads, shape=shape)


def zeros(b: Backward, value: ir.Value, dtype: ir.DataType | None = None) -> ir.Value:
    """Zeros in the shape of a value."""
    kind = dtype or value.dtype or b.dtype
    fill = ir.tensor([0.0], dtype=kind)
    return b.op("ConstantOfShape", dims(b, value), dtype=kind, shape=value.shape, value=fill)
