r"""Elementwise operators of several inputs, with numpy broadcasting, and casts.

`g` is the gradient of the output; a gradient is summed over the axes along which its input was
broadcast (:meth:`~ortboost.autodiff.portable.backward.Backward.sum_to_shape`).
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.graph.query import constant

__all__: list[str] = []


@register("Add")
def add(b: Backward) -> Gradients:
    """`y = a + c`: `ga = g`, `gc = g`."""
    g = b.gradient()
    return [b.sum_to_shape(g, b.input(i)) if b.needs_gradient(i) else None for i in (0, 1)]


@register("Sub")
def sub(b: Backward) -> Gradients:
    """`y = a - c`: `ga = g`, `gc = -g`."""
    g, ga, gc = b.gradient(), None, None
    if b.needs_gradient(0):
        ga = b.sum_to_shape(g, b.input(0))
    if b.needs_gradient(1):
        gc = b.op("Neg", b.sum_to_shape(g, b.input(1)), shape=b.input(1).shape)
    return [ga, gc]


@register("Mul")
def mul(b: Backward) -> Gradients:
    """`y = a c`: `ga = g c`, `gc = g a`."""
    g = b.gradient()
    grads: list[ir.Value | None] = [None, None]
    for own, other in ((0, 1), (1, 0)):
        if b.needs_gradient(own):
            product = b.op("Mul", g, b.input(other), shape=b.output().shape)
            grads[own] = b.sum_to_shape(product, b.input(own))
    return grads


@register("Div")
def div(b: Backward) -> Gradients:
    """`y = a / c`: `ga = g / c`, `gc = -(g / c) y`."""
    quotient = b.op("Div", b.gradient(), b.input(1), shape=b.output().shape)  # for both
    ga = b.sum_to_shape(quotient, b.input(0)) if b.needs_gradient(0) else None
    if not b.needs_gradient(1):
        return [ga, None]
    product = b.op("Mul", quotient, b.output(), shape=b.output().shape)
    return [ga, b.op("Neg", b.sum_to_shape(product, b.input(1)), shape=b.input(1).shape)]


@register("Neg")
def neg(b: Backward) -> Gradients:
    """`y = -x`: `-g`."""
    return [b.op("Neg", b.gradient(), shape=b.output().shape)]


@register("Identity")
def identity(b: Backward) -> Gradients:
    """`y = x`: `g`."""
    return [b.gradient()]


@register("Sum")
def sum_(b: Backward) -> Gradients:
    """`y = sum_i x_i`: `g` for each."""
    return [b.sum_to_shape(b.gradient(), v) if b.needs_gradient(i) else None for i, v in _inputs(b)]


@register("Mean")
def mean(b: Backward) -> Gradients:
    """`y = (1/n) sum_i x_i`: `g / n` for each."""
    share = b.const(1.0 / len(b.node.inputs))
    part = b.op("Mul", b.gradient(), share, shape=b.output().shape)
    return [b.sum_to_shape(part, v) if b.needs_gradient(i) else None for i, v in _inputs(b)]


def _inputs(b: Backward) -> list[tuple[int, ir.Value]]:
    return [(index, b.input(index)) for index in range(len(b.node.inputs))]


@register("Max", "Min")
def extremum(b: Backward) -> Gradients:
    """`y = max_i x_i`: `g [x_i = y] / n`, `n` the number of inputs equal to `y` there."""
    shape, g, y = b.output().shape, b.gradient(), b.output()
    if len(b.node.inputs) == 1:
        return [g]
    hits = [b.op("Equal", x, y, dtype=ir.DataType.BOOL, shape=shape) for _, x in _inputs(b)]
    counts = [b.cast(hit) for hit in hits]
    part = b.op("Div", g, b.op("Sum", *counts, shape=shape), shape=shape)
    return [
        b.sum_to_shape(b.masked(hits[i], part), x) if b.needs_gradient(i) else None
        for i, x in _inputs(b)
    ]


@register("Pow")
def pow_(b: Backward) -> Gradients:
    """`y = a^p`: `ga = g p a^(p-1)`, 0 where `p = 0`; `gp = g y log(a)`, 0 where `a = 0 <= p`.

    Constant scalar exponents: `2: 2 g a`, `1/2: g / (2 y)`, `-1: -g y^2`, `0: 0`.
    """
    g, y, shape = b.gradient(), b.output(), b.output().shape
    base, exponent = b.input(0), b.input(1)
    grads: list[ir.Value | None] = [None, None]
    if b.needs_gradient(0):
        grads[0] = b.sum_to_shape(_pow_base(b), base)
    if b.needs_gradient(1):
        power = b.cast(exponent)
        zero = b.const(0.0)
        # 0^p does not change with p > 0, but log(0) is infinite.
        flat = b.op(
            "And",
            b.op("Equal", base, zero, dtype=ir.DataType.BOOL, shape=base.shape),
            b.op("GreaterOrEqual", power, zero, dtype=ir.DataType.BOOL, shape=exponent.shape),
            shape=shape,
        )
        slope = b.op("Mul", y, b.op("Log", base, shape=base.shape), shape=shape)
        full = b.op("Mul", g, slope, shape=shape)
        found = b.sum_to_shape(
            b.op("Where", flat, zero, full, dtype=b.dtype, shape=shape), exponent
        )
        grads[1] = b.cast(found, exponent.dtype)
    return grads


def _pow_base(b: Backward) -> ir.Value:
    g, y, shape = b.gradient(), b.output(), b.output().shape
    base, exponent, number = b.input(0), b.input(1), constant(b.input(1))

    def times(left: ir.Value, right: ir.Value) -> ir.Value:
        return b.op("Mul", left, right, shape=shape)

    value = float(number.reshape(-1)[0]) if number is not None and number.size == 1 else None
    if value == 2.0:
        return times(g, times(base, b.const(2.0)))
    if value == 3.0:
        return times(g, times(times(base, base), b.const(3.0)))
    if value == 1.0:
        return g
    if value == 0.5:
        return b.op("Div", times(g, b.const(0.5)), y, shape=shape)
    if value == -1.0:
        return b.op("Neg", times(g, times(y, y)), shape=shape)
    if value == 0.0:  # 0 even where g is not finite
        return b.op("Where", b.const(False, ir.DataType.BOOL), g, b.const(0.0), dtype=b.dtype)
    if value is not None:
        lower = b.const(value - 1.0)
        return times(g, times(b.op("Pow", base, lower, shape=shape), b.const(value)))
    power = b.cast(exponent)
    lower = b.op("Sub", power, b.const(1.0), shape=exponent.shape)
    slope = times(b.op("Pow", base, lower, shape=shape), power)
    zero = b.const(0.0)  # 0^-1 is infinite, and its product with p = 0 is NaN
    none = b.op("Equal", power, zero, dtype=ir.DataType.BOOL, shape=exponent.shape)
    return b.op("Where", none, zero, times(g, slope), dtype=b.dtype, shape=shape)


@register("Where")
def where(b: Backward) -> Gradients:
    """`y = c ? a : d`: `ga = g [c]`, `gd = g [not c]`."""
    g, condition = b.gradient(), b.input(0)
    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(1):
        grads[1] = b.sum_to_shape(b.masked(condition, g), b.input(1))
    if b.needs_gradient(2):
        other = b.op("Not", condition, shape=condition.shape)
        grads[2] = b.sum_to_shape(b.masked(other, g), b.input(2))
    return grads


@register("Cast", "CastLike")
def cast(b: Backward) -> Gradients:
    """`y = x` cast to another dtype: `g` cast to that of `x`."""
    return [b.cast(b.gradient(), b.input(0).dtype)]  # known by _cast_form


@refuses("Cast", "CastLike")
def _cast_form(node: ir.Node) -> str | None:
    value = node.inputs[0]
    if value is None or value.dtype is None:
        return "the element type of its input is unknown; infer the model's shapes first"
    return None
