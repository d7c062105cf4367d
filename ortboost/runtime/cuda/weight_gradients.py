r"""Weight gradients of convolutions in forms that are fast on a GPU.

**Few input channels.** The step computes the gradient of the first layer, whose images have three
channels, as a convolution of batch and channels swapped, whose kernel is as large as an image
(:mod:`ortboost.autodiff.portable.rules.swapped`). cuDNN has no fast algorithm for it. Here the
elements under each window are moved to channels by a convolution with the identity matrix, and one
matrix product over the whole batch does the rest:

    gw[m, (c, t)] = sum_{n, o} g[n, m, o] seen[n, (c, t), o],    seen = Conv(x, identity)

**Padding.** A gradient with one product per tap pads the image after its channels were moved to the
last axis. The provider has a fast kernel for padding the last two axes of four only, so the image
is padded first.

Milliseconds before and after in a step of ResNet-50, float16, batch 128 on an H200:

    weights of 3 -> 64 channels, 7x7 / 2, of 224x224     24.2    3.4 (one product for each image)
    all 16 paddings                                      26.2    1.3
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import (
    constant,
    fixed_lengths,
    known_shape,
    permutation,
    producer_of,
    sole_consumer,
    static_shape,
)
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["pad_before_transpose", "patches_of_few_channels"]

_ELEMENTS = 512  # of a window: the identity matrix has the square of this


def patches_of_few_channels(model: ir.Model) -> bool:
    """Replace swapped convolutions of few channels by matrix products; True if there was one."""
    rules = dict.fromkeys(("Transpose", "Slice"), _patches)
    return rewrite_nodes(model, "patches", rules).modified


def pad_before_transpose(model: ir.Model) -> bool:
    """Pad the last two axes of four where a Transpose moves others there; True if there was one."""
    return rewrite_nodes(model, "pads", {"Pad": _pad_first}).modified


def _swap(node: ir.Node | None) -> ir.Value | None:
    """The input of a Transpose that swaps the first two axes."""
    perm = permutation(node)
    if node is None or perm is None or perm != [1, 0, *range(2, len(perm))]:
        return None
    return node.inputs[0]


def _patches(site: Site) -> list[ir.Value | None] | None:
    """`gw[m, c, t] = sum_{n, o} g[n, m, o] x[n, c, o s - p + t d]`, from the result backwards."""
    node = site.node
    swapped = _swap(_turned(node))
    guard = producer_of(swapped, "Where")  # of an empty batch
    if guard is not None and not _is_not_empty(guard.inputs[0]):
        return None
    conv = producer_of(swapped if guard is None else guard.inputs[1], "Conv")
    if conv is None or len(conv.inputs) != 2 or conv.attributes.get_int("group", 1) != 1:
        return None
    x, g = (_swap(producer_of(value, "Transpose")) for value in conv.inputs)
    taps = static_shape(node.outputs[0])
    image, windows = (None if v is None else known_shape(v) for v in (x, g))
    if x is None or g is None or taps is None or image is None or windows is None:
        return None
    sizes, counts = fixed_lengths(image[1:]), fixed_lengths(windows[1:])
    if sizes is None or counts is None:
        return None
    channels, kernel, outputs = sizes[0], taps[2:], counts[0]
    size, spatial = channels * math.prod(kernel), len(kernel)
    order = [1, 0, *range(2, 2 + spatial)]
    # Stride and dilation are swapped, too.
    strides = [int(v) for v in conv.attributes.get_ints("dilations", None) or [1] * spatial]
    dilations = [int(v) for v in conv.attributes.get_ints("strides", None) or [1] * spatial]
    pads = [int(v) for v in conv.attributes.get_ints("pads", None) or [0] * 2 * spatial]
    if conv.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or not 0 < size <= _ELEMENTS:
        return None
    seen_lengths = [
        (sizes[1 + a] + pads[a] + pads[a + spatial] - dilations[a] * (kernel[a] - 1) - 1)
        // strides[a] + 1
        for a in range(spatial)
    ]  # fmt: skip
    if seen_lengths != list(counts[1:]):
        return None
    unit = np.eye(size).reshape(size, channels, *kernel)
    seen = site.op(
        "Conv", x, site.const(unit, x.dtype), strides=strides, dilations=dilations, pads=pads
    )
    rows = [
        site.op("Reshape", site.op("Transpose", value, perm=order), site.ints(number, -1))
        for value, number in ((g, outputs), (seen, size))
    ]
    # Over images and positions at once: a sum for each image would be rounded to 16 bits.
    found = site.op("MatMul", rows[0], site.op("Transpose", rows[1], perm=[1, 0]))  # [M, C T]
    if guard is not None:
        found = site.op("Where", guard.inputs[0], found, guard.inputs[2], dtype=x.dtype)
    return [site.op("Reshape", found, site.ints(*taps), shape=taps)]


def _turned(node: ir.Node) -> ir.Node | None:
    """The Transpose whose result is the gradient, if it ends with this node."""
    if node.op_type == "Slice":  # crops positions that no window covers
        starts = constant(node.inputs[1])
        begins = starts is not None and not starts.any() and len(node.inputs) == 4
        return producer_of(node.inputs[0], "Transpose") if begins else None
    reader = sole_consumer(node.outputs[0])
    # With a Slice after it, it is replaced together with that.
    return None if reader is not None and reader.op_type == "Slice" else node


def _is_not_empty(value: ir.Value | None) -> bool:
    """Whether a condition is `Size(...) > 0`."""
    greater = producer_of(value, "Greater")
    return greater is not None and producer_of(greater.inputs[0], "Size") is not None


def _pad_first(site: Site) -> list[ir.Value | None] | None:
    turned, pads = producer_of(site.input(0), "Transpose"), site.array(1)
    perm = permutation(turned)
    if turned is None or perm is None or pads is None or len(pads) != 8:
        return None
    if sole_consumer(turned.outputs[0]) is not site.node or site.optional(3) is not None:
        return None
    if site.text("mode", "constant") != "constant":
        return None
    before = np.zeros(8, np.int64)  # of the axes of the input of the Transpose
    for axis, source in enumerate(perm):
        before[source], before[source + 4] = pads[axis], pads[axis + 4]
    if before[[0, 1, 4, 5]].any():
        return None
    x = turned.inputs[0]
    padded = site.op("Pad", x, site.ints(*before.tolist()), site.optional(2))
    shape = site.node.outputs[0].shape
    return [site.op("Transpose", padded, perm=perm, shape=shape)]
