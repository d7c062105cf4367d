"""Activations, written so that neither value nor gradient overflows, with PyTorch's slope at 0.

At 0, the gradient of ``relu(x)`` is 0 and that of ``n = x - relu(x) = min(x, 0)`` is 1. So the kink
belongs to the left branch, as in PyTorch. At the bounds of HardSigmoid and HardSwish, which are
those of a Clip, it belongs to the inner branch; in PyTorch to the outer one.
"""

from __future__ import annotations

from ortboost.autodiff.decompose.registry import formula
from ortboost.graph.formulas import Term
from ortboost.graph.rewriting import Site

__all__: list[str] = []


@formula("Softplus")
def _softplus(site: Site, x: Term) -> Term:
    """``relu(x) + log(1 + exp(-|x|))``."""
    positive = x.call("Relu")
    # -|x| as x - 2 relu(x), for a gradient of 1/2 at 0.
    return positive + ((x - positive * 2.0).call("Exp") + 1.0).call("Log")


formula("Mish", "``x * tanh(softplus(x))``.")(lambda site, x: x * _softplus(site, x).call("Tanh"))
formula("Softsign", "``x / (1 + |x|)``.")(lambda site, x: x / (x.call("Abs") + 1.0))


def _hard_gate(x: Term, alpha: float, beta: float) -> Term:
    return (x * alpha + beta).call("Clip", 0.0, 1.0)


@formula("HardSigmoid")
def _hard_sigmoid(site: Site, x: Term) -> Term:
    """``clip(alpha * x + beta, 0, 1)``."""
    return _hard_gate(x, site.number("alpha", 0.2), site.number("beta", 0.5))


@formula("HardSwish")
def _hard_swish(site: Site, x: Term) -> Term:
    """``x * clip(x / 6 + 1/2, 0, 1)``."""
    return x * _hard_gate(x, 1.0 / 6.0, 0.5)


def _exponential_unit(x: Term, height: float, rate: float = 1.0, gain: float = 1.0) -> Term:
    """``gain * (relu(x) + height * (exp(n * rate) - 1))``."""
    below = x - x.call("Relu")
    curve = (below if rate == 1.0 else below * rate).call("Exp") - 1.0
    result = x.call("Relu") + (curve if height == 1.0 else curve * height)
    return result if gain == 1.0 else result * gain


@formula("Elu")
def _elu(site: Site, x: Term) -> Term:
    """``relu(x) + alpha * (exp(min(x, 0)) - 1)``."""
    return _exponential_unit(x, site.number("alpha", 1.0))


@formula("Selu")
def _selu(site: Site, x: Term) -> Term:
    """``gamma * elu(x)``."""
    alpha = site.number("alpha", 1.67326319217681884765625)
    gamma = site.number("gamma", 1.05070102214813232421875)
    return _exponential_unit(x, alpha, gain=gamma)


@formula("Celu")
def _celu(site: Site, x: Term) -> Term:
    """``relu(x) + alpha * (exp(min(x, 0) / alpha) - 1)``."""
    alpha = site.number("alpha", 1.0)
    return _exponential_unit(x, alpha, rate=1.0 / alpha)


@formula("PRelu")
def _prelu(site: Site, x: Term) -> Term:
    """``relu(x) + slope * min(x, 0)``; the slope gets its gradient through the product."""
    below = (x - x.call("Relu")).call("Mul", site.input(1))
    return x.call("Relu") + below


# No gradient flows through the comparisons of the following two.


@formula("ThresholdedRelu")
def _thresholded_relu(site: Site, x: Term) -> Term:
    """``x`` where ``x > alpha``, else 0."""
    above = x > site.number("alpha", 1.0)
    return x.call("Mul", site.cast(above.value))


@formula("Shrink")
def _shrink(site: Site, x: Term) -> Term:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, 0 between."""
    bias, lambd = site.number("bias", 0.0), site.number("lambd", 0.5)
    low, high = x < -lambd, x > lambd
    # Between the bounds the sum does not matter: the product below is 0 there.
    moved = x + low.where(bias, -bias)
    outside = low.call("Or", high)
    return moved.call("Mul", site.cast(outside.value))
