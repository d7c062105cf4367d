"""DeformConv, convolutions whose kernel points are moved by learned offsets.

Sources of the algebra: Dai, Qi, Xiong, Li, Zhang, Hu, Wei, "Deformable Convolutional Networks",
2017, equations 2 to 4; Zhu, Hu, Lin, Dai, "Deformable ConvNets v2", 2019, equation 1, for the mask.
"""

from __future__ import annotations

import itertools
import math

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.sizes import Size, computed, joined, length, product
from ortboost.graph.formulas import Term
from ortboost.graph.query import fixed_lengths
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []


@decomposes("DeformConv")
def _deform_conv(site: Site) -> list[ir.Value | None]:
    """A convolution of size 1 over ``x[p + offset] * mask``, the points ``p`` being its channels.

    GridSample fetches ``x`` at the points, so the offsets get its gradient.
    """
    weight = fixed_lengths(site.shape(1))
    if site.rank() != 4 or weight is None:
        raise Refusal("only images with two spatial axes and weights of known shape are supported")
    points, groups = math.prod(weight[2:]), site.integer("offset_group", 1)
    group = site.integer("group", 1)
    channels = weight[1] * group
    batch = length(site, site.input(0), 0)
    height, width = (length(site, site.input(2), axis) for axis in (2, 3))
    area, images = computed(site, "Mul", height, width), computed(site, "Mul", batch, groups)
    image = site.input(0)
    if groups > 1:
        sizes = [length(site, image, axis) for axis in (2, 3)]
        image = _reshaped(site, image, [images, channels // groups, *sizes])
    # A point is (row, column), but (column, row) for GridSample.
    turned = site.op("Transpose", image, perm=[0, 1, 3, 2])
    mode = "linear" if site.opset >= 20 else "bilinear"
    grid = _grid(site, _offsets(site, images, points, area), height, width)
    found = site.op("GridSample", turned, grid, mode=mode, padding_mode="zeros")
    mask = site.optional(4)
    if mask is not None:
        found = site.op("Mul", found, _reshaped(site, mask, [images, 1, points, area]))
    columns = _reshaped(site, found, [batch, channels * points, height, width])
    kernel = site.op("Reshape", site.input(1), site.ints(weight[0], weight[1] * points, 1, 1))
    return [site.op("Conv", columns, kernel, site.optional(3), group=group)]


def _offsets(site: Site, images: Size, points: int, area: Size) -> ir.Value:
    """``[N, groups * points * 2, H, W]`` to ``[N * groups, points, H * W, 2]``."""
    apart = _reshaped(site, site.input(2), [images, points, 2, area])
    return site.op("Transpose", apart, perm=[0, 1, 3, 2])


def _grid(site: Site, offsets: ir.Value, height: Size, width: Size) -> ir.Value:
    """The points of the kernel at each place, moved by the offsets, in ``-1 .. 1``."""
    kernel = fixed_lengths(site.shape(1)[2:]) or ()
    stride, dilation = (site.integers(name) or (1, 1) for name in ("strides", "dilations"))
    pads = (site.integers("pads") or (0, 0))[:2]
    steps = itertools.product(*map(range, kernel))
    corner = [[s * d - p for s, d, p in zip(step, dilation, pads, strict=True)] for step in steps]
    rows = _places(site, height, [stride[0], 0], 1)
    columns = _places(site, width, [0, stride[1]], 0)
    place = site.op("Add", rows, columns)  # [H, W, 2]
    place = site.op("Reshape", place, joined(site, [product(site, [height, width]), 2]))
    point = Term(site, offsets) + Term(site, place) + Term(site, site.const([[c] for c in corner]))
    sizes = site.cast(joined(site, [length(site, site.input(0), axis) for axis in (2, 3)]))
    return ((point * 2.0 + 1.0) / Term(site, sizes) - 1.0).value


def _places(site: Site, count: Size, step: list[int], axis: int) -> ir.Value:
    """``step * i`` for each `i` of an axis, ``[count, 1, 2]`` or ``[1, count, 2]``."""
    zero, one = (site.const(number, ir.DataType.INT64) for number in (0, 1))
    last = site.op("Squeeze", joined(site, [count]), site.ints(0))
    index = site.op("Unsqueeze", site.op("Range", zero, last, one), site.ints(axis, 2))
    return site.op("Mul", site.cast(index), site.const(step))


def _reshaped(site: Site, value: ir.Value, sizes: list[Size]) -> ir.Value:
    shape = ir.Shape([size if isinstance(size, int) else None for size in sizes])
    return site.op("Reshape", value, joined(site, sizes), shape=shape, allowzero=1)
