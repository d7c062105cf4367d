r"""Convolutions.

Along each spatial axis, `y[n, m, o] = sum_{c, t} x[n, c, o s - p + t d] w[m, c, t]`.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortboost.autodiff.conditions import refusal_of
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rules.normalization import absorbed
from ortboost.autodiff.portable.rules.weight_gradient import weight_gradient
from ortboost.autodiff.portable.rules.windows import Window, transposed_conv, window_of
from ortboost.graph.query import fixed_lengths, known_shape, static_shape
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

# A convolution for the gradient of an image: minimum input channels, maximum output per input ones.
_MIN_INPUTS, _MAX_RATIO = 16, 4


@refuses("Conv", "ConvTranspose")
def _condition(node: ir.Node) -> str | None:
    window = window_of if node.op_type == "Conv" else _transposed_window
    return refusal_of(lambda site: window(site, 1), node)


@register("Conv")
def conv(b: Backward) -> Gradients:
    r"""A transposed convolution for the image, a correlation with the image for the weight.

        gx[n, c, i] = sum g[n, m, o] w[m, c, t]   over o s - p + t d = i
        gw[m, c, t] = sum_{n, o} g[n, m, o] x[n, c, o s - p + t d]
        gb[m] = sum_{n, o} g[n, m, o]

    If `g[n, m, o] = a[m] h[n, m, o]`, as before a batch normalization, the weight absorbs `a`:

        gx = conv^T(h, a w)    gw = a gw(h)
    """
    g, x, w = b.gradient(), b.input(0), b.input(1)
    window, groups = window_of(b, 1), b.integer("group", 1)
    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(2):
        grads[2] = _bias_gradient(b, g, b.input(2))
    # The bias needs g itself, so absorbing a would not save its product.
    parts = absorbed(b, g) if not b.needs_gradient(2) and _worth_absorbing(g, w) else None
    if parts is None:
        # The weight first: the gradient of the image is then not yet in memory, and the image no
        # longer needed when it is computed.
        if b.needs_gradient(1):
            grads[1] = weight_gradient(b, x, g, w, window, groups)
        if b.needs_gradient(0):
            grads[0] = _image_gradient(b, g, w, x, window, groups)
        return grads
    bare, factor = parts
    each = b.op("Unsqueeze", factor, b.ints(*range(1, 2 + window.spatial)))  # [M, 1, 1...]
    if b.needs_gradient(1):
        raw = weight_gradient(b, x, bare, w, window, groups)
        grads[1] = b.op("Mul", raw, each, shape=w.shape)
    if b.needs_gradient(0):
        scaled = b.op("Mul", w, each, shape=w.shape)
        grads[0] = _image_gradient(b, bare, scaled, x, window, groups)
    return grads


def _worth_absorbing(g: ir.Value, w: ir.Value) -> bool:
    """Whether a pass over the gradient costs more than two over the weight and a few small nodes.

    For 32 images the pass takes 48 microseconds at 16 channels, 32x32, and 9 at 128 channels, 2x2.
    """
    sizes, space = static_shape(w), fixed_lengths((known_shape(g) or ())[2:])
    if sizes is None or not space:
        return False
    windows = math.prod(space)
    # The pass over the gradient is long enough, and the weight small compared with the gradient.
    return sizes[0] * windows >= 4096 and 3 * math.prod(sizes[1:]) <= 16 * windows


def _image_gradient(
    b: Backward, g: ir.Value, w: ir.Value, x: ir.Value, window: Window, groups: int
) -> ir.Value:
    """A transposed convolution, or a convolution with the flipped kernel if that is faster.

    With a stride of 1 both are equivalent. The memory traffic of a convolution grows with the
    output channels `M`, that of a transposed one with the input channels `C`. With 16 of both,
    32x32, batch 32, they take 1.5 and 2.2 ms in onnxruntime 1.19, 1.5 and 1.2 in 1.31, and 0.8 and
    0.9 there on two threads: only the convolution uses all threads. With 24 depthwise channels,
    16x16: 0.34 and 0.35 on one thread, 0.18 and 0.34 on two.

    With more output than input channels, the time relative to the transposed convolution, in 1.31
    (1.19 is similar), 3x3: 0.61 from 128 to 64 channels of 64x64, 0.85 from 512 to 256 of 16x16,
    0.66 from 64 to 32 of 8x8, 1.0 from 96 to 24 of 28x28, 1.3 from 256 to 20, 1.7 from 64 to 8.
    """
    shape = known_shape(w) or (None,)
    outputs, inputs = shape[0], (known_shape(x) or (None, None))[1]
    # The convolution pads by reach - 1 - pad, which must not be negative.
    reaches = zip((*window.begins, *window.ends), 2 * window.reaches, strict=True)
    simple = set(window.strides) == {1} and all(pad < reach for pad, reach in reaches)
    if not (simple and isinstance(outputs, int) and isinstance(inputs, int)):
        return transposed_conv(b, g, w, window, x, groups)
    depthwise = groups == outputs == inputs
    narrow = outputs > inputs and (inputs < _MIN_INPUTS or outputs > _MAX_RATIO * inputs)
    dense = groups == 1 and (window.pointwise or not narrow)
    if not (depthwise or dense):
        return transposed_conv(b, g, w, window, x, groups)
    order = [1, 0, *range(2, 2 + window.spatial)]
    kernel, sizes = w, list(shape[:2])
    if not depthwise:  # [M, C, k...] -> [C, M, k...]
        sizes.reverse()
        kernel = b.op("Transpose", w, perm=order, shape=[*sizes, *window.kernel])
    taps = math.prod(window.kernel)
    if taps > 1:
        # flip the kernel: flatten its taps and gather them in reverse order
        row = b.op("Reshape", kernel, b.ints(0, 0, taps))
        back = b.op("Gather", row, b.ints(*reversed(range(taps))), axis=2)
        kernel = b.op("Reshape", back, b.ints(0, 0, *window.kernel), shape=[*sizes, *window.kernel])
    pads = [r - 1 - p for p, r in zip(window.pads, 2 * window.reaches, strict=True)]
    attributes = {**window.attributes(), "pads": pads, "group": groups}
    return b.op("Conv", g, kernel, shape=x.shape, **attributes)


def _bias_gradient(b: Backward, g: ir.Value, bias: ir.Value) -> ir.Value:
    axes = [0, *range(2, b.rank())]
    return b.op("ReduceSum", g, b.ints(*axes), keepdims=0, shape=bias.shape)


@register("ConvTranspose")
def conv_transpose(b: Backward) -> Gradients:
    r"""`y[n, m, i s - p + t d] += sum_c x[n, c, i] w[c, m, t]`, the transpose of a convolution.

        gx = conv(g, w)    gw[c, m, t] = sum_{n, i} x[n, c, i] g[n, m, i s - p + t d]

    The convolution has the same window, so `gw` is the weight gradient of a convolution of `g`
    whose output has gradient `x`.
    """
    g, x, w = b.gradient(), b.input(0), b.input(1)
    window, groups = _transposed_window(b, 1), b.integer("group", 1)
    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(0):
        grads[0] = b.op("Conv", g, w, group=groups, **window.attributes())
    if b.needs_gradient(1):
        grads[1] = weight_gradient(b, g, x, w, window, groups)
    if b.needs_gradient(2):
        grads[2] = _bias_gradient(b, g, b.input(2))
    return grads


def _transposed_window(site: Site, weight: int) -> Window:
    """The window of a ConvTranspose, whose ``auto_pad`` differs from that of a Conv."""
    if site.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or site.integers("output_shape"):
        raise Refusal("auto_pad and output_shape have no gradient here; export with explicit pads")
    window = window_of(site, weight)
    extra = site.integers("output_padding") or (0,) * window.spatial
    if any(e >= s for e, s in zip(extra, window.strides, strict=True)):
        raise Refusal("its output_padding is not below its stride; onnxruntime does not compute it")
    return window
