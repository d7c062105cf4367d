"""Sampling images at points that may be learned: GridSample.

Source of the algebra: Jaderberg, Simonyan, Zisserman, Kavukcuoglu, "Spatial Transformer Networks",
2015, equations 3 to 7.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.rewriting import Refusal, Site
from ortboost.graph.query import known_shape

__all__ = ["GRID_SAMPLE"]

_INT64 = ir.DataType.INT64
# The four pixels around a point, as steps along (x, y).
_CORNERS = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])


def _grid_sample(site: Site) -> list[ir.Value | None]:
    """``y[p] = sum over the 4 pixels q around p of x[q] * (1 - |p_x - q_x|) * (1 - |p_y - q_y|)``.

    ``p`` is the point of the grid in pixels, from ``-1 .. 1``. The pixels are fetched by one Gather, so
    their gradients are added up; that of the grid comes through the weights, where ``floor(p)``, an
    integer, carries none. Nearest fetches the pixel ``round(p)`` and has no gradient for the grid.

    ``zeros`` sets a frame of zeros around the image and limits ``p`` to it; ``border`` limits ``p`` to
    the image; ``reflection`` folds ``p`` into it first.
    """
    if site.rank() != 4 or site.rank(1) != 4:
        raise Refusal("over more than two spatial axes it has no gradient here")
    mode, padding = site.text("mode", "linear"), site.text("padding_mode", "zeros")
    if mode not in ("linear", "bilinear", "nearest"):
        raise Refusal(f"mode='{mode}' has no gradient here; export with mode bilinear or nearest")
    image, point = site.input(0), _in_pixels(site)
    if mode == "nearest":
        point = site.op("Round", point)
    if padding == "reflection":
        point = _folded(site, point)
    elif padding == "zeros":
        image = site.op("Pad", image, site.ints(0, 0, 1, 1, 0, 0, 1, 1))
        point = site.op("Add", point, _number(site, 1.0))
    frame = 2 if padding == "zeros" else 0
    point = _limited(site, point, _lengths(site, frame - 1))
    low = site.op("Cast", point, dtype=_INT64, to=int(_INT64))  # point >= 0, so this is floor
    if mode == "nearest":
        return [_channels_first(site, _fetched(site, image, low, frame, 4))]
    corners = site.builder.const(_CORNERS, _INT64)
    around = site.op("Add", site.op("Unsqueeze", low, site.ints(3)), corners)
    around = site.op("Min", around, _lengths(site, frame - 1, _INT64))  # [N, h, w, 4, 2]
    picked = _fetched(site, image, around, frame, 5)  # [N, h, w, 4, C]
    weighed = site.op("Mul", picked, _weights(site, point, low))
    return [_channels_first(site, site.op("ReduceSum", weighed, site.ints(3), keepdims=0))]


def _channels_first(site: Site, picked: ir.Value) -> ir.Value:
    return site.op("Transpose", picked, perm=[0, 3, 1, 2])


def _fetched(site: Site, image: ir.Value, place: ir.Value, frame: int, rank: int) -> ir.Value:
    """All channels of the pixels at ``place``, ``[N, ..., 2]``: rows of ``[N * H * W, C]``.

    Not by GatherND with batch_dims: its kernel divides by the number of images, and the process dies
    where there are none.
    """
    channels = site.shape()[1]
    width = site.ints(channels) if isinstance(channels, int) else site.shape_of(image, 1, 2)
    table = site.op("Transpose", image, perm=[0, 2, 3, 1])  # [N, H, W, C]
    to_rows = site.op("Concat", site.ints(-1), width, axis=0, dtype=_INT64)
    table = site.op("Reshape", table, to_rows)
    both = _lengths(site, frame, _INT64)  # [W, H]
    zero, one = (site.builder.const(number, _INT64) for number in (0, 1))
    across, down = (site.op("Gather", place, axis, axis=-1) for axis in (zero, one))
    row, column = (site.op("Gather", both, axis, axis=0) for axis in (zero, one))
    flat = site.op("Add", site.op("Mul", down, row), across)
    # The number of the first pixel of each image, [N, 1, ...].
    images = site.op("Squeeze", site.shape_of(image, 0, 1), site.ints(0), dtype=_INT64)
    first = site.op("Range", zero, images, one, dtype=_INT64)
    first = site.op("Mul", first, site.op("Mul", row, column))
    first = site.op("Unsqueeze", first, site.ints(*range(1, rank - 1)))
    flat = site.op("Add", flat, first, dtype=_INT64)
    return site.op("Gather", table, flat, axis=0, dtype=image.dtype)


def _kind(site: Site) -> ir.DataType:
    return site.input(1).dtype or site.dtype


def _number(site: Site, value: float) -> ir.Value:
    return site.builder.const(value, _kind(site))


def _lengths(site: Site, more: int, dtype: ir.DataType | None = None) -> ir.Value:
    """``[W + more, H + more]`` in the element type of the grid: a constant where they are known."""
    kind = dtype or _kind(site)
    shape = known_shape(site.input(0)) or ()
    height, width = shape[2:]
    if isinstance(height, int) and isinstance(width, int):
        return site.builder.const([width + more, height + more], kind)
    both = site.op("Gather", site.shape_of(site.input(0)), site.ints(3, 2), axis=0, dtype=_INT64)
    both = site.op("Add", both, site.ints(more), dtype=_INT64)
    return both if kind == _INT64 else site.op("Cast", both, dtype=kind, to=int(kind))


def _in_pixels(site: Site) -> ir.Value:
    """``-1 .. 1`` to ``0 .. L - 1`` (align_corners) or to ``-1/2 .. L - 1/2``."""
    half, one = _number(site, 0.5), _number(site, 1.0)
    moved = site.op("Add", site.input(1), one)
    if site.integer("align_corners", 0):
        return site.op("Mul", site.op("Mul", moved, half), _lengths(site, -1))
    return site.op("Mul", site.op("Sub", site.op("Mul", moved, _lengths(site, 0)), one), half)


def _folded(site: Site, point: ir.Value) -> ir.Value:
    """Reflected at the borders until inside: ``low + span - |d - span|``.

    ``d`` is ``|p - low|`` modulo twice the span.
    """
    corners = bool(site.integer("align_corners", 0))
    span = _lengths(site, -1) if corners else _lengths(site, 0)
    if corners:  # one pixel: nothing to fold
        span = site.op("Max", span, _number(site, 1.0))
    low = _number(site, 0.0 if corners else -0.5)
    apart = site.op("Abs", site.op("Sub", point, low))
    period = site.op("Add", span, span)
    # Through integers, where no gradient flows: the number of whole periods is constant.
    whole = site.op("Cast", site.op("Div", apart, period), dtype=_INT64, to=int(_INT64))
    whole = site.op("Cast", whole, dtype=_kind(site), to=int(_kind(site)))
    apart = site.op("Sub", apart, site.op("Mul", whole, period))
    back = site.op("Abs", site.op("Sub", apart, span))
    return site.op("Sub", site.op("Add", span, low), back)


def _limited(site: Site, point: ir.Value, last: ir.Value) -> ir.Value:
    """Into ``0 .. last``; no gradient at the limits, as in PyTorch. NaN becomes 0: it is an index next."""
    zero = _number(site, 0.0)
    boolean = ir.DataType.BOOL
    kind = _kind(site)
    point = site.op(
        "Where", site.op("Greater", point, zero, dtype=boolean), point, zero, dtype=kind
    )
    return site.op("Where", site.op("Less", point, last, dtype=boolean), point, last, dtype=kind)


def _weights(site: Site, point: ir.Value, low: ir.Value) -> ir.Value:
    """``[N, h, w, 4, 1]``: with ``f = p - floor(p)``, ``f`` or ``1 - f`` along x times the same along y."""
    kind = _kind(site)
    fraction = site.op("Sub", point, site.op("Cast", low, dtype=kind, to=int(kind)))
    fraction = site.op("Unsqueeze", fraction, site.ints(3))
    signs = site.builder.const(2.0 * _CORNERS - 1.0, kind)
    both = site.op("Mul", fraction, signs)
    both = site.op("Add", both, site.builder.const(1.0 - _CORNERS, kind))  # [N, h, w, 4, 2]
    along_x, along_y = site.ops("Split", [both, site.ints(1, 1)], 2, {"axis": -1, "dtype": kind})
    product = site.op("Mul", along_x, along_y, dtype=kind)
    if kind == site.dtype:
        return product
    return site.op("Cast", product, dtype=site.dtype, to=int(site.dtype))


GRID_SAMPLE = {"GridSample": _grid_sample}
"""Operator to rule."""
