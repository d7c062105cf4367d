"""The weight gradient of any form of convolution, as another convolution."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward
from ortboost.autodiff.portable.rules.windows import Window
from ortboost.graph.query import known_shape

__all__ = ["swapped"]

_INT64 = ir.DataType.INT64


def swapped(
    b: Backward, x: ir.Value, g: ir.Value, w: ir.Value, window: Window, groups: int
) -> ir.Value:
    r"""A convolution with batch and channels swapped, and stride and dilation swapped.

        gw[m, c, t] = sum_{n, o} x'[c, n, t d - p + o s] g'[m, n, o]

    If the last windows do not reach the end of the image, the result has extra taps, which are
    cropped.
    """
    spatial = window.spatial
    order = [1, 0, *range(2, 2 + spatial)]
    image = b.op("Transpose", x, perm=order) if groups == 1 else _grouped(b, x, groups)
    found = b.op(
        "Conv",
        image,  # [C/G, G N, L...]
        b.op("Transpose", g, perm=order),  # [M, N, O...]
        strides=list(window.dilations),
        dilations=list(window.strides),
        pads=window.pads,
        group=groups,
    )  # [C/G, M, k... and more]
    if not isinstance((known_shape(x) or (None,))[0], int):
        # onnxruntime 1.31 leaves the output uninitialized if there are no channels to sum over
        some = b.op("Greater", b.op("Size", x), b.const(0, _INT64))
        found = b.op("Where", some, found, b.const(0.0))
    transposed = b.op("Transpose", found, perm=order)
    # Positions that no window covers make extra taps if they are as many as the dilation.
    lengths = (known_shape(x) or ())[2:]
    rests = [window.rest(axis, length) for axis, length in enumerate(lengths)]
    if all(r is not None and r < d for r, d in zip(rests, window.dilations, strict=True)):
        return transposed
    starts, axes = b.ints(*[0] * spatial), b.ints(*range(2, 2 + spatial))
    return b.op("Slice", transposed, starts, b.ints(*window.kernel), axes, shape=w.shape)


def _grouped(b: Backward, x: ir.Value, groups: int) -> ir.Value:
    """``[N, G C/G, L...] -> [C/G, G N, L...]``."""
    shape = known_shape(x) or ()
    space = b.shape_of(x, 2)
    batch = b.shape_of(x, 0, 1)
    channels = b.op("Div", b.shape_of(x, 1, 2), b.ints(groups))
    split = b.op("Concat", batch, b.ints(groups), channels, space, axis=0)
    apart = b.op("Reshape", x, split)  # [N, G, C/G, L...]
    transposed = b.op("Transpose", apart, perm=[2, 1, 0, *range(3, len(shape) + 1)])
    images = b.op("Mul", batch, b.ints(groups))
    joined = b.op("Concat", channels, images, space, axis=0)
    return b.op("Reshape", transposed, joined)
