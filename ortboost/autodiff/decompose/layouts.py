"""Operators that move elements: pixel shuffles, reflecting pads, transposed convolution."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.padding import transposed_padding
from ortboost.autodiff.sizes import computed, joined, length
from ortboost.graph.query import static_shape
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []


@decomposes("DepthToSpace")
def _depth_to_space(site: Site) -> list[ir.Value | None]:
    """Reshape, Transpose and Reshape, as in the standard's definition."""
    data, block = site.input(0), site.integer("blocksize", 1)
    batch, channels, height, width = (length(site, data, axis) for axis in range(4))
    depth = computed(site, "Div", channels, block * block)
    if site.text("mode", "DCR") == "DCR":
        shape, order = [batch, block, block, depth, height, width], [0, 3, 4, 1, 5, 2]
    else:
        shape, order = [batch, depth, block, block, height, width], [0, 1, 4, 2, 5, 3]
    split = site.op("Reshape", data, joined(site, shape))
    moved = site.op("Transpose", split, perm=order)
    tall, wide = (computed(site, "Mul", size, block) for size in (height, width))
    return [site.op("Reshape", moved, joined(site, [batch, depth, tall, wide]))]


@decomposes("SpaceToDepth")
def _space_to_depth(site: Site) -> list[ir.Value | None]:
    """``[N, C, H, W] -> [N, b * b * C, H / b, W / b]``."""
    data, block = site.input(0), site.integer("blocksize", 1)
    batch, depth, tall, wide = (length(site, data, axis) for axis in range(4))
    height, width = (computed(site, "Div", size, block) for size in (tall, wide))
    shape = joined(site, [batch, depth, height, block, width, block])
    moved = site.op("Transpose", site.op("Reshape", data, shape), perm=[0, 3, 5, 1, 2, 4])
    deep = computed(site, "Mul", depth, block * block)
    return [site.op("Reshape", moved, joined(site, [batch, deep, height, width]))]


@decomposes("Compress")
def _compress(site: Site) -> list[ir.Value | None]:
    """A Gather of the places where the condition is true."""
    data, axis = site.input(0), site.integer("axis", 0)
    if "axis" not in site.node.attributes:
        data = site.op("Reshape", data, site.ints(-1))
    places = site.op("NonZero", site.input(1), dtype=ir.DataType.INT64)
    places = site.op("Squeeze", places, site.ints(0), dtype=ir.DataType.INT64)
    return [site.op("Gather", data, places, axis=axis)]


@decomposes("Pad")
def _pad(site: Site) -> list[ir.Value | None]:
    """Reflect, edge and wrap pads as Gathers along each axis, whose gradients are summed."""
    mode = site.text("mode", "constant")
    pads = site.array(1)
    if pads is None:
        raise Refusal("its pads are not constant; export with fixed pads")
    rank = site.rank()
    given = site.array(3)
    if site.optional(3) is not None and given is None:
        raise Refusal("its axes are not constant; export with fixed axes")
    # One axis after the other: the corners follow from the sides.
    axes = range(rank) if given is None else [int(a) % rank for a in given.reshape(-1)]
    result = site.input(0)
    for k, axis in enumerate(axes):
        before, after = int(pads[k]), int(pads[k + len(pads) // 2])
        if not before and not after:
            continue
        size = site.shape()[axis]
        if not isinstance(size, int):
            raise Refusal(f"mode='{mode}' along axis {axis}, which has no fixed length")
        # Negative pads cut first, then positive ones repeat what is left.
        kept = np.arange(max(-before, 0), size - max(-after, 0), dtype=np.int64)
        added = max(before, 0), max(after, 0)
        index = np.pad(kept, added, mode=mode)  # type: ignore[call-overload]
        result = site.op("Gather", result, site.ints(*index.tolist()), axis=axis)
    return [result if result is not site.input(0) else site.op("Identity", result)]


@decomposes("ConvTranspose")
def _conv_transpose(site: Site) -> list[ir.Value | None]:
    """Convolve the dilated image (zeros between its pixels) with the flipped kernel.

    ConvTranspose has a gradient kernel on CUDA only.
    """
    data, weight = site.input(0), site.input(1)
    shape = static_shape(weight)
    spatial = site.rank() - 2
    if shape is None:
        raise Refusal("the shape of its weight is unknown")
    inputs, outputs, *kernel = shape
    groups = site.integer("group", 1)
    strides = site.integers("strides") or (1,) * spatial
    dilations = site.integers("dilations") or (1,) * spatial
    pads, extra = transposed_padding(site)
    begins, ends = [], []
    for axis in range(spatial):
        reach = dilations[axis] * (kernel[axis] - 1)
        # A full correlation with the dilated image, less the pads.
        begins.append(reach - pads[axis])
        # Each pixel is followed by stride - 1 zeros; those after the last one are removed.
        ends.append(reach - pads[spatial + axis] + extra[axis] - (strides[axis] - 1))
    dilated = _with_zeros(site, data, strides)
    dilated = site.op("Pad", dilated, site.ints(0, 0, *begins, 0, 0, *ends))
    # [C, M/g, k...] -> [g, C/g, M/g, k...] -> [g, M/g, C/g, k...] -> [M, C/g, k...], flipped.
    per_group = inputs // groups
    kernels = site.op("Reshape", weight, site.ints(groups, per_group, outputs, *kernel))
    kernels = site.op("Transpose", kernels, perm=[0, 2, 1, *range(3, 3 + spatial)])
    kernels = site.op("Reshape", kernels, site.ints(groups * outputs, per_group, *kernel))
    for axis in range(spatial):
        backwards = site.ints(*reversed(range(kernel[axis])))
        kernels = site.op("Gather", kernels, backwards, axis=2 + axis)
    return [
        site.op(
            "Conv",
            dilated,
            kernels,
            site.optional(2),
            kernel_shape=kernel,
            dilations=dilations,
            group=groups,
        )
    ]


def _with_zeros(site: Site, data: ir.Value, strides: tuple[int, ...]) -> ir.Value:
    """Put ``stride - 1`` zeros after each pixel along each spatial axis."""
    if all(stride == 1 for stride in strides):
        return data
    spatial = len(strides)
    expanded = site.op("Unsqueeze", data, site.ints(*(3 + 2 * axis for axis in range(spatial))))
    ends = [0, 0]
    for stride in strides:
        ends += [0, stride - 1]
    padded = site.op("Pad", expanded, site.ints(*[0] * len(ends), *ends))
    sizes = [length(site, data, axis) for axis in range(2 + spatial)]
    pairs = zip(sizes, (1, 1, *strides), strict=True)
    target = joined(site, [computed(site, "Mul", size, stride) for size, stride in pairs])
    return site.op("Reshape", padded, target)
