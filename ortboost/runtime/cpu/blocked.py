"""Convolutions in the blocked layout of the CPU provider, with variable weights.

onnxruntime's own optimizer converts a convolution to this layout (``[N, C/B, H, W, B]``, one
register of channels innermost) only if its weights are constants; in a step they are not. Its
operators can be used directly: ``ReorderInput``, ``Conv`` and ``ReorderOutput`` of the domain
``com.microsoft.nchwc``, with standard operators that reorder the weight. Microseconds on one thread
including all reordering, batch 32:

    layer                            1.19             1.31
    24 groups of 1, 16x16, 3x3       417 -> 121       382 -> 139
    48 groups of 1, 8x8, 3x3         358 ->  48       342 ->  46
    C 16, M 16, 32x32, 3x3          1656 -> 1346     1598 -> 1066
    C 32, M 32, 16x16, 3x3          1326 ->  842     1232 ->  804
    C 64, M 64, 8x8, 3x3            1120 ->  778     1042 ->  721
    C 3, M 16, 32x32, 7x7 / 2        657 ->  348      589 ->  336
    C 8, M 8, 8x8, 3x3                69 ->   47       68 ->   48
    C 16, M 32, 32x32, 1x1           225 ->  969      229 ->  413

The last line is the reason why 1x1 kernels are left alone. ``B`` depends on the processor and
cannot be queried: it is found by trial.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import (
    constant,
    fixed_lengths,
    is_standard,
    known_shape,
    permutation,
    producer_of,
    static_shape,
)
from ortboost.runtime.session import open_session

__all__ = ["DOMAIN", "QUARTER", "block_size", "blocked_convolutions", "reorder"]

DOMAIN = "com.microsoft.nchwc"
QUARTER = 4  # the number of channels of ReorderInput must be a multiple of this
_SIZES = (16, 8, 4)
_SMALLEST = 16  # positions of an output; with fewer, the reordering of the weight dominates
_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class _Layer:
    """A convolution: input and output channels, groups, kernel."""

    channels: int
    outputs: int
    groups: int
    kernel: tuple[int, ...]

    @property
    def depthwise(self) -> bool:
        return self.groups == self.channels == self.outputs


def blocked_convolutions(model: ir.Model) -> bool:
    """Convert convolutions to the blocked layout where that is faster; True if there was one.

    If the runtime does not support the layout, nothing is changed.
    """
    return bool(_candidates(model)) and _rewrite(model, block_size())


def _candidates(model: ir.Model) -> list[tuple[ir.Node, _Layer]]:
    found = ((node, _layer(node)) for node in model.graph)
    return [(node, layer) for node, layer in found if layer is not None]


def _layer(node: ir.Node) -> _Layer | None:
    if not is_standard(node, "Conv"):
        return None
    x, w = node.inputs[0], node.inputs[1]
    result = known_shape(node.outputs[0])
    image = None if x is None else known_shape(x)
    if x is None or w is None or image is None or result is None or len(result) != 4:
        return None
    sizes, channels = static_shape(w), image[1]
    if sizes is None or constant(w) is not None or not isinstance(channels, int):
        return None
    if x.dtype != _FLOAT or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    space = fixed_lengths(result[2:])
    if math.prod(sizes[2:]) == 1 or space is None or math.prod(space) < _SMALLEST:
        return None
    return _Layer(channels, sizes[0], node.attributes.get_int("group", 1), sizes[2:])


def _rewrite(model: ir.Model, block: int | None) -> bool:
    """Convert the convolutions whose channels fill blocks of this size."""
    if block is None:
        return False
    builder: Builder | None = None
    for node, layer in _candidates(model):
        if layer.depthwise:
            if layer.channels % QUARTER:
                continue
        else:
            # Fewer channels than a block are read as a plain image, without reordering.
            whole = layer.channels % block == 0 or layer.channels < block
            # Outputs are padded to whole blocks: below half a block, most of the work is padding.
            if layer.groups != 1 or not whole or layer.outputs < block // 2:
                continue
        builder = builder or Builder(model.graph, "ortboost/blocked")
        replace_node(node, [_blocked(node, layer, block, builder)], builder)
        model.opset_imports[DOMAIN] = 1
    return builder is not None


def reorder(builder: Builder, value: ir.Value) -> ir.Value:
    """Convert an image to the blocked layout, with channels padded by zeros."""
    return builder.op("ReorderInput", value, domain=DOMAIN)


def _blocked(node: ir.Node, layer: _Layer, block: int, builder: Builder) -> ir.Value:
    x, w, bias = (*node.inputs, None)[:3]
    assert x is not None  # see `_layer`
    assert w is not None
    outputs = -(-layer.outputs // block) * block  # whole blocks; the last is padded by zeros
    more = outputs - layer.outputs
    if layer.depthwise:  # [M, 1, k...] is reordered like an image with M channels
        flat = builder.op("Reshape", w, builder.ints(1, layer.channels, *layer.kernel))
        weight = reorder(builder, flat)
        weight = builder.op("Reshape", weight, builder.ints(outputs, 1, *layer.kernel))
    else:
        weight = _weight(builder, w, layer, block, outputs)
    if bias is not None and more:
        bias = builder.op("Pad", bias, builder.ints(0, more))
    thin = not layer.depthwise and layer.channels < block
    image = x if thin else reorder(builder, x)
    attributes: dict[str, Any] = {
        name: value for name, value in node.attributes.items() if name not in ("auto_pad", "group")
    }
    inputs = (image, weight) if bias is None else (image, weight, bias)
    groups = outputs if layer.depthwise else 1
    result = builder.op("Conv", *inputs, domain=DOMAIN, dtype=_FLOAT, group=groups, **attributes)
    return builder.op("ReorderOutput", result, domain=DOMAIN, channels=layer.outputs)


def _weight(builder: Builder, w: ir.Value, layer: _Layer, block: int, outputs: int) -> ir.Value:
    """``[M, C, k...] -> [M/B, C/B, k..., B of C, B of M]``.

    With fewer than B channels ``[M/B, C, k..., B]``. A single Transpose moves element by element,
    at 4.9 ns each; here ReorderInput moves the outputs innermost, and the rest moves runs of B
    elements: 1.3 ns each.
    """
    channels, kernel, taps = layer.channels, layer.kernel, math.prod(layer.kernel)
    if outputs > layer.outputs:
        w = builder.op("Pad", w, builder.ints(0, 0, 0, 0, outputs - layer.outputs, 0, 0, 0))
    elif channels % block == 0 and (turned := _before_turning(w, layer)) is not None:
        # Reorder the original instead: turning and then reordering would move everything twice.
        return _turned_weight(builder, turned, layer, block)
    if channels < block:
        apart = builder.op("Reshape", w, builder.ints(outputs // block, block, channels, *kernel))
        moved = builder.op("Transpose", apart, perm=[0, 2, 3, 4, 1])
    else:
        # As images whose channels are the outputs of a block: [M/B, C taps, B] after ReorderInput.
        images = (outputs // block, block, channels * taps, 1)
        inner = reorder(builder, builder.op("Reshape", w, builder.ints(*images)))
        runs = (outputs * channels // block**2, block, taps, block)
        apart = builder.op("Reshape", inner, builder.ints(*runs))
        moved = builder.op("Transpose", apart, perm=[0, 2, 1, 3])
    return builder.op("Reshape", moved, builder.ints(outputs, channels, *kernel))


def _before_turning(w: ir.Value, layer: _Layer) -> ir.Value | None:
    """The ``[C, M, k...]`` that the weight is made from by swapping channels and reversing taps.

    Such a weight is the kernel of the convolution that computes the gradient of an image.
    """
    gathered = producer_of(w, "Reshape")
    back = None if gathered is None else producer_of(gathered.inputs[0], "Gather")
    row = None if back is None else producer_of(back.inputs[0], "Reshape")
    swapped = None if row is None else producer_of(row.inputs[0], "Transpose")
    if back is None or swapped is None or back.attributes.get_int("axis", 0) != 2:
        return None
    original, order = swapped.inputs[0], constant(back.inputs[1])
    shape = (layer.channels, layer.outputs, *layer.kernel)
    if original is None or static_shape(original) != shape or permutation(swapped) != [1, 0, 2, 3]:
        return None
    taps = math.prod(layer.kernel)
    if order is None or not np.array_equal(order, np.arange(taps)[::-1]):
        return None
    return original


def _turned_weight(builder: Builder, w: ir.Value, layer: _Layer, block: int) -> ir.Value:
    """``[C, M, k...] -> [M/B, C/B, k... backwards, B of C, B of M]``."""
    channels, outputs, taps = layer.channels, layer.outputs, math.prod(layer.kernel)
    # M is the second axis here: each run of B of it is already the channels of an image.
    images = (channels * outputs // block, block, taps, 1)
    inner = reorder(builder, builder.op("Reshape", w, builder.ints(*images)))
    runs = (channels // block, block, outputs // block, taps, block)
    apart = builder.op("Reshape", inner, builder.ints(*runs))
    moved = builder.op("Transpose", apart, perm=[2, 0, 3, 1, 4])
    back = builder.op("Gather", moved, builder.ints(*reversed(range(taps))), axis=2)
    return builder.op("Reshape", back, builder.ints(outputs, channels, *layer.kernel))


@functools.cache
def block_size() -> int | None:
    """`B` of this processor and runtime; ``None`` if the layout is not supported."""
    # Not square, with uneven padding: a wrong block size or swapped axes cannot go unnoticed.
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 16, 5, 6] x, float[32, 16, 3, 2] w, float[32] b) => (float[N, 32, 4, 4] y)
    { y = Conv<pads = [1, 0, 0, 0], strides = [1, 1]>(x, w, b) }"""
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 16, 5, 6), "w": (32, 16, 3, 2), "b": (32,)}
    feeds = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes.items()}
    (expected,) = open_session(ir.from_onnx_text(text), device="cpu", threads=1).run(None, feeds)
    for size in _SIZES:
        model = ir.from_onnx_text(text)
        try:
            _rewrite(model, size)
            (found,) = open_session(model, device="cpu", threads=1).run(None, feeds)
        except Exception:  # the bindings raise bare exceptions of many kinds
            continue
        if found.shape == expected.shape and np.allclose(found, expected, atol=1e-4):
            return size
    return None
