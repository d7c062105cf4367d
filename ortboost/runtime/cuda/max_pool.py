r"""MaxPool as a maximum of shifted images, for opsets without a CUDA kernel.

onnxruntime-gpu 1.31.1 has none for opset 22.

    v_t[o] = x[o s - p + t d],  -inf outside          one strided Slice per position t of the window
    y = max_t v_t,  of equal ones the first           Greater and Where, in the order of the window

The second output is the index of the maximum in the flattened tensor, `base[o] + t d` for the
winning `t`. Positions outside must not win against a value of -inf; the first position inside is
known for each `o`.

The computation is in float32, which represents every 16-bit value: the results are bitwise equal to
those of the operator (except for NaN, which the kernels ignore).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import fixed_lengths, is_standard, known_shape

__all__ = ["shifted_maxima"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_MOST = 64  # positions of a window


@dataclass(frozen=True)
class _Windows:
    """The windows of a MaxPool; each list has a number for each spatial axis."""

    channels: int
    image: list[int]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begins: list[int]  # padding
    ends: list[int]

    @property
    def counts(self) -> list[int]:
        """The lengths of the output."""
        spans = [(k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True)]
        sizes = zip(self.image, self.begins, self.ends, spans, self.strides, strict=True)
        return [(n + begin + end - span - 1) // s + 1 for n, begin, end, span, s in sizes]

    @property
    def starts(self) -> list[NDArray[np.int64]]:
        """Where the windows start along each axis; negative in the padding."""
        places = zip(self.counts, self.strides, self.begins, strict=True)
        return [np.arange(count) * stride - begin for count, stride, begin in places]

    @property
    def distances(self) -> list[int]:
        """From one position to the next along each axis, in the flattened image."""
        return [math.prod(self.image[axis + 1 :]) for axis in range(len(self.image))]


def _windows(node: ir.Node) -> _Windows | None:
    """The windows of a node; ``None`` for those that :func:`shifted_maxima` does not support."""
    shape = known_shape(node.inputs[0]) if is_standard(node, "MaxPool") else None
    attributes = node.attributes
    kernel = [int(k) for k in attributes.get_ints("kernel_shape") or []]
    plain = not attributes.get_int("ceil_mode") and not attributes.get_int("storage_order")
    if shape is None or (attributes.get_string("auto_pad") or "NOTSET") != "NOTSET" or not plain:
        return None
    lengths = fixed_lengths(shape[1:])
    if lengths is None or not 0 < math.prod(kernel) <= _MOST:
        return None
    rank = len(kernel)
    pads = list(attributes.get_ints("pads") or [0] * 2 * rank)
    return _Windows(
        channels=lengths[0],
        image=list(lengths[1:]),
        kernel=kernel,
        strides=list(attributes.get_ints("strides") or [1] * rank),
        dilations=list(attributes.get_ints("dilations") or [1] * rank),
        begins=pads[:rank],
        ends=pads[rank:],
    )


def shifted_maxima(node: ir.Node, b: Builder) -> bool:
    """Replace a MaxPool by a maximum of shifted images; True if possible.

    It is impossible for unknown lengths, windows of more than 64 positions, ``auto_pad``,
    ``ceil_mode``, and column-major indices. The builder must have no nodes pending.
    """
    x, windows = node.inputs[0], _windows(node)
    if x is None or x.dtype is None or windows is None:
        return False
    wide = b.cast(x, _FLOAT)
    if any(windows.begins) or any(windows.ends):
        margins = b.ints(0, 0, *windows.begins, 0, 0, *windows.ends)
        wide = b.op("Pad", wide, margins, b.const(-np.inf))
    axes, steps = b.ints(*range(2, len(windows.image) + 2)), b.ints(*windows.strides)
    with_places = len(node.outputs) > 1 and bool(node.outputs[1].name)
    # The maximum over the positions of the window, and which of them it is.
    best: ir.Value | None = None
    place: ir.Value | None = None
    inside_before = np.zeros(windows.counts, bool)
    for position in product(*(range(k) for k in windows.kernel)):
        offset = [t * d for t, d in zip(position, windows.dilations, strict=True)]
        moved = zip(offset, windows.counts, windows.strides, strict=True)
        ends = [o + (count - 1) * stride + 1 for o, count, stride in moved]
        value = b.op("Slice", wide, b.ints(*offset), b.ints(*ends), axes, steps)
        here = b.const(int(np.dot(offset, windows.distances)), _INT64)
        inside = _inside(windows.starts, offset, windows.image)
        if best is None:
            best, place = value, here
        else:
            wins = b.op("Greater", value, best, dtype=_BOOL)
            # The padding is -inf, too: the first position inside wins even against an equal value.
            first = inside & ~inside_before
            if first.any():
                wins = b.op("Or", wins, b.const(first[None, None], _BOOL), dtype=_BOOL)
            best = b.op("Where", wins, value, best, dtype=_FLOAT)
            if with_places:
                place = b.op("Where", wins, here, place, dtype=_INT64)
        inside_before |= inside
    assert best is not None
    results = [b.cast(best, x.dtype)]
    if with_places:
        results.append(_places(b, x, place, windows))
    replace_node(node, results, b)
    return True


def _inside(
    starts: list[NDArray[np.int64]], offset: list[int], image: list[int]
) -> NDArray[np.bool_]:
    """For each output, whether a position of the window lies within the image."""
    found = np.ones((), bool)
    for start, shift, length in zip(starts, offset, image, strict=True):
        found = np.logical_and.outer(found, (start + shift >= 0) & (start + shift < length))
    return found


def _places(b: Builder, x: ir.Value, place: ir.Value | None, windows: _Windows) -> ir.Value:
    """The index in the flattened tensor: plane + corner of the window + position in it."""
    channels, rank = windows.channels, len(windows.image)
    # The index of the first position of each window within its image.
    corner = np.zeros((), np.int64)
    for axis, (start, distance) in enumerate(zip(windows.starts, windows.distances, strict=True)):
        shape = [-1 if other == axis else 1 for other in range(rank)]
        corner = corner + start.reshape(shape) * distance
    samples = b.op("Squeeze", b.op("Shape", x, start=0, end=1, dtype=_INT64), b.ints(0))
    planes = b.op(
        "Range",
        b.const(0, _INT64),
        b.op("Mul", samples, b.const(channels, _INT64)),
        b.const(1, _INT64),
    )
    first = b.op("Mul", planes, b.const(math.prod(windows.image), _INT64))
    shaped = b.op("Reshape", first, b.ints(-1, channels, *[1] * rank))
    grid = b.op("Add", shaped, b.const(corner[None, None], _INT64))
    return b.op("Add", grid, place)
