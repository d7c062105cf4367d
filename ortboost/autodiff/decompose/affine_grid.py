"""AffineGrid, the sampling points of spatial transformer networks.

Source: Jaderberg, Simonyan, Zisserman, Kavukcuoglu, "Spatial Transformer Networks", 2015,
equation 1.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_INT64 = ir.DataType.INT64


@decomposes("AffineGrid")
def _affine_grid(site: Site) -> list[ir.Value | None]:
    """``theta[n] @ [x, y, 1]`` or ``[x, y, z, 1]``, from -1 to 1 along each axis of the image."""
    theta, shape = site.input(0), site.shape()
    if shape[1:] not in ((2, 3), (3, 4)):
        raise Refusal("its matrices do not have the known shape [N, 2, 3] or [N, 3, 4]")
    axes = 2 if shape[1] == 2 else 3
    # Column by column: the coordinates of each axis are broadcast, not stored for every pixel.
    total: ir.Value | None = None
    for column in range(axes + 1):
        chosen = site.op("Gather", theta, site.const(column, _INT64), axis=2)  # [N, axes]
        part = site.op("Unsqueeze", chosen, site.ints(*range(1, axes + 1)))  # [N, 1, ..., axes]
        if column < axes:  # x is the last axis of the image
            place = axes - column
            others = [axis for axis in range(axes + 2) if axis != place]
            points = site.op("Unsqueeze", _coordinates(site, place + 1), site.ints(*others))
            part = site.op("Mul", part, points)
        total = part if total is None else site.op("Add", total, part)
    return [total]


def _coordinates(site: Site, place: int) -> ir.Value:
    """Coordinates of the pixels along the axis with length ``size[place]``, ``[length]``.

    ``2 i / (length - 1) - 1`` with ``align_corners``, else ``(2 i + 1) / length - 1``.
    """
    zero, one = site.const(0, _INT64), site.const(1, _INT64)
    length = site.op("Gather", site.input(1), site.const(place, _INT64), axis=0, dtype=_INT64)
    pixels = site.cast(site.op("Range", zero, length, one))
    steps = site.op("Mul", pixels, site.const(2.0))
    if site.integer("align_corners", 0):
        length = site.op("Max", site.op("Sub", length, one), one)  # a single pixel: not 0 / 0
    else:
        steps = site.op("Add", steps, site.const(1.0))
    return site.op("Sub", site.op("Div", steps, site.cast(length)), site.const(1.0))
