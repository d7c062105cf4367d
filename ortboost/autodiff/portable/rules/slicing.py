r"""The gradient of Slice: the slice padded with zeros."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import INT64, Size, computed, joined, length, padded
from ortboost.graph.query import constant, known_shape

__all__: list[str] = []


def _axes(b: Backward, index: int, count: int) -> list[int]:
    given = b.array(index)
    if given is None:
        return list(range(count))
    return [int(axis) % b.rank() for axis in given.reshape(-1)]


@refuses("Slice")
def _slice_refused(node: ir.Node) -> str | None:
    inputs = list(node.inputs) + [None] * 5
    for index, name in ((3, "axes"), (4, "steps")):
        value = inputs[index]
        if value is not None and constant(value) is None:
            return f"its {name} are not constant; export with fixed {name}"
    if (unknown := unknown_rank(node, 0)) is not None:
        return unknown
    if inputs[1] is not None and inputs[3] is None and inputs[4] is None:
        shape = known_shape(inputs[1])
        if shape is None or not isinstance(shape[0], int):
            return "the number of its starts is unknown; export with fixed axes"
    return None


@register("Slice")
def slice_(b: Backward) -> Gradients:
    """`y = x[start:end:step]`: `g` written into zeros at the same indices.

    For a negative step, `g` is reversed to ascending indices. For a step `s > 1`, `s - 1` zeros are
    inserted between the elements. Then one Pad adds the zeros before and after.
    """
    x, g = b.input(0), b.gradient()
    steps = b.array(4)
    shape = known_shape(b.input(1))
    count = int(shape[0]) if shape and isinstance(shape[0], int) else 0
    given = b.array(3) if b.array(3) is not None else steps
    axes = _axes(b, 3, count if given is None else int(np.size(given)))
    starts = b.array(1)
    margins: dict[int, tuple[Size, Size]] = {}
    # Each axis on its own: g becomes the part of x from its lowest to its highest taken index.
    for k, axis in enumerate(axes):
        step = 1 if steps is None else int(steps.reshape(-1)[k])
        taken = _size_of(b, g, axis)
        size = length(b, x, axis)
        start = _start(b, k, size, step, starts)
        if step < 0:
            last, behind = b.ints(-1), b.ints(-(2**62))  # an end of -1 would be the last element
            g = b.op("Slice", g, last, behind, b.ints(axis), b.ints(-1), shape=g.shape)
            # the lowest index: start + (taken - 1) * step
            start = computed(
                b, "Add", start, computed(b, "Mul", computed(b, "Sub", taken, 1), step)
            )
        if abs(step) > 1:
            g = _insert_zeros(b, g, axis, abs(step))
        begin = start
        if not isinstance(start, int):
            begin = b.op("Max", b.op("Min", start, joined(b, [size])), b.ints(0))
        behind_it = computed(b, "Sub", computed(b, "Sub", size, begin), _size_of(b, g, axis))
        margins[axis] = (begin, behind_it)
    if all(isinstance(n, int) and n == 0 for pair in margins.values() for n in pair):
        return [g]
    return [padded(b, g, margins, b.rank(), x.shape)]


def _size_of(b: Backward, value: ir.Value, axis: int) -> Size:
    # A gradient may have no shape of its own, but it has that of the output.
    if value is b.gradient() and known_shape(value) is None:
        return length(b, b.output(), axis)
    return length(b, value, axis)


def _start(b: Backward, k: int, size: Size, step: int, starts: np.ndarray | None) -> Size:
    """The `k`-th start, non-negative and clipped to its axis."""
    if starts is not None:
        start = int(starts.reshape(-1)[k])
        if isinstance(size, int):
            start = start + size if start < 0 else start
            # Backwards, the largest start is the last element; forwards, one past it.
            return min(max(start, 0), size if step > 0 else max(size - 1, 0))
        if start >= 0 and step > 0:
            return b.op("Min", b.ints(start), size) if start else 0
        value = b.ints(start)
    else:
        dtype = b.input(1).dtype or INT64  # int32 is allowed
        value = b.op("Gather", b.input(1), b.ints(k), axis=0, dtype=dtype, shape=[1])
        value = b.cast(value, INT64)
    whole = joined(b, [size])
    negative = b.op("Less", value, b.ints(0))
    counted = b.op("Where", negative, b.op("Add", value, whole), value)
    top = whole if step > 0 else b.op("Sub", whole, b.ints(1))
    return b.op("Max", b.op("Min", counted, top), b.ints(0), shape=[1])


def _insert_zeros(b: Backward, g: ir.Value, axis: int, step: int) -> ir.Value:
    """`step - 1` zeros between elements: `[n] -> [n, step] -> [(n - 1) step + 1]`."""
    rank = b.rank()
    shape = known_shape(g) or (None,) * rank
    apart = b.op("Unsqueeze", g, b.ints(axis + 1))
    apart = padded(b, apart, {axis + 1: (0, step - 1)}, rank + 1)
    sizes = [_size_of(b, g, other) for other in range(rank)]
    sizes[axis] = computed(b, "Mul", sizes[axis], step)
    flat = b.op("Reshape", apart, joined(b, sizes), allowzero=1)
    size = shape[axis]
    after = [*shape[:axis], None, *shape[axis + 1 :]]
    if isinstance(size, int):
        after[axis] = max(size * step - step + 1, 0)
    end = b.ints(1 - step)
    return b.op("Slice", flat, b.ints(0), end, b.ints(axis), shape=after)
