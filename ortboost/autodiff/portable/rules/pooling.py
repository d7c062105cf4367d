r"""Pooling over windows (:mod:`~ortboost.autodiff.portable.rules.windows`) and global pooling."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import column_major, refusal_of, unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rules.windows import Window, transposed_conv, window_of
from ortboost.autodiff.sizes import wider
from ortboost.graph.formulas import Term
from ortboost.graph.query import fixed_lengths, known_shape

__all__: list[str] = []

_INT64 = ir.DataType.INT64
_WINDOW = ("kernel_shape", "strides", "dilations", "pads", "auto_pad", "ceil_mode")


@refuses("AveragePool", "LpPool")
def _condition(node: ir.Node) -> str | None:
    return refusal_of(window_of, node)


refuses("MaxPool")(column_major)


@register("MaxPool")
def max_pool(b: Backward) -> Gradients:
    r"""The gradient of a window goes to its first maximum, as in onnxruntime.

        gx[i] = sum_{o: argmax_o = i} g[o]

    `argmax` is the second output of MaxPool: positions in the flattened tensor.
    """
    g, x = b.gradient(), b.input(0)
    flat = b.ints(-1)
    values = b.op("Reshape", g, flat)
    size = b.op("Reshape", b.op("Size", x), flat)
    zeros = b.filled(0, size)
    b.node.attributes.pop("storage_order", None)  # refused if other nodes read the indices
    indices = b.extra_output(1, _INT64, b.output().shape)
    indices = b.op("Reshape", indices, flat)
    # Added, not written: windows may overlap. For a window of NaN alone, onnxruntime 1.19 gives -1,
    # which counts from the end: it does not write out of bounds as MaxPoolGrad does.
    added = b.op("ScatterElements", zeros, indices, values, axis=0, reduction="add")
    return [b.op("Reshape", added, b.shape_of(x), shape=x.shape, allowzero=1)]


@register("AveragePool")
def average_pool(b: Backward) -> Gradients:
    r"""`y[o] = c[o] sum_t x[o s - p + t d]`: `gx = conv^T(c g)`.

    `c` is the reciprocal of the number of positions counted. The operator itself gives it: for an
    image of ones it returns `c[o]` times the number of positions inside. Each channel is a separate
    convolution with a weight of ones.
    """
    g, x, window = b.gradient(), b.input(0), window_of(b)
    if not window.padded and not b.integer("ceil_mode", 0):
        shares = b.const(1.0 / math.prod(window.kernel))
    else:
        shares = _shares(b, x)
    scaled = b.op("Mul", g, shares, shape=b.output().shape)
    return [_transposed_conv_planes(b, scaled, window)]


def _image_of_ones(b: Backward, x: ir.Value) -> ir.Value:
    """``[1, 1, L...]``."""
    lengths = fixed_lengths(b.shape()[2:])
    if lengths is not None:
        return b.const(np.ones((1, 1, *lengths)))
    plane = b.op("Concat", b.ints(1, 1), b.shape_of(x, 2), axis=0)
    return b.op("Expand", b.const(1.0), plane)


def _shares(b: Backward, x: ir.Value) -> ir.Value:
    """`c[o]`, ``[1, 1, O...]``."""
    ones = _image_of_ones(b, x)
    pooled = b.op("AveragePool", ones, **b.node.attributes)
    # The sum over each window: LpPool with p = 1 of positive values.
    kept = {name: a for name, a in b.node.attributes.items() if name in _WINDOW}
    return b.op("Div", pooled, b.op("LpPool", ones, p=1, **kept))


def _transposed_conv_planes(b: Backward, g: ir.Value, window: Window) -> ir.Value:
    """:func:`transposed_conv` of each channel separately, with a weight of ones.

    With ``ceil_mode`` the last window may extend past the image; positions outside are cropped.
    """
    x = b.input(0)
    image = _planes(b, x)
    overhang = bool(b.integer("ceil_mode", 0))
    ones = b.const(np.ones((1, 1, *window.kernel)))
    back = transposed_conv(b, _planes(b, g), ones, window, image, overhang=overhang)
    return b.op("Reshape", back, b.shape_of(x), shape=x.shape, allowzero=1)


def _planes(b: Backward, value: ir.Value) -> ir.Value:
    """``[N, C, L...] -> [N C, 1, L...]``."""
    shape = known_shape(value)
    lengths = fixed_lengths(shape[2:]) if shape else None
    if lengths is not None and all(lengths):
        return b.op("Reshape", value, b.ints(-1, 1, *lengths), shape=(None, 1, *lengths))
    first = b.op("Mul", b.shape_of(value, 0, 1), b.shape_of(value, 1, 2))
    dims = b.op("Concat", first, b.ints(1), b.shape_of(value, 2), axis=0)
    rest = [None] * (b.rank() - 2)
    return b.op("Reshape", value, dims, shape=(None, 1, *rest), allowzero=1)


@register("LpPool")
def lp_pool(b: Backward) -> Gradients:
    r"""`y = (sum_t |x|^p)^(1/p)`: `gx = sign(x) |x|^(p-1) conv^T(g y^(1-p))`, 0 where `y = 0`."""
    return [_lp_gradient(b, _transposed_conv_planes(b, _over_norm(b), window_of(b)))]


@register("GlobalLpPool")
def global_lp_pool(b: Backward) -> Gradients:
    r"""`y = (sum |x|^p)^(1/p)`: `gx = sign(x) |x|^(p-1) g y^(1-p)`, 0 where `y = 0`."""
    return [_lp_gradient(b, _over_norm(b))]


def _over_norm(b: Backward) -> ir.Value:
    """`g y^(1-p)`, 0 where `y = 0`."""
    p, shape = b.integer("p", 2), b.output().shape
    g, y = (Term(b, value, shape) for value in (b.gradient(), b.output()))
    if p == 1:
        return g.value
    power = y if p == 2 else y.call("Pow", float(p - 1))
    return (y > 0.0).where(g / power, 0.0).value


def _lp_gradient(b: Backward, each: ir.Value) -> ir.Value:
    """`sign(x) |x|^(p-1)` times the value of each position."""
    x, p = Term(b, b.input(0), b.input(0).shape), b.integer("p", 2)
    factor = x if p == 2 else x.call("Sign")
    if p > 2:
        factor = factor * x.call("Abs").call("Pow", float(p - 1))
    return (factor * each).value


refuses("GlobalAveragePool")(lambda node: unknown_rank(node, 0))


@register("GlobalAveragePool")
def global_average_pool(b: Backward) -> Gradients:
    r"""`y = 1/n sum x` over the spatial axes: `gx = g / n` everywhere."""
    x, dtype = b.input(0), wider(b.dtype)
    g, shape = b.cast(b.gradient(), dtype), b.output().shape
    lengths = fixed_lengths(b.shape()[2:])
    if lengths is not None:
        share = b.op("Mul", g, b.const(1.0 / max(math.prod(lengths), 1), dtype), shape=shape)
    else:
        count = b.op("ReduceProd", b.shape_of(x, 2), keepdims=0)
        share = b.op("Div", g, b.cast(count, dtype), shape=shape)
    return [b.op("Expand", b.cast(share), b.shape_of(x), shape=x.shape)]


@register("GlobalMaxPool")
def global_max_pool(b: Backward) -> Gradients:
    r"""The gradient goes to the first maximum of each channel."""
    g, x = b.gradient(), b.input(0)
    # A comparison of positions, not of values: of equal maxima, only the first gets the gradient.
    flat = b.op("Flatten", x, axis=2)  # [N C, S]
    first = b.op("ArgMax", flat, axis=1, keepdims=1)  # [N C, 1]
    length = b.op("Squeeze", b.shape_of(flat, 1, 2))
    zero, one = b.const(0, _INT64), b.const(1, _INT64)
    positions = b.op("Range", zero, length, one)
    chosen = b.op("Equal", first, positions)
    each = b.op("Flatten", g, axis=2)
    scattered = b.op("Where", chosen, each, b.const(0.0))
    return [b.op("Reshape", scattered, b.shape_of(x), shape=x.shape, allowzero=1)]
