r"""Operators along one axis that keep its length: softmax and cumulative sums."""

from __future__ import annotations

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import register

__all__: list[str] = []


@register("CumSum")
def cum_sum(b: Backward) -> Gradients:
    """Cumulative sums along an axis: `g` summed from the other end."""
    reverse, exclusive = 1 - b.integer("reverse", 0), b.integer("exclusive", 0)
    axis, shape = b.input(1), b.input(0).shape
    found = b.op("CumSum", b.gradient(), axis, reverse=reverse, exclusive=exclusive, shape=shape)
    return [found]


@register("Softmax")
def softmax(b: Backward) -> Gradients:
    """`y = exp(x) / sum(exp(x))` along an axis: `y (g - sum(g y))`."""
    g, y, axis = b.gradient(), b.output(), b.integer("axis", -1)
    shape = y.shape
    weighted = b.op("Mul", g, y, shape=shape)
    total = b.op("ReduceSum", weighted, b.ints(axis), keepdims=1)
    return [b.op("Mul", y, b.op("Sub", g, total, shape=shape), shape=shape)]


@register("LogSoftmax")
def log_softmax(b: Backward) -> Gradients:
    """`y = x - log(sum(exp(x)))` along an axis: `g - exp(y) sum(g)`."""
    g, axis = b.gradient(), b.integer("axis", -1)
    shape = b.output().shape
    total = b.op("ReduceSum", g, b.ints(axis), keepdims=1)
    part = b.op("Mul", b.op("Exp", b.output(), shape=shape), total, shape=shape)
    return [b.op("Sub", g, part, shape=shape)]
