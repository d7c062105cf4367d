r"""Operators that only move elements: the gradient moves them back.

`g` is the gradient of the output. Omitted elements get 0; gradients of repeated ones are summed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import INT64, Size, computed, joined, length, reshape_like
from ortboost.graph.rewriting import Refusal

__all__: list[str] = []


@register("Reshape", "Flatten")
def reshape(b: Backward) -> Gradients:
    """`y = x` in another shape: `g` in the shape of `x`."""
    return [reshape_like(b, b.gradient(), b.input(0))]


@register("Squeeze")
def squeeze(b: Backward) -> Gradients:
    """`y = x` without axes of length one: `g` with them."""
    axes = b.optional(1)
    if axes is None:
        return [reshape_like(b, b.gradient(), b.input(0))]
    return [b.op("Unsqueeze", b.gradient(), axes, shape=b.input(0).shape)]


@register("Unsqueeze")
def unsqueeze(b: Backward) -> Gradients:
    """`y = x` with more axes of length one: `g` without them."""
    return [b.op("Squeeze", b.gradient(), b.input(1), shape=b.input(0).shape)]


@register("Transpose")
def transpose(b: Backward) -> Gradients:
    """`y = x` with its axes permuted: `g` permuted by the inverse; reversal is its own inverse."""
    perm = b.integers("perm")
    shape = b.input(0).shape
    if perm is None:
        return [b.op("Transpose", b.gradient(), shape=shape)]
    inverse = [int(place) for place in np.argsort(perm)]
    return [b.op("Transpose", b.gradient(), perm=inverse, shape=shape)]


@refuses("Concat", "Split")
def _counted_from_the_end(node: ir.Node) -> str | None:
    return unknown_rank(node, 0) if node.attributes.get_int("axis", 0) < 0 else None


@register("Concat")
def concat(b: Backward) -> Gradients:
    """`y = [x1, x2, ...]`: each input gets its part of `g`; Split if all need one, else Slice."""
    g, count = b.gradient(), len(b.node.inputs)
    if count == 1:
        return [g]
    axis = b.axis("axis", 0)
    sizes = [length(b, b.input(i), axis) for i in range(count)]
    if all(b.needs_gradient(i) for i in range(count)):
        parts = b.ops("Split", g, joined(b, sizes), count=count, axis=axis)
        for i, part in enumerate(parts):
            part.shape = b.input(i).shape
        return parts
    # A Split would copy the parts of frozen inputs, too.
    grads: list[ir.Value | None] = []
    start: Size = 0
    for i, size in enumerate(sizes):
        end = computed(b, "Add", start, size)
        if b.needs_gradient(i):
            bounds = (joined(b, [start]), joined(b, [end]), b.ints(axis))
            grads.append(b.op("Slice", g, *bounds, shape=b.input(i).shape))
        else:
            grads.append(None)
        start = end
    return grads


@register("Split")
def split(b: Backward) -> Gradients:
    """`y1, y2, ... = x` in parts: `[g1, g2, ...]`, with zeros for parts the loss ignores."""
    axis = b.axis("axis", 0)
    parts = [b.gradient_or_zeros(i) for i in range(len(b.node.outputs))]
    shape = b.input(0).shape
    return [b.builder.combined("Concat", parts, axis=axis, shape=shape)]


@register("Expand")
def expand(b: Backward) -> Gradients:
    """`y = x` broadcast: `g` summed over the broadcast axes."""
    return [b.sum_to_shape(b.gradient(), b.input(0))]


refuses("Tile")(lambda node: unknown_rank(node, 0))


@register("Tile")
def tile(b: Backward) -> Gradients:
    """`y = x` repeated `r` times per axis: `g` as `[r0, d0, r1, d1, ...]`, summed over `r`."""
    x, repeats = b.input(0), b.array(1)
    rank = b.rank()
    if rank == 0:
        return [b.gradient()]
    interleaved: list[Size] = []
    axes: list[int] = []
    for axis in range(rank):
        if repeats is not None and int(repeats[axis]) == 1:  # no axis of its own to sum over
            interleaved.append(length(b, x, axis))
            continue
        if repeats is None:
            here = b.ints(axis)
            count: Size = b.op("Gather", b.input(1), here, axis=0, dtype=INT64, shape=[1])
        else:
            count = int(repeats[axis])
        axes.append(len(interleaved))
        interleaved += [count, length(b, x, axis)]
    if not axes:
        return [b.gradient()]
    g = b.op("Reshape", b.gradient(), joined(b, interleaved), allowzero=1)
    return [b.op("ReduceSum", g, b.ints(*axes), keepdims=0, shape=x.shape)]


@register("Trilu")
def trilu(b: Backward) -> Gradients:
    """`y = x` on one side of a diagonal, 0 elsewhere: the same for the gradient."""
    shape = b.input(0).shape
    upper = b.integer("upper", 1)
    return [b.op("Trilu", b.gradient(), b.optional(1), upper=upper, shape=shape)]


def _image(b: Backward) -> list[Size]:
    if b.rank() != 4:
        raise Refusal("its input does not have four dimensions")
    return [length(b, b.input(0), axis) for axis in range(4)]


@register("DepthToSpace")
def depth_to_space(b: Backward) -> Gradients:
    """`y = x` with blocks of channels moved to the image: the inverse move.

    DCR: SpaceToDepth is the inverse. CRD: `[N, C, H, b, W, b] -> [N, C, b, b, H, W]`.
    """
    block = b.integer("blocksize", 1)
    x = b.input(0)
    if b.text("mode", "DCR") == "DCR":
        return [b.op("SpaceToDepth", b.gradient(), blocksize=block, shape=x.shape)]
    batch, depth, height, width = _image(b)
    channels = computed(b, "Div", depth, block * block)
    split_shape = joined(b, [batch, channels, height, block, width, block])
    g = b.op("Reshape", b.gradient(), split_shape, allowzero=1)
    g = b.op("Transpose", g, perm=[0, 1, 3, 5, 2, 4])
    return [b.op("Reshape", g, joined(b, [batch, depth, height, width]), allowzero=1)]


@register("SpaceToDepth")
def space_to_depth(b: Backward) -> Gradients:
    """`y = x` with blocks of the image moved to the channels: DepthToSpace (DCR) is the inverse."""
    block = b.integer("blocksize", 1)
    g = b.gradient()
    return [b.op("DepthToSpace", g, blocksize=block, mode="DCR", shape=b.input(0).shape)]
