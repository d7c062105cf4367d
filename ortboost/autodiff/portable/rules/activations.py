r"""Activations: functions of one input, with a kink or several terms, and softmax.

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
from ortboost.autodiff.portable.rules.functions import slope
from ortboost.graph.formulas import Term

__all__: list[str] = []


def _masked(b: Backward, condition: Term, gradient: Term) -> Term:
    return Term(b, b.masked(condition.value, gradient.value), gradient.shape)


def _times(term: Term, factor: float) -> Term:
    return term if factor == 1.0 else term * factor


@slope("Relu")
def relu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = max(x, 0)`: `g [y > 0]`, 0 at the kink as in PyTorch."""
    return _masked(b, y > 0.0, g)


@slope("LeakyRelu")
def leaky_relu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x` above 0, else `alpha x`: `g` or `alpha g`."""
    return g * (x > 0.0).where(1.0, b.number("alpha", 0.01))


@register("PRelu")
def prelu(b: Backward) -> Gradients:
    """`y = x` above 0, else `a x`, the slope broadcast: `gx = g` or `a g`, `ga = g min(x, 0)`."""
    g, x = (Term(b, value, b.output().shape) for value in (b.gradient(), b.input(0)))
    grads: list[ir.Value | None] = [None, None]
    if b.needs_gradient(0):
        grads[0] = (g * (x > 0.0).where(1.0, b.input(1))).value
    if b.needs_gradient(1):
        grads[1] = b.sum_to_shape((g * x.call("Min", 0.0)).value, b.input(1))
    return grads


@slope("ThresholdedRelu")
def thresholded_relu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x` above `alpha`, else 0: `g [x > alpha]`."""
    return _masked(b, x > b.number("alpha", 1.0), g)


@slope("Shrink")
def shrink(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x + bias` below `-lambd`, `x - bias` above `lambd`, else 0: `g [|x| > lambd]`."""
    return _masked(b, x.call("Abs") > b.number("lambd", 0.5), g)


@register("Clip")
def clip(b: Backward) -> Gradients:
    """`y = min(max(x, low), high)`: `gx = g [low < y < high]`.

    0 at the bounds, as for `relu6` and `hardtanh` in all versions of PyTorch, and for `clamp` since
    2.14. A bound gets the sum of `g` over the elements that it replaces, or equals.
    """
    g, x, y, low, high = b.gradient(), b.input(0), b.output(), b.optional(1), b.optional(2)
    grads: list[ir.Value | None] = [None, None, None]

    def test(op_type: str, left: ir.Value, right: ir.Value) -> ir.Value:
        return b.op(op_type, left, right, dtype=ir.DataType.BOOL, shape=y.shape)

    if b.needs_gradient(0):
        inside = [test("Greater", y, low)] if low is not None else []
        inside += [test("Less", y, high)] if high is not None else []
        both = inside[0] if len(inside) == 1 else test("And", *inside) if inside else None
        grads[0] = g if both is None else b.masked(both, g)
    if high is not None and b.needs_gradient(2):
        grads[2] = b.sum_to_shape(b.masked(test("Equal", y, high), g), high)
    if low is not None and b.needs_gradient(1):
        at_low = test("LessOrEqual", x, low)
        if high is not None:  # otherwise it has no effect
            valid = b.op("Less", low, high, shape=low.shape)
            at_low = test("And", at_low, valid)
        grads[1] = b.sum_to_shape(b.masked(at_low, g), low)
    return grads


@slope("Elu")
def elu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x` above 0, else `alpha (exp(x) - 1)`: `g` or `g (y + alpha)`."""
    alpha = b.number("alpha", 1.0)
    if alpha == 1.0:  # min(y, 0) + 1 is 1 above 0
        return g * (y.call("Min", 0.0) + 1.0)
    below = y + alpha
    return g * (x > 0.0).where(1.0, below)


@slope("Selu")
def selu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = gamma x`, else `gamma alpha (exp(x) - 1)`: `gamma g` or `g (y + gamma alpha)`."""
    alpha = b.number("alpha", 1.67326319217681884765625)
    gamma = b.number("gamma", 1.05070102214813232421875)
    below = y + alpha * gamma
    return g * (x > 0.0).where(gamma, below)


@slope("Celu")
def celu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x` above 0, else `alpha (exp(x / alpha) - 1)`: `g (min(y, 0) / alpha + 1)`."""
    return g * (_times(y.call("Min", 0.0), 1.0 / b.number("alpha", 1.0)) + 1.0)


@slope("HardSigmoid")
def hard_sigmoid(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = min(max(alpha x + beta, 0), 1)`: `alpha g [|alpha x + beta - 1/2| < 1/2]`."""
    alpha, beta = b.number("alpha", 0.2), b.number("beta", 0.5)
    middle = _times(x, alpha)
    if beta != 0.5:
        middle = middle + (beta - 0.5)
    inside = middle.call("Abs") < 0.5
    return _masked(b, inside, _times(g, alpha))


@slope("HardSwish")
def hard_swish(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x h`, `h = min(max(x / 6 + 1/2, 0), 1)`: `g (h + [|x| < 3] x / 6)`."""
    sixth = x * (1.0 / 6.0)
    gate = x.call("HardSigmoid", alpha=1.0 / 6.0, beta=0.5)
    return g * (gate + _masked(b, x.call("Abs") < 3.0, sixth))


@slope("Mish")
def mish(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x t`, `t = tanh(softplus(x))`: `g (t + x sigmoid(x) (1 - t^2))`."""
    t = x.call("Softplus").call("Tanh")
    rest = 1.0 - t * t
    return g * (t + x * x.call("Sigmoid") * rest)


@slope("Softsign")
def softsign(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x / (1 + |x|)`: `g / (1 + |x|)^2`."""
    below = x.call("Abs") + 1.0
    return g / (below * below)


@slope("Softmax")
def softmax(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = exp(x) / sum(exp(x))` along an axis: `y (g - sum(g y))`."""
    axis = b.ints(b.integer("axis", -1))
    return y * (g - b.op("ReduceSum", (g * y).value, axis, keepdims=1))


@slope("LogSoftmax")
def log_softmax(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x - log(sum(exp(x)))` along an axis: `g - exp(y) sum(g)`."""
    total = b.op("ReduceSum", g.value, b.ints(b.integer("axis", -1)), keepdims=1)
    return g - y.call("Exp") * total


def _gelu_erf(g: Term, x: Term) -> Term:
    """`y = x P(x)`, `P = (1 + erf(x / sqrt 2)) / 2`: `g (P + x exp(-x^2 / 2) / sqrt(2 pi))`."""
    scaled = x * math.sqrt(0.5)
    share = scaled.call("Erf") * 0.5 + 0.5
    bell = (-(scaled * scaled)).call("Exp") * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (share + x * bell)


def _gelu_tanh(g: Term, x: Term) -> Term:
    """`y = x s`, `s = sigmoid(u)`, `u = k (x + a x^3)`: `g (s + s (1 - s) x k (1 + 3 a x^2))`.

    `k = 2 sqrt(2 / pi)`, `a = 0.044715`, and `(1 + tanh(u / 2)) / 2 = sigmoid(u)`. `x` is clipped
    at 12: beyond it the slope is 0 or 1 in every dtype, but the cube may overflow.
    """
    k, a = 2.0 * math.sqrt(2.0 / math.pi), 0.044715
    x = x.call("Clip", -12.0, 12.0)
    square = x * x
    u = x * (square * (k * a) + k)
    rise = x * (square * (3.0 * k * a) + k)
    s = u.call("Sigmoid")
    return g * (s + s * (1.0 - s) * rise)


@slope("Gelu")
def gelu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """Either form; see :func:`_gelu_erf` and :func:`_gelu_tanh`."""
    form = _gelu_tanh if b.text("approximate", "none") == "tanh" else _gelu_erf
    return form(g, x)


def _swish(g: Term, x: Term, alpha: float) -> Term:
    """`y = x s`, `s = sigmoid(alpha x)`: `g s (1 + alpha x (1 - s))`."""
    scaled = _times(x, alpha)
    s = scaled.call("Sigmoid")
    return g * (s * (scaled * (1.0 - s) + 1.0))


@slope("Swish")
def swish(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x sigmoid(alpha x)`."""
    return _swish(g, x, b.number("alpha", 1.0))


@slope("QuickGelu", domain="com.microsoft")
def quick_gelu(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = x sigmoid(alpha x)`."""
    return _swish(g, x, b.number("alpha", 1.702))


@register("BiasGelu", "FastGelu", "Gelu", domain="com.microsoft")
def biased_gelu(b: Backward) -> Gradients:
    """`y = gelu(x + c)` with an optional bias along the last axis; FastGelu is the tanh form."""
    g, x = (Term(b, value, b.output().shape) for value in (b.gradient(), b.input(0)))
    bias = b.optional(1)
    form = _gelu_tanh if b.node.op_type == "FastGelu" else _gelu_erf
    gradient = form(g, x if bias is None else x.call("Add", bias)).value
    if bias is None or not b.needs_gradient(1):
        return [gradient, None]
    return [gradient, b.sum_to_shape(gradient, bias)]
