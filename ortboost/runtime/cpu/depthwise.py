"""The gradient of a depthwise weight as one convolution in the blocked layout.

The step contains it as a product and a sum for each tap. Here all images are stacked in one column,
separated by rows of zeros, and the column of the gradients is the kernel that slides over it:

    gw[c, t] = sum_r X[c, t d - p + r s] G[c, r]        r: rows of all images, and columns

with stride and dilation swapped. Microseconds before and after in onnxruntime 1.31, batch 32, 3x3:
835 and 364 for 24 channels of 16x16; 643 and 152 for 48 channels of 8x8. See
:mod:`~ortboost.runtime.cpu.blocked` for the layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder, replace_node
from ortboost.graph.patterns import Op, match
from ortboost.graph.query import (
    constant,
    fixed_lengths,
    input_at,
    known_shape,
    producer_of,
    static_shape,
)
from ortboost.runtime.cpu.blocked import DOMAIN, QUARTER, block_size, reorder

__all__ = ["depthwise_gradients"]

_SEEN = Op("Slice", "padded", "start", "end", "axes", "stride")
_TAP = Op("Unsqueeze", Op("ReduceSum", Op("Mul", _SEEN, "gradient"), "reduced"), "added")
_FIXED = {"axes": [2, 3], "reduced": [0, 2, 3], "added": [1]}
"""What the product of a tap and its sum look like; their constants, except for channels."""


@dataclass(frozen=True)
class _Products:
    """The common data of the products of all taps."""

    image: ir.Value  # [N, C, H, W], before padding
    gradient: ir.Value  # [N, C, O, P]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    size: tuple[int, ...]  # H, W
    windows: tuple[int, ...]  # O, P
    channels: int

    @property
    def gap(self) -> tuple[int, int]:
        """Rows of zeros after each image and after each gradient.

        An image must start `stride` rows later for each row of its gradient (the pitch), and its
        windows must end before the next image.
        """
        stride = self.strides[0]
        # The rows that all windows of one image cover, and how far they go beyond it.
        reach = (self.windows[0] - 1) * stride + 1
        reach += (self.kernel[0] - 1) * self.dilations[0]
        above, below = self.begins[0], reach - self.begins[0] - self.size[0]
        # Between two images the zeros serve both, so the larger margin suffices.
        pitch = -(-(self.size[0] + max(above, below, 0)) // stride)
        pitch = max(pitch, self.windows[0])
        return pitch * stride - self.size[0], pitch - self.windows[0]

    @property
    def ends(self) -> tuple[int, int]:
        """Padding with which there is one position per tap; negative if impossible."""
        reaches = [(k - 1) * d for k, d in zip(self.kernel, self.dilations, strict=True)]
        # The kernel moves in steps of d to k = (length + padding - span) / d + 1 positions. The
        # column of images is `stride - 1` rows longer than the span of that of the gradients.
        span = (self.windows[1] - 1) * self.strides[1] + 1
        rows = reaches[0] - (self.strides[0] - 1) - self.begins[0]
        columns = reaches[1] + span - self.size[1] - self.begins[1]
        return rows, columns


def depthwise_gradients(model: ir.Model) -> bool:
    """Write gradients of depthwise weights as convolutions in the blocked layout; True if any was.

    If the runtime does not support the layout, nothing is changed.
    """
    found = [
        (node, products)
        for node in model.graph
        if node.op_type == "Reshape" and (products := _products(node)) is not None
    ]
    block = block_size() if found else None
    if block is None:
        return False
    builder = Builder(model.graph, "ortboost/depthwise")
    for node, products in found:
        replace_node(node, [_convolution(products, block, builder)], builder)
    model.opset_imports[DOMAIN] = 1
    return True


def _products(node: ir.Node) -> _Products | None:
    """Match a Reshape that is the gradient of a depthwise weight, computed tap by tap."""
    joined, sizes = producer_of(node.inputs[0], "Concat"), static_shape(node.outputs[0])
    if joined is None or sizes is None or len(sizes) != 4 or sizes[1] != 1 or sizes[0] % QUARTER:
        return None
    kernel = sizes[2:]
    taps = [tap for value in joined.inputs if (tap := match(value, _TAP)) is not None]
    if not len(taps) == len(joined.inputs) == math.prod(kernel) or min(kernel) < 2:
        return None
    padded, gradient = taps[0]["padded"], taps[0]["gradient"]
    same = all(tap["padded"] is padded and tap["gradient"] is gradient for tap in taps)
    read = {name: [_integers(tap[name]) for tap in taps] for name in (*_FIXED, "start", "stride")}
    if not same or any(read[name] != [axes] * len(taps) for name, axes in _FIXED.items()):
        return None
    # The tap (0, ..., 0) starts at 0, the last one at (k - 1) d: that gives the dilations. Then all
    # starts must be those of this grid, and all strides the same.
    last, strides = read["start"][-1], read["stride"][0]
    if not len(last) == len(strides) == len(kernel):  # one is not constant
        return None
    dilations = tuple(a // (k - 1) for a, k in zip(last, kernel, strict=True))
    grid = [[i * d for i, d in zip(tap, dilations, strict=True)] for tap in np.ndindex(*kernel)]
    if read["start"] != grid or read["stride"] != [strides] * len(taps):
        return None
    image, begins = _unpadded(padded)
    size, windows = _space(image, sizes[0]), _space(gradient, sizes[0])
    if size is None or windows is None or gradient.dtype not in (None, ir.DataType.FLOAT):
        return None
    products = _Products(
        image, gradient, kernel, tuple(strides), dilations, begins, size, windows, sizes[0]
    )
    return products if min(products.ends) >= 0 and min(products.gap) >= 0 else None


def _integers(value: ir.Value) -> list[int]:
    """The numbers of a constant; none of any other value."""
    array = constant(value)
    return [] if array is None else [int(number) for number in array.reshape(-1)]


def _unpadded(padded: ir.Value) -> tuple[ir.Value, tuple[int, ...]]:
    """The image before padding, and the padding at the begin of its axes."""
    pad = producer_of(padded, "Pad")
    pads = None if pad is None else constant(input_at(pad, 1))
    plain = pad is not None and len(pad.inputs) == 2 and not pad.attributes
    if pad is None or pads is None or not plain or pad.inputs[0] is None or pads.size != 8:
        return padded, (0, 0)
    if pads.min() < 0 or pads[[0, 1, 4, 5]].any():
        return padded, (0, 0)
    return pad.inputs[0], tuple(int(p) for p in pads[2:4])


def _space(value: ir.Value, channels: int) -> tuple[int, ...] | None:
    """Height and width, if they are known and the channels match."""
    shape = known_shape(value)
    if shape is None or len(shape) != 4 or shape[1] != channels:
        return None
    lengths = fixed_lengths(shape[2:])
    return lengths if lengths is not None and min(lengths) > 0 else None


def _convolution(p: _Products, block: int, builder: Builder) -> ir.Value:
    # All images are one column [1, C, N (H + gap), W]; the kernel is as tall as all gradients.
    channels = -(-p.channels // block) * block
    image = _column(builder, p.image, p.gap[0], p.channels, p.size[1])
    kernel = _column(builder, p.gradient, p.gap[1], p.channels, p.windows[1])
    weight = builder.op("Reshape", kernel, builder.ints(channels, 1, -1, p.windows[1]))
    result = builder.op(
        "Conv",
        image,
        weight,
        domain=DOMAIN,
        group=channels,
        strides=list(p.dilations),
        dilations=list(p.strides),
        pads=[*p.begins, *p.ends],
    )
    plain = builder.op("ReorderOutput", result, domain=DOMAIN, channels=p.channels)
    return builder.op("Reshape", plain, builder.ints(p.channels, 1, *p.kernel))


def _column(builder: Builder, value: ir.Value, gap: int, channels: int, width: int) -> ir.Value:
    """``[N, C, H, W] -> [1, C, N (H + gap), W]``, blocked."""
    if gap:
        value = builder.op("Pad", value, builder.ints(0, 0, 0, 0, 0, 0, gap, 0))
    turned = builder.op("Transpose", value, perm=[1, 0, 2, 3])
    return reorder(builder, builder.op("Reshape", turned, builder.ints(1, channels, -1, width)))
