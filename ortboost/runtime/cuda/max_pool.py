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
from itertools import product

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import is_standard, known_shape

__all__ = ["shifted_maxima"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_MOST = 64  # positions of a window


def shifted_maxima(node: ir.Node, b: Builder) -> bool:
    """Replace a MaxPool by a maximum of shifted images; whether that was possible.

    It is impossible for unknown lengths, windows of more than 64 positions, ``auto_pad``,
    ``ceil_mode``, and column-major indices. The builder must have no nodes pending.
    """
    x = node.inputs[0] if is_standard(node, "MaxPool") else None
    shape = None if x is None else known_shape(x)
    if x is None or shape is None or x.dtype is None:
        return False
    lengths = [length for length in shape[1:] if isinstance(length, int)]
    attributes = node.attributes
    kernel = [int(k) for k in attributes.get_ints("kernel_shape") or []]
    plain = not attributes.get_int("ceil_mode") and not attributes.get_int("storage_order")
    if (attributes.get_string("auto_pad") or "NOTSET") != "NOTSET" or not plain:
        return False
    if len(lengths) != len(shape) - 1 or not 0 < math.prod(kernel) <= _MOST:
        return False
    # The geometry, by spatial axis; `counts` are the lengths of the output.
    rank, channels, image = len(kernel), lengths[0], lengths[1:]
    strides = list(attributes.get_ints("strides") or [1] * rank)
    dilations = list(attributes.get_ints("dilations") or [1] * rank)
    pads = list(attributes.get_ints("pads") or [0] * 2 * rank)
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    counts = [
        (image[a] + pads[a] + pads[rank + a] - spans[a] - 1) // strides[a] + 1 for a in range(rank)
    ]
    # Of the windows, along each axis; negative in the padding.
    starts = [np.arange(counts[a]) * strides[a] - pads[a] for a in range(rank)]

    # The maximum over the positions of the window, and which of them it is.
    wide = b.cast(x, _FLOAT)
    if any(pads):
        margins = b.ints(0, 0, *pads[:rank], 0, 0, *pads[rank:])
        wide = b.op("Pad", wide, margins, b.const(-np.inf))
    axes, steps = b.ints(*range(2, rank + 2)), b.ints(*strides)
    with_places = len(node.outputs) > 1 and bool(node.outputs[1].name)
    weights = [math.prod(image[a + 1 :]) for a in range(rank)]  # distances in the flattened image
    best: ir.Value | None = None
    place: ir.Value | None = None
    inside_before = np.zeros(counts, bool)
    for window in product(*(range(k) for k in kernel)):
        offset = [t * d for t, d in zip(window, dilations, strict=True)]
        ends = [o + (n - 1) * s + 1 for o, n, s in zip(offset, counts, strides, strict=True)]
        value = b.op("Slice", wide, b.ints(*offset), b.ints(*ends), axes, steps)
        here = b.const(int(np.dot(offset, weights)), _INT64)
        inside = _inside(starts, offset, image)
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
        # The index of the first position of each window within its image.
        corner = sum(
            start.reshape([-1 if a == axis else 1 for a in range(rank)]) * weights[axis]
            for axis, start in enumerate(starts)
        )
        results.append(_places(b, x, place, np.asarray(corner), channels, math.prod(image)))
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


def _places(
    b: Builder,
    x: ir.Value,
    place: ir.Value | None,
    corner: NDArray[np.int64],
    channels: int,
    size: int,
) -> ir.Value:
    """The index in the flattened tensor: plane + corner of the window + position in it."""
    samples = b.op("Squeeze", b.op("Shape", x, start=0, end=1, dtype=_INT64), b.ints(0))
    planes = b.op(
        "Range",
        b.const(0, _INT64),
        b.op("Mul", samples, b.const(channels, _INT64)),
        b.const(1, _INT64),
    )
    first = b.op("Mul", planes, b.const(size, _INT64))
    shaped = b.op("Reshape", first, b.ints(-1, channels, *[1] * corner.ndim))
    grid = b.op("Add", shaped, b.const(corner[None, None], _INT64))
    return b.op("Add", grid, place)
