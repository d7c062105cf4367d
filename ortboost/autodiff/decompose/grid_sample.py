"""GridSample: sampling of images at points that may be learned.

Sources of the algebra: Jaderberg, Simonyan, Zisserman, Kavukcuoglu, "Spatial Transformer Networks",
2015, equations 3 to 7; Keys, "Cubic convolution interpolation for digital image processing", 1981,
equation 15 with the `a` of the ONNX standard.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.formulas import Term
from ortboost.graph.query import fixed_lengths
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_INT64 = ir.DataType.INT64
_A = -0.75  # ONNX standard; Keys uses -1/2
# Along one axis: the offsets of the pixels used, relative to floor(p), and their weights as
# polynomials in f = p - floor(p), lowest power first.
_KERNELS = {
    "linear": ((0, [1.0, -1.0]), (1, [0.0, 1.0])),
    "cubic": (
        (-1, [0.0, _A, -2 * _A, _A]),
        (0, [1.0, 0.0, -(_A + 3), _A + 2]),
        (1, [0.0, -_A, 2 * _A + 3, -(_A + 2)]),
        (2, [0.0, 0.0, _A, -_A]),
    ),
}
_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # until opset 19


@decomposes("GridSample")
def _grid_sample(site: Site) -> list[ir.Value | None]:
    """``y[p] = sum over pixels q near p of x[q] * product over axes of w(p - q)``.

    ``p`` is the grid point in pixels, converted from ``-1 .. 1``. One Gather fetches the pixels, so
    their gradients are summed; the grid gets its gradient through the weights, as the integer
    ``floor(p)`` has none. Linear interpolation uses 2 pixels along an axis, cubic 4. Nearest
    fetches the pixel ``round(p)`` and has no gradient for the grid.

    ``zeros`` puts a frame of zeros around the image and limits ``p`` to it; ``border`` limits ``p``
    to the image; ``reflection`` first folds ``p`` into it. As cubic reaches further than one pixel,
    it applies this to each pixel instead, and only bounds ``p`` where all of its pixels are
    outside.
    """
    axes = site.rank() - 2
    if axes not in (2, 3) or site.rank(1) != axes + 2:
        raise Refusal("only images with two or three spatial axes are supported")
    mode, padding = site.text("mode", "linear"), site.text("padding_mode", "zeros")
    mode = _MODES.get(mode, mode)
    if mode not in ("linear", "cubic", "nearest"):
        raise Refusal(f"mode='{mode}' is not in the standard; use linear, cubic or nearest")
    if mode == "cubic" and axes == 3:
        raise Refusal("cubic over three spatial axes is not in the standard; use linear")
    image, point = site.input(0), _in_pixels(site)  # [N, C, H, W], [N, ..., axes]
    if mode == "nearest":  # Round takes ties to even, as onnxruntime's kernel does
        point = site.op("Round", point)
    if padding == "reflection":
        point = _folded(site, point)
    frame = 2 if padding == "zeros" else 0
    if frame:
        image = site.op("Pad", image, site.ints(*([0, 0] + axes * [1]) * 2))
    if mode == "cubic":  # the padding applies to each of its pixels
        low, fraction = _apart(site, point)
        around = _inside(site, _neighbours(site, low, mode), padding)
        return [_channels_first(site, _weighed(site, image, around, fraction, frame, mode))]
    if frame:  # coordinates of the framed image
        point = site.op("Add", point, _number(site, 1.0))
    point = _limited(site, point, _lengths(site, frame - 1))
    low, fraction = _split(site, point)
    if mode == "nearest":
        return [_channels_first(site, _fetched(site, image, low, frame, axes + 2))]
    # At the last pixel the second neighbour would be outside; its weight is 0 there.
    around = site.op("Min", _neighbours(site, low, mode), _lengths(site, frame - 1, _INT64))
    return [_channels_first(site, _weighed(site, image, around, fraction, frame, mode))]


def _taps(site: Site, mode: str) -> list[tuple[tuple[int, list[float]], ...]]:
    """Offsets and weights of every pixel around a point, as a product over the axes."""
    return list(itertools.product(_KERNELS[mode], repeat=site.rank() - 2))


def _split(site: Site, point: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``floor(p)`` and ``p - floor(p)`` for ``p >= 0``."""
    low = site.cast(point, _INT64)  # rounds towards 0; has no gradient
    return low, site.op("Sub", point, site.cast(low, _grid_dtype(site)))


def _apart(site: Site, point: ir.Value) -> tuple[ir.Value, ir.Value]:
    """As :func:`_split`, with ``p`` limited to the ``-2 .. L + 1`` that cubic weights reach."""
    moved = site.op("Add", point, _number(site, 2.0))
    low, fraction = _split(site, _limited(site, moved, _lengths(site, 3)))
    return site.op("Sub", low, site.ints(2)), fraction


def _neighbours(site: Site, low: ir.Value, mode: str) -> ir.Value:
    """The pixels around each point, ``[N, ..., taps, axes]``."""
    taps = [[step for step, _ in tap] for tap in _taps(site, mode)]
    return site.op(
        "Add", site.op("Unsqueeze", low, site.ints(-2)), site.builder.const(taps, _INT64)
    )


def _inside(site: Site, place: ir.Value, padding: str) -> ir.Value:
    """Map pixel coordinates anywhere to pixels of the (framed) image."""
    if padding == "reflection":
        place = site.cast(_folded(site, site.cast(place, _grid_dtype(site))), _INT64)
    if padding == "zeros":
        place = site.op("Add", place, site.ints(1))
    last = _lengths(site, 1 if padding == "zeros" else -1, _INT64)
    return site.op("Min", site.op("Max", place, site.ints(0)), last)


def _weighed(
    site: Site, image: ir.Value, around: ir.Value, fraction: ir.Value, frame: int, mode: str
) -> ir.Value:
    """The weighted sum over the pixels around each point, ``[N, ..., C]``."""
    picked = _fetched(site, image, around, frame, site.rank() + 1)  # [N, ..., taps, C]
    weighed = site.op("Mul", picked, _weights(site, fraction, mode))
    return site.op("ReduceSum", weighed, site.ints(site.rank() - 1), keepdims=0)


def _channels_first(site: Site, picked: ir.Value) -> ir.Value:
    last = site.rank() - 1
    return site.op("Transpose", picked, perm=[0, last, *range(1, last)])


def _fetched(site: Site, image: ir.Value, place: ir.Value, frame: int, rank: int) -> ir.Value:
    """All channels of the pixels at ``place``, ``[N, ..., axes]``: rows of ``[N * H * W, C]``.

    GatherND with batch_dims is not used: its kernel divides by the number of images, and an empty
    batch crashes the process.
    """
    channels = site.shape()[1]
    width = site.ints(channels) if isinstance(channels, int) else site.shape_of(image, 1, 2)
    axes = site.rank() - 2
    table = site.op("Transpose", image, perm=[0, *range(2, axes + 2), 1])  # channels last
    to_rows = site.op("Concat", site.ints(-1), width, axis=0)
    table = site.op("Reshape", table, to_rows)
    sizes = _lengths(site, frame, _INT64)  # [W, H] or [W, H, D]
    zero, one = (site.builder.const(number, _INT64) for number in (0, 1))
    flat = along = pixels = None
    for axis in reversed(range(axes)):  # (z H + y) W + x
        index = site.builder.const(axis, _INT64)
        along = site.op("Gather", place, index, axis=-1)
        size = site.op("Gather", sizes, index, axis=0)
        flat = along if flat is None else site.op("Add", site.op("Mul", flat, size), along)
        pixels = size if pixels is None else site.op("Mul", pixels, size)
    # The index of the first pixel of each image, [N, 1, ...].
    images = site.op("Squeeze", site.shape_of(image, 0, 1), site.ints(0))
    first = site.op("Range", zero, images, one)
    first = site.op("Mul", first, pixels)
    first = site.op("Unsqueeze", first, site.ints(*range(1, rank - 1)))
    flat = site.op("Add", flat, first)
    return site.op("Gather", table, flat, axis=0)


def _grid_dtype(site: Site) -> ir.DataType:
    return site.input(1).dtype or site.dtype


def _number(site: Site, value: float) -> ir.Value:
    return site.builder.const(value, _grid_dtype(site))


def _lengths(site: Site, more: int, dtype: ir.DataType | None = None) -> ir.Value:
    """``[W + more, H + more, ..]`` with the dtype of the grid, constant if possible."""
    dtype = dtype or _grid_dtype(site)
    sizes = site.shape()[:1:-1]  # x is the last axis of the image and the first of a point
    known = fixed_lengths(sizes)
    if known is not None:
        return site.builder.const([size + more for size in known], dtype)
    axes = site.ints(*reversed(range(2, site.rank())))
    found = site.op("Gather", site.shape_of(site.input(0)), axes, axis=0)
    found = site.op("Add", found, site.ints(more))
    return site.cast(found, dtype)


def _in_pixels(site: Site) -> ir.Value:
    """``-1 .. 1`` to ``0 .. L - 1`` (align_corners) or to ``-1/2 .. L - 1/2``."""
    moved = Term(site, site.input(1)) + 1.0
    if site.integer("align_corners", 0):
        return (moved * 0.5).call("Mul", _lengths(site, -1)).value
    return ((moved.call("Mul", _lengths(site, 0)) - 1.0) * 0.5).value


def _folded(site: Site, point: ir.Value) -> ir.Value:
    """Reflect points at the borders until they are inside: ``low + span - |d - span|``.

    ``d`` is ``|p - low|`` modulo twice the span.
    """
    corners = bool(site.integer("align_corners", 0))
    span = Term(site, _lengths(site, -1 if corners else 0))
    if corners:  # avoid a span of 0 for a single pixel
        span = span.call("Max", 1.0)
    low = 0.0 if corners else -0.5
    apart = (Term(site, point) - low).call("Abs")
    period = span + span
    # Through integers, which have no gradient: the number of whole periods is constant.
    whole = site.cast(site.cast((apart / period).value, _INT64), _grid_dtype(site))
    apart = apart - Term(site, whole) * period
    return (span + low - (apart - span).call("Abs")).value


def _limited(site: Site, point: ir.Value, last: ir.Value) -> ir.Value:
    """Clip to ``0 .. last``, with a gradient of 0 at the limits, as in PyTorch; NaN becomes 0."""
    zero = _number(site, 0.0)
    # Comparisons with NaN are false: the first Where replaces it.
    above = site.op("Greater", point, zero)
    point = site.op("Where", above, point, zero)
    below = site.op("Less", point, last)
    return site.op("Where", below, point, last)


def _weights(site: Site, fraction: ir.Value, mode: str) -> ir.Value:
    """``[N, ..., taps, 1]``: the product of the polynomials along the axes, by Horner's rule."""
    dtype, axes = _grid_dtype(site), site.rank() - 2
    powers = np.array([[weights for _, weights in tap] for tap in _taps(site, mode)])
    fraction = site.op("Unsqueeze", fraction, site.ints(-2))
    *lower, highest = np.moveaxis(powers, -1, 0)  # each [taps, axes]
    along = site.builder.const(highest, dtype)
    for power in reversed(lower):
        along = site.op("Add", site.op("Mul", fraction, along), site.builder.const(power, dtype))
    product, *others = site.ops("Split", along, site.ints(*axes * [1]), count=axes, axis=-1)
    for factor in others:
        product = site.op("Mul", product, factor)
    return site.cast(product)
