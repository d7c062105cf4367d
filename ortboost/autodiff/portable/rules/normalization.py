r"""Normalizations.

With `x̂ = (x - mean) r`, `r = 1 / sqrt(var + epsilon)`, statistics over `m` elements, and `g` the
gradient of `x̂`, the gradient including the path through the statistics is

    gx = r (g - mean(g) - x̂ mean(g x̂))
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import unknown_rank
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rewrites.batch_norm import batch_centered
from ortboost.graph.formulas import Term
from ortboost.graph.query import constant, known_shape, producer_of, static_shape
from ortboost.graph.reach import ancestors
from ortboost.graph.rewriting import Refusal

__all__ = ["absorbed"]


refuses("BatchNormalization")(lambda node: unknown_rank(node, 0))


@register("BatchNormalization")
def batch_norm(b: Backward) -> Gradients:
    r"""`y = scale x̂ + bias` per channel, with statistics of the batch or stored ones.

        gbias = sum(g)    gscale = sum(g x̂) = r sum(g (x - mean))

    With stored statistics, `gx = scale r g`. With those of the batch, `m` elements per channel,

        gx = scale r (g - [(gscale / m) x̂ + gbias / m])

    `x̂`, the bracket and the factor before it are BatchNormalizations in inference mode with other
    scales and means: the fastest operator for a multiply-add per channel. `x̂` is recomputed:
    nothing is kept from the forward pass, and few vectors are needed (for small images, each costs
    as much as a pass over the image). The factor comes last, so that a convolution can absorb it
    (:func:`absorbed`).
    """
    g, x, scale, mean, variance = b.gradient(), b.input(0), b.input(1), b.input(3), b.input(4)
    epsilon, vector, shape = b.number("epsilon", 1e-5), scale.shape, b.input(0).shape
    through = batch_centered(b.node) is not None  # through the statistics of the batch
    if not through:  # the search is long: not for every batch normalization of a deep network
        nodes = ancestors([mean, variance])
        sources = [mean, variance, *(v for node in nodes for v in node.inputs if v is not None)]
        if {value.name for value in sources} & b.active:
            # their gradient would be lost silently
            raise Refusal("its statistics depend on trained values; write it as Sub, Div, Mul, Add")
    # The statistics get no gradient of their own: that of the data contains it.
    grads: list[ir.Value | None] = [None] * 5
    none = _filled(b, scale, 0.0)

    def affine(
        data: ir.Value, factor: ir.Value, offset: ir.Value = none, center: ir.Value = none
    ) -> ir.Value:
        """`(data - center) factor / sqrt(variance + epsilon) + offset`."""
        inputs = (data, factor, offset, center, variance)
        return b.op("BatchNormalization", *inputs, epsilon=epsilon, shape=shape)

    axes = b.ints(0, *range(2, b.rank()))
    # The gradient of the data needs both sums, whether or not scale and bias are trained.
    needs_gscale = b.needs_gradient(1) or (through and b.needs_gradient(0))
    if b.needs_gradient(2) or needs_gscale:
        grads[2] = b.op("ReduceSum", g, axes, keepdims=0, shape=vector)
    if needs_gscale:
        normal = affine(x, _filled(b, scale, 1.0), none, mean)
        product = b.op("Mul", g, normal, shape=shape)
        grads[1] = b.op("ReduceSum", product, axes, keepdims=0, shape=vector)
    if not b.needs_gradient(0):
        return grads
    gbias, gscale = grads[2], grads[1]
    if not through or gbias is None or gscale is None:
        grads[0] = affine(g, scale)
        return grads
    count = _count(b, x, scale)
    mean_g, mean_gx = (b.op("Div", part, count, shape=vector) for part in (gbias, gscale))
    bracket = affine(x, mean_gx, mean_g, mean)
    grads[0] = affine(b.op("Sub", g, bracket, shape=shape), scale)
    return grads


def absorbed(b: Backward, g: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Split a gradient into a tensor and ``[C]`` factors, if it is such a product.

    Only the gradient of a batch normalization whose factor comes last is recognized. It must be
    called before any other node reads the gradient.
    """
    node = producer_of(g, "BatchNormalization")
    if node is None or node.attributes.get_int("training_mode", 0) == 1:
        return None
    data, scale, variance = node.inputs[0], node.inputs[1], node.inputs[4]
    offsets = [constant(value) for value in node.inputs[2:4] if value is not None]
    if any(array is None or array.any() for array in offsets):
        return None
    if data is None or scale is None or variance is None:
        return None
    epsilon = b.const(node.attributes.get_float("epsilon", 1e-5), variance.dtype)
    deviation = b.op("Sqrt", b.op("Add", variance, epsilon), shape=scale.shape)
    return data, b.op("Div", scale, deviation, shape=scale.shape)


def _filled(b: Backward, like: ir.Value, value: float) -> ir.Value:
    """A vector filled with a number, constant if its length is known."""
    shape, dtype = static_shape(like), like.dtype or b.dtype
    if shape is not None:
        return b.const([value] * shape[0], dtype)
    return b.filled(value, b.shape_of(like), dtype, like.shape)


def _count(b: Backward, x: ir.Value, statistic: ir.Value) -> ir.Value:
    """Number of elements that each statistic is computed from."""
    whole, part = static_shape(x), static_shape(statistic)
    if whole is not None and part is not None and 0 not in part:
        return b.const(float(np.prod(whole, dtype=np.int64) // np.prod(part, dtype=np.int64)))
    # Only the batch is unknown: the count is batch * inner, shared by all layers of that size.
    int64 = ir.DataType.INT64
    dims = known_shape(x) or ()
    named = [axis for axis, dim in enumerate(dims) if isinstance(dim, str)]
    known = math.prod(dim for dim in dims if isinstance(dim, int))
    divides = part is not None and 0 not in part and known % math.prod(part) == 0
    if divides and len(named) == 1 and None not in dims:
        (axis,) = named
        inner = known // math.prod(part or ())

        def number() -> ir.Value:
            batch = b.op("Squeeze", b.shape_of(x, axis, axis + 1), shape=[])
            all_of_them = b.op("Mul", batch, b.const(inner, int64), shape=[])
            return b.cast(all_of_them)

        return b.builder.shared(("count", dims[axis], inner, b.dtype), number)
    size, numbers = (b.op("Size", value, shape=[]) for value in (x, statistic))
    one = b.builder.const(1, int64)
    count = b.op("Div", size, b.op("Max", numbers, one), shape=[])
    return b.cast(count)


@refuses("LayerNormalization")
def _layer_norm_refused(node: ir.Node) -> str | None:
    data = node.inputs[0]
    if data is not None and data.dtype == ir.DataType.DOUBLE:
        return "its mean is float32 although its input is float64; use float32"
    return unknown_rank(node, 0)


@register("LayerNormalization")
def layer_norm(b: Backward) -> Gradients:
    r"""`y = scale x̂ + bias`, with statistics over the last axes, `m` elements.

        gbias = g    gscale = g x̂, both summed over the axes along which they were broadcast
        gx = r (scale g - mean(scale g) - x̂ mean(scale g x̂))

    The gradients of the outputs mean (`gm`) and `r` (`gr`) add `(gm - gr r^2 x̂) / m`, so that

        gx = r (scale g - [mean(scale g) - gm / (m r)] - x̂ [mean(scale g x̂) + gr r / m])
    """
    scale, bias, axes = b.input(1), b.optional(2), b.ints(*range(b.axis(), b.rank()))
    x, g = Term(b, b.input(0), b.input(0).shape), Term(b, b.gradient_or_zeros(0), b.input(0).shape)
    mean, inverse = b.output(1), Term(b, b.output(2), b.output(1).shape)
    normal = (x - mean) * inverse
    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(1):
        grads[1] = b.sum_to_shape((g * normal).value, scale)
    if bias is not None and b.needs_gradient(2):
        grads[2] = b.sum_to_shape(g.value, bias)
    if not b.needs_gradient(0):
        return grads[: len(b.node.inputs)]

    def row_mean(term: Term) -> Term:
        kept = b.op("ReduceMean", term.value, axes, keepdims=1, shape=mean.shape)
        return Term(b, kept, mean.shape)

    inner = g * scale  # the gradient of the normalized input
    pulled, moment = row_mean(inner), row_mean(inner * normal)
    by_mean, by_inverse = b.gradients[1], b.gradients[2]
    if by_mean is not None:
        pulled = pulled - Term(b, by_mean, mean.shape) / (inverse * _count(b, x.value, mean))
    if by_inverse is not None:
        moment = moment + inverse * by_inverse / _count(b, x.value, mean)
    grads[0] = ((inner - pulled - normal * moment) * inverse).value
    return grads[: len(b.node.inputs)]
