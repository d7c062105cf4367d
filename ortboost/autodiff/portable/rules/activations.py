r"""Activations: elementwise functions of one input, with a kink or several terms.

`g` is the gradient of the output `y`; `[c]` is 1 where `c` holds, else 0 (see
:meth:`~ortboost.autodiff.portable.backward.Backward.masked`). At a kink, the slope is that of
PyTorch: at 0 that of the left branch, at the bounds of Clip 0, and where HardSigmoid, HardSwish and
Shrink become constant or linear, that of the outer branch, for Shrink 0. Among equivalent forms,
the fastest on CPUs is used.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import register

__all__: list[str] = []


def _op(b: Backward, op_type: str, *inputs: ir.Value) -> ir.Value:
    return b.op(op_type, *inputs, dtype=b.dtype, shape=b.output().shape)


def _test(b: Backward, op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
    return b.op(op_type, left, right, dtype=ir.DataType.BOOL, shape=b.output().shape)


def _where(b: Backward, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    return b.op("Where", condition, yes, no, dtype=b.dtype, shape=b.output().shape)


def _times(b: Backward, value: ir.Value, factor: float) -> ir.Value:
    return value if factor == 1.0 else _op(b, "Mul", value, b.const(factor))


def _positive(b: Backward, bound: float = 0.0) -> ir.Value:
    return _test(b, "Greater", b.input(0), b.const(bound))


@register("Relu")
def relu(b: Backward) -> Gradients:
    """`y = max(x, 0)`: `g [y > 0]`, 0 at the kink as in PyTorch."""
    return [b.masked(_test(b, "Greater", b.output(), b.const(0.0)), b.gradient())]


@register("LeakyRelu")
def leaky_relu(b: Backward) -> Gradients:
    """`y = x` above 0, else `alpha x`: `g` or `alpha g`."""
    slope = _where(b, _positive(b), b.const(1.0), b.const(b.number("alpha", 0.01)))
    return [_op(b, "Mul", b.gradient(), slope)]


@register("PRelu")
def prelu(b: Backward) -> Gradients:
    """`y = x` above 0, else `a x`, the slope broadcast: `gx = g` or `a g`, `ga = g min(x, 0)`."""
    g, x, slope = b.gradient(), b.input(0), b.input(1)
    grads: list[ir.Value | None] = [None, None]
    if b.needs_gradient(0):
        grads[0] = _op(b, "Mul", g, _where(b, _positive(b), b.const(1.0), slope))
    if b.needs_gradient(1):
        below = _op(b, "Min", x, b.const(0.0))
        grads[1] = b.sum_to_shape(_op(b, "Mul", g, below), slope)
    return grads


@register("ThresholdedRelu")
def thresholded_relu(b: Backward) -> Gradients:
    """`y = x` above `alpha`, else 0: `g [x > alpha]`."""
    return [b.masked(_positive(b, b.number("alpha", 1.0)), b.gradient())]


@register("Shrink")
def shrink(b: Backward) -> Gradients:
    """`y = x + bias` below `-lambd`, `x - bias` above `lambd`, else 0: `g [|x| > lambd]`."""
    size = _op(b, "Abs", b.input(0))
    outside = _test(b, "Greater", size, b.const(b.number("lambd", 0.5)))
    return [b.masked(outside, b.gradient())]


@register("Clip")
def clip(b: Backward) -> Gradients:
    """`y = min(max(x, low), high)`: `gx = g [low < y < high]`.

    0 at the bounds, as of `relu6` and `hardtanh` in every version of PyTorch, and of `clamp` since
    2.14. A bound gets the sum of `g` over the elements that it replaces, or equals.
    """
    g, x, y, low, high = b.gradient(), b.input(0), b.output(), b.optional(1), b.optional(2)
    grads: list[ir.Value | None] = [None, None, None]
    if b.needs_gradient(0):
        inside = [_test(b, "Greater", y, low)] if low is not None else []
        inside += [_test(b, "Less", y, high)] if high is not None else []
        both = inside[0] if len(inside) == 1 else _test(b, "And", *inside) if inside else None
        grads[0] = g if both is None else b.masked(both, g)
    if high is not None and b.needs_gradient(2):
        at_high = _test(b, "Equal", y, high)
        grads[2] = b.sum_to_shape(b.masked(at_high, g), high)
    if low is not None and b.needs_gradient(1):
        at_low = _test(b, "LessOrEqual", x, low)
        if high is not None:  # otherwise it has no effect
            valid = b.op("Less", low, high, dtype=ir.DataType.BOOL, shape=low.shape)
            at_low = _test(b, "And", at_low, valid)
        grads[1] = b.sum_to_shape(b.masked(at_low, g), low)
    return grads


def _below(b: Backward) -> ir.Value:
    """`min(y, 0)`."""
    return _op(b, "Min", b.output(), b.const(0.0))


@register("Elu")
def elu(b: Backward) -> Gradients:
    """`y = x` above 0, else `alpha (exp(x) - 1)`: `g` or `g (y + alpha)`."""
    alpha = b.number("alpha", 1.0)
    if alpha == 1.0:  # min(y, 0) + 1 is 1 above 0
        slope = _op(b, "Add", _below(b), b.const(1.0))
    else:
        below = _op(b, "Add", b.output(), b.const(alpha))
        slope = _where(b, _positive(b), b.const(1.0), below)
    return [_op(b, "Mul", b.gradient(), slope)]


@register("Selu")
def selu(b: Backward) -> Gradients:
    """`y = gamma x` above 0, else `gamma alpha (exp(x) - 1)`.

    The gradient is `gamma g` or `g (y + gamma alpha)`.
    """
    alpha = b.number("alpha", 1.67326319217681884765625)
    gamma = b.number("gamma", 1.05070102214813232421875)
    slope = _op(b, "Add", b.output(), b.const(alpha * gamma))
    return [_op(b, "Mul", b.gradient(), _where(b, _positive(b), b.const(gamma), slope))]


@register("Celu")
def celu(b: Backward) -> Gradients:
    """`y = x` above 0, else `alpha (exp(x / alpha) - 1)`: `g (min(y, 0) / alpha + 1)`."""
    scaled = _times(b, _below(b), 1.0 / b.number("alpha", 1.0))
    return [_op(b, "Mul", b.gradient(), _op(b, "Add", scaled, b.const(1.0)))]


@register("HardSigmoid")
def hard_sigmoid(b: Backward) -> Gradients:
    """`y = min(max(alpha x + beta, 0), 1)`: `alpha g [|alpha x + beta - 1/2| < 1/2]`."""
    alpha, beta = b.number("alpha", 0.2), b.number("beta", 0.5)
    middle = _times(b, b.input(0), alpha)
    if beta != 0.5:
        middle = _op(b, "Add", middle, b.const(beta - 0.5))
    inside = _test(b, "Less", _op(b, "Abs", middle), b.const(0.5))
    return [b.masked(inside, _times(b, b.gradient(), alpha))]


@register("HardSwish")
def hard_swish(b: Backward) -> Gradients:
    """`y = x h`, `h = min(max(x / 6 + 1/2, 0), 1)`: `g (h + [|x| < 3] x / 6)`."""
    x = b.input(0)
    sixth = _times(b, x, 1.0 / 6.0)
    gate = b.op("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5, shape=b.output().shape)
    inside = _test(b, "Less", _op(b, "Abs", x), b.const(3.0))
    slope = _op(b, "Add", gate, b.masked(inside, sixth))
    return [_op(b, "Mul", b.gradient(), slope)]


@register("Mish")
def mish(b: Backward) -> Gradients:
    """`y = x t`, `t = tanh(softplus(x))`: `g (t + x sigmoid(x) (1 - t^2))`."""
    x = b.input(0)
    t = _op(b, "Tanh", _op(b, "Softplus", x))
    rest = _op(b, "Sub", b.const(1.0), _op(b, "Mul", t, t))
    bend = _op(b, "Mul", _op(b, "Mul", x, _op(b, "Sigmoid", x)), rest)
    return [_op(b, "Mul", b.gradient(), _op(b, "Add", t, bend))]


@register("Softplus")
def softplus(b: Backward) -> Gradients:
    """`y = log(1 + exp(x))`: `g sigmoid(x)`."""
    return [_op(b, "Mul", b.gradient(), _op(b, "Sigmoid", b.input(0)))]


@register("Softsign")
def softsign(b: Backward) -> Gradients:
    """`y = x / (1 + |x|)`: `g / (1 + |x|)^2`."""
    below = _op(b, "Add", _op(b, "Abs", b.input(0)), b.const(1.0))
    return [_op(b, "Div", b.gradient(), _op(b, "Mul", below, below))]


def sigmoid_gate(b: Backward, x: ir.Value, alpha: float) -> ir.Value:
    """`y = x s`, `s = sigmoid(alpha x)`: `g s (1 + alpha x (1 - s))`."""
    scaled, one = _times(b, x, alpha), b.const(1.0)
    s = _op(b, "Sigmoid", scaled)
    bend = _op(b, "Add", _op(b, "Mul", scaled, _op(b, "Sub", one, s)), one)
    return _op(b, "Mul", b.gradient(), _op(b, "Mul", s, bend))


def gelu_erf(b: Backward, x: ir.Value) -> ir.Value:
    """`y = x P(x)`, `P = (1 + erf(x / sqrt 2)) / 2`: `g (P + x exp(-x^2 / 2) / sqrt(2 pi))`."""
    scaled = _times(b, x, math.sqrt(0.5))
    share = _op(b, "Add", _times(b, _op(b, "Erf", scaled), 0.5), b.const(0.5))
    bell = _op(b, "Exp", _op(b, "Neg", _op(b, "Mul", scaled, scaled)))
    bend = _op(b, "Mul", x, _times(b, bell, 1.0 / math.sqrt(2.0 * math.pi)))
    return _op(b, "Mul", b.gradient(), _op(b, "Add", share, bend))


def gelu_tanh(b: Backward, x: ir.Value) -> ir.Value:
    """`y = x s`, `s = sigmoid(u)`, `u = k (x + a x^3)`: `g (s + s (1 - s) x k (1 + 3 a x^2))`.

    `k = 2 sqrt(2 / pi)`, `a = 0.044715`, and `(1 + tanh(u / 2)) / 2 = sigmoid(u)`. `x` is clipped
    at 12: beyond it the slope is 0 or 1 in every dtype, but the cube may overflow.
    """
    k, a = 2.0 * math.sqrt(2.0 / math.pi), 0.044715
    one = b.const(1.0)
    x = _op(b, "Clip", x, b.const(-12.0), b.const(12.0))
    square = _op(b, "Mul", x, x)
    u = _op(b, "Mul", x, _op(b, "Add", _times(b, square, k * a), b.const(k)))
    rise = _op(b, "Mul", x, _op(b, "Add", _times(b, square, 3.0 * k * a), b.const(k)))
    s = _op(b, "Sigmoid", u)
    bend = _op(b, "Mul", _op(b, "Mul", s, _op(b, "Sub", one, s)), rise)
    return _op(b, "Mul", b.gradient(), _op(b, "Add", s, bend))


@register("Gelu")
def gelu(b: Backward) -> Gradients:
    """Either form; see :func:`gelu_erf` and :func:`gelu_tanh`."""
    form = gelu_tanh if b.text("approximate", "none") == "tanh" else gelu_erf
    return [form(b, b.input(0))]


@register("Swish")
def swish(b: Backward) -> Gradients:
    """`y = x sigmoid(alpha x)`; see :func:`sigmoid_gate`."""
    return [sigmoid_gate(b, b.input(0), b.number("alpha", 1.0))]


@register("QuickGelu", domain="com.microsoft")
def quick_gelu(b: Backward) -> Gradients:
    """`y = x sigmoid(alpha x)`; see :func:`sigmoid_gate`."""
    return [sigmoid_gate(b, b.input(0), b.number("alpha", 1.702))]


@register("BiasGelu", "FastGelu", "Gelu", domain="com.microsoft")
def biased_gelu(b: Backward) -> Gradients:
    """`y = gelu(x + c)` with an optional bias along the last axis; FastGelu is the tanh form."""
    x, bias = b.input(0), b.optional(1)
    total = x if bias is None else _op(b, "Add", x, bias)
    form = gelu_tanh if b.node.op_type == "FastGelu" else gelu_erf
    gradient = form(b, total)
    return [
        gradient,
        None if bias is None or not b.needs_gradient(1) else b.sum_to_shape(gradient, bias),
    ]
