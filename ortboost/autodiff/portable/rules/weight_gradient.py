r"""The weight gradient of a convolution: six algorithms, and the choice between them.

    gw[m, c, t] = sum_{n, o} g[n, m, o] x[n, c, o s - p + t d]

is a matrix product over `(n, o)` of `g` with the image shifted by each tap `t`. Measured on the
layers of the shipped models and of larger ones, in onnxruntime 1.19 and 1.31 on one thread
(milliseconds; `M` output channels, `C` input channels, batch 32):

    layer                      pointwise   taps   rows   swapped   depthwise
    C 64, M 256, 8x8, 1x1           0.33   0.37     -       1.65       -
    C 16, M 16, 32x32, 3x3            -    2.16   2.54      5.68       -
    C 64, M 64, 8x8, 3x3              -    0.94   0.99      2.33       -
    C 8, M 8, 8x8, 3x3                -    0.09   0.07      0.15       -
    C 6, M 16, 14x14, 5x5             -    0.36   0.21      0.33       -
    C 3, M 16, 32x32, 7x7 / 2         -    3.43   0.95      0.77       -
    C 1, M 16, 8x8, 5x5               -    0.09   0.09      0.04       -
    32 groups of 1, 16x16, 3x3        -      -      -       2.14      1.03
    32 groups of 1, 16x16, 3x3 / 2    -      -      -       0.69      0.74

Patches, for few channels and taps, compared with swapped (1.19, 1.31):

    C 3, M 16, 32x32, 3x3            1.11 for 1.36    0.85 for 1.35
    C 3, M 8, 32x32, 3x3 / 2         0.16 for 0.35    0.17 for 0.34
    C 3, M 32, 64x64, 3x3 / 2        1.48 for 2.10    1.11 for 2.00

:mod:`ortboost.runtime.cpu.depthwise` recognizes the products of the depthwise algorithm, and
:mod:`ortboost.runtime.cpu.weight_gradients` those of the taps of large images. The forward
convolution of the second layer takes 1.45. One Gather of all taps, and im2col by Slices and a
Concat, were slower in nearly all cases.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward
from ortboost.autodiff.portable.rules.swapped import swapped
from ortboost.autodiff.portable.rules.windows import Window
from ortboost.graph.query import fixed_lengths, known_shape

__all__ = ["weight_gradient"]

_INT64 = ir.DataType.INT64
# Input channels: below the first, use patches; from the second on, one product per tap is
# efficient.
_MIN_CHANNELS, _WIDE = 4, 16
_TAPS = 9  # with more taps, use one product per row of taps
_PATCH = 32  # elements of a window: more are expensive to move by a convolution
_SMALL = 8192  # elements: below, the overhead of a node dominates


def weight_gradient(
    b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window, groups: int
) -> ir.Value:
    """The gradient of the weight ``w`` of a convolution of ``x``, whose output has gradient ``g``.

    The shapes are ``[M, C/groups, k...]``, ``[N, C, L...]`` and ``[N, M, O...]``.
    """
    channels = (known_shape(x) or ())[1]
    outputs = (known_shape(g) or (None, None))[1]
    if isinstance(channels, int) and groups > 1:
        if groups == channels == outputs:  # other groups: swapped
            return _depthwise(b, x, g, w, window)
    elif isinstance(channels, int):
        taps = math.prod(window.kernel)
        if window.pointwise and _small_product(channels, outputs, g):
            return _pointwise(b, x, g, w)
        width = (known_shape(g) or ())[-1]
        # Per tap, the product is narrow or small: take a row of taps at once.
        narrow = channels < _WIDE or taps > _TAPS or _little(channels, g)
        if isinstance(width, int) and taps > 1 and channels >= _MIN_CHANNELS and narrow:
            return _rows(b, x, g, w, window, channels, width)
        if channels >= _MIN_CHANNELS or taps == 1:
            return _taps(b, x, g, w, window, channels)
        if channels * taps <= _PATCH and _space(g) is not None:
            return _patches(b, x, g, w, window, channels)
    return swapped(b, x, g, w, window, groups)


def _space(g: ir.Value) -> int | None:
    """Number of windows of an image, if known."""
    shape = known_shape(g)
    sizes = None if shape is None else fixed_lengths(shape[2:])
    return None if sizes is None else math.prod(sizes)


def _small_product(channels: int, outputs: object, g: ir.Value) -> bool:
    """Whether the products of all images take no more memory than transposed operands would."""
    space = _space(g)
    if not isinstance(outputs, int) or space is None:
        return False
    return channels * outputs <= max(space * (channels + outputs), _SMALL)


def _little(channels: int, g: ir.Value) -> bool:
    """Whether a tap moves so few elements that the number of nodes dominates."""
    space = _space(g)
    return space is not None and space * channels <= _SMALL // 4


def _pointwise(b: Backward, x: ir.Value, g: ir.Value, w: ir.Value) -> ir.Value:
    """`gw = sum_n g[n] x[n]^T`, one product per image."""
    left, right = (_flat_space(b, value, _space(g) or 0) for value in (g, x))
    transposed = b.op("Transpose", right, perm=[0, 2, 1])  # the runtime fuses it into the product
    each = b.op("MatMul", left, transposed)  # [N, M, C]
    total = b.op("ReduceSum", each, b.ints(0), keepdims=0)
    return b.op("Reshape", total, b.shape_of(w), shape=w.shape)


def _patches(
    b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window, channels: int
) -> ir.Value:
    """Move the elements of each window to channels by a convolution; then one product per image.

    `seen[n, (c, t), o] = x[n, c, o s - p + t d]` is a convolution with the identity matrix as
    weight.
    """
    size = channels * math.prod(window.kernel)
    unit = b.const(np.eye(size).reshape(size, channels, *window.kernel))
    shape = (known_shape(x) or (None,))[0], size, *(known_shape(g) or ())[2:]
    seen = b.op("Conv", x, unit, shape=shape, **window.attributes())
    return _pointwise(b, seen, g, w)


def _flat_space(b: Backward, value: ir.Value, space: int) -> ir.Value:
    """``[N, C, L...] -> [N, C, L]``, with the product of all ``L`` given as ``space``."""
    channels = (known_shape(value) or (None, None))[1]
    # The batch is inferred (-1), as it may be empty; the channels are kept (0).
    return b.op("Reshape", value, b.ints(-1, channels if isinstance(channels, int) else 0, space))


def _matrix(b: Backward, g: ir.Value) -> ir.Value:
    """``[N, M, O...] -> [M, N O]``."""
    rank = len(known_shape(g) or ())
    transposed = b.op("Transpose", g, perm=[1, 0, *range(2, rank)])
    return b.op("Reshape", transposed, b.ints(0, -1))


def _channels_last(b: Backward, x: ir.Value, window: Window) -> ir.Value:
    """``[N, C, L...] -> [N, L + p + q..., C]``."""
    axes = range(2, 2 + window.spatial)
    last = b.op("Transpose", x, perm=[0, *axes, 1])
    if not window.padded:
        return last
    return b.op("Pad", last, b.ints(0, *window.begins, 0, 0, *window.ends, 0))


def _steps(b: Backward, g: ir.Value, window: Window) -> list[int] | ir.Value:
    """`(O - 1) s + 1` for each axis: the span of the first taps of all windows."""
    lengths = fixed_lengths((known_shape(g) or ())[2:])
    if lengths is not None:
        return [(o - 1) * s + 1 for o, s in zip(lengths, window.strides, strict=True)]
    scaled = b.op("Mul", b.shape_of(g, 2), b.ints(*window.strides))
    return b.op("Sub", scaled, b.ints(*(s - 1 for s in window.strides)))


def _seen(
    b: Backward,
    image: ir.Value,
    tap: tuple[int, ...],
    window: Window,
    steps: list[int] | ir.Value,
    axes: range,
) -> ir.Value:
    """The elements of a padded image at one tap of each window; ``axes`` are its spatial axes."""
    starts = [i * d for i, d in zip(tap, window.dilations, strict=False)]
    if isinstance(steps, list):
        ends = b.ints(*(start + step for start, step in zip(starts, steps, strict=False)))
    else:
        ends = b.op("Add", steps, b.ints(*starts))
    return b.op(
        "Slice", image, b.ints(*starts), ends, b.ints(*axes), b.ints(*window.strides[: len(axes)])
    )


def _taps(
    b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window, channels: int
) -> ir.Value:
    """One product ``[M, N O] [N O, C]`` per tap; only the results are concatenated.

    If images are large and channels few, one product per image, summed at the end: `g` need not be
    transposed, and more threads can be used (2.03 instead of 2.13 ms on one thread, layer 2 above).
    """
    image = _channels_last(b, x, window)
    steps, axes = _steps(b, g, window), range(1, 1 + window.spatial)
    outputs, space = (known_shape(g) or (None, None))[1], _space(g)
    # The products of all images, [N, M, C], have to be small compared with the operands.
    if (
        isinstance(outputs, int)
        and space is not None
        and 8 * channels * outputs <= space * (channels + outputs)
    ):
        per_image, left, rows = True, _flat_space(b, g, space), b.ints(-1, space, channels)
    else:
        per_image, left, rows = False, _matrix(b, g), b.ints(-1, channels)
    found = []
    for tap in np.ndindex(*window.kernel):
        seen = image if window.pointwise else _seen(b, image, tap, window, steps, axes)
        found.append(b.op("MatMul", left, b.op("Reshape", seen, rows)))  # [(N,) M, C]
    if per_image:
        joined = b.builder.combined("Concat", found, axis=2)
        found = [b.op("ReduceSum", joined, b.ints(0), keepdims=0)]
    return _as_weight(b, found, channels, w, window)


def _as_weight(
    b: Backward, found: list[ir.Value], channels: int, w: ir.Value, window: Window
) -> ir.Value:
    """Concatenate pieces to ``[M, k C]`` and reorder: ``-> [M, C, k...]``."""
    shape = b.shape_of(w)
    joined = b.builder.combined("Concat", found, axis=1)
    if math.prod(window.kernel) == 1:
        return b.op("Reshape", joined, shape, shape=w.shape)
    apart = b.op("Reshape", joined, b.ints(0, -1, channels))  # [M, k..., C]
    transposed = b.op("Transpose", apart, perm=[0, 2, 1])
    return b.op("Reshape", transposed, shape, shape=w.shape)


def _rows(
    b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window, channels: int, width: int
) -> ir.Value:
    """Gather the taps along the last axis side by side; one product per row of taps."""
    last = window.kernel[-1]
    places = np.arange(width)[:, None] * window.strides[-1]
    index = b.const(places + np.arange(last) * window.dilations[-1], _INT64)  # [O, k]
    image, left = _channels_last(b, x, window), _matrix(b, g)
    wide = b.op("Gather", image, index, axis=window.spatial)  # [N, ..., O, k, C]
    axes = range(1, window.spatial)
    steps = _steps(b, g, window)
    if isinstance(steps, ir.Value):
        steps = b.op("Slice", steps, b.ints(0), b.ints(window.spatial - 1))
    found = []
    # The taps along the last axis are side by side now: a Slice takes only the other axes.
    for row in np.ndindex(*window.kernel[:-1]):
        seen = _seen(b, wide, row, window, steps, axes) if axes else wide
        found.append(b.op("MatMul", left, b.op("Reshape", seen, b.ints(-1, last * channels))))
    return _as_weight(b, found, channels, w, window)


def _depthwise(b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window) -> ir.Value:
    """One input channel per output channel: for each tap, sum an elementwise product."""
    axes = range(2, 2 + window.spatial)
    image = x
    if window.padded:
        image = b.op("Pad", x, b.ints(0, 0, *window.begins, 0, 0, *window.ends))
    steps, summed = _steps(b, g, window), b.ints(0, *axes)
    found = []
    for tap in np.ndindex(*window.kernel):
        product = b.op("Mul", _seen(b, image, tap, window, steps, axes), g, shape=g.shape)
        total = b.op("ReduceSum", product, summed, keepdims=0)  # [C]
        found.append(b.op("Unsqueeze", total, b.ints(1)))
    joined = b.builder.combined("Concat", found, axis=1)
    return b.op("Reshape", joined, b.shape_of(w), shape=w.shape)
