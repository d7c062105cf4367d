r"""Elementwise operators of several inputs, with numpy broadcasting, and casts.

`g` is the gradient of the output; a gradient is summed over the axes along which its input was
broadcast (:meth:`~ortboost.autodiff.portable.backward.Backward.sum_to_shape`).
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rules.functions import zero_at_zero
from ortboost.graph.formulas import Term
from ortboost.graph.query import scalar

__all__: list[str] = []


@register("Add", "Sum")
def sum_(b: Backward) -> Gradients:
    """`y = sum_i x_i`: `g` for each."""
    return [b.sum_to_shape(b.gradient(), v) if b.needs_gradient(i) else None for i, v in _inputs(b)]


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


@register("Mod")
def mod(b: Backward) -> Gradients:
    """`y = a - n c` with a whole number `n`: `ga = g`, `gc = -g n = g (y - a) / c`."""
    g, shape = b.gradient(), b.output().shape
    ga = b.sum_to_shape(g, b.input(0)) if b.needs_gradient(0) else None
    if not b.needs_gradient(1):
        return [ga, None]
    y, a, c = (Term(b, v, v.shape) for v in (b.output(), b.input(0), b.input(1)))
    return [ga, b.sum_to_shape((Term(b, g, shape) * (y - a) / c).value, c.value)]


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
    hits = [b.op("Equal", x, y, shape=shape) for _, x in _inputs(b)]
    counts = [b.cast(hit) for hit in hits]
    part = b.op("Div", g, b.op("Sum", *counts, shape=shape), shape=shape)
    return [
        b.sum_to_shape(b.masked(hits[i], part), x) if b.needs_gradient(i) else None
        for i, x in _inputs(b)
    ]


@register("Pow")
def pow_(b: Backward) -> Gradients:
    """`y = a^p`: `ga = g p a^(p-1)`, 0 if `p = 0` or a norm is 0; `gp = g y log(a)`, 0 if `a = 0`.

    The second is 0 only for `p >= 0`. Scalar exponents: `2: 2 g a`, `1/2: g / (2 y)`, `-1: -g y^2`.
    """
    shape, exponent = b.output().shape, b.input(1)
    g, y = (Term(b, value, shape) for value in (b.gradient(), b.output()))
    base, power = Term(b, b.input(0), b.input(0).shape), Term(b, b.cast(exponent), exponent.shape)
    grads: list[ir.Value | None] = [None, None]
    if b.needs_gradient(0):
        number = scalar(exponent)
        if number is not None:
            found = _constant_power(g, Term(b, base.value, shape), y, number)
        else:
            slope = Term(b, base.value, shape).call("Pow", power - 1.0) * power
            # 0^-1 is infinite, and its product with p = 0 is NaN.
            found = Term(b, power.call("Equal", 0.0).value, shape).where(0.0, g * slope)
        # TorchScript writes 0.49999976 for the root in cdist and pairwise_distance.
        if number is None or 0 < number < 1:
            found = zero_at_zero(b, y, found)
        grads[0] = b.sum_to_shape(found.value, base.value)
    if b.needs_gradient(1):
        # 0^p does not change with p > 0, but log(0) is infinite.
        growing = power.call("GreaterOrEqual", 0.0)
        flat = Term(b, base.call("Equal", 0.0).value, shape).call("And", growing)
        full = g * (y * base.call("Log"))
        grads[1] = b.cast(b.sum_to_shape(flat.where(0.0, full).value, exponent), exponent.dtype)
    return grads


def _constant_power(g: Term, base: Term, y: Term, p: float) -> Term:
    if p == 2.0:
        return g * (base * 2.0)
    if p == 3.0:
        return g * (base * base * 3.0)
    if p == 1.0:
        return g
    if p == 0.5:
        return g * 0.5 / y
    if p == -1.0:
        return -(g * (y * y))
    if p == 0.0:  # 0 even where g is not finite
        never = g.b.const(False, ir.DataType.BOOL)
        return Term(g.b, never, g.shape).where(g, 0.0)
    return g * (base.call("Pow", p - 1.0) * p)


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
