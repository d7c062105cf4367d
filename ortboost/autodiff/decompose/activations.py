"""Activations, written so that neither value nor gradient overflows, with PyTorch's slope at 0.

At 0, the gradient of ``relu(x)`` is 0 and that of ``n = x - relu(x) = min(x, 0)`` is 1. So the kink
belongs to the left branch, as in PyTorch. At the bounds of HardSigmoid and HardSwish, which are
those of a Clip, it belongs to the inner branch; in PyTorch to the outer one.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.rewriting import Site

__all__: list[str] = []


def _negative_part(site: Site, data: ir.Value) -> ir.Value:
    return site.op("Sub", data, site.op("Relu", data))


def softplus(site: Site, data: ir.Value) -> ir.Value:
    """``relu(x) + log(1 + exp(-|x|))``.

    ``-|x|`` is computed as ``x - 2 * relu(x)``, for a gradient of 1/2 at 0.
    """
    positive = site.op("Relu", data)
    minus_abs = site.op("Sub", data, site.op("Mul", positive, site.const(2.0)))
    log = site.op("Log", site.op("Add", site.op("Exp", minus_abs), site.const(1.0)))
    return site.op("Add", positive, log)


@decomposes("Softplus")
def _softplus(site: Site) -> list[ir.Value | None]:
    """``relu(x) + log(1 + exp(-|x|))``."""
    return [softplus(site, site.input(0))]


@decomposes("Mish")
def _mish(site: Site) -> list[ir.Value | None]:
    """``x * tanh(softplus(x))``."""
    data = site.input(0)
    return [site.op("Mul", data, site.op("Tanh", softplus(site, data)))]


@decomposes("HardSigmoid")
def _hard_sigmoid(site: Site) -> list[ir.Value | None]:
    """``clip(alpha * x + beta, 0, 1)``."""
    alpha, beta = site.number("alpha", 0.2), site.number("beta", 0.5)
    return [_hard_gate(site, site.input(0), alpha, beta)]


def _hard_gate(site: Site, data: ir.Value, alpha: float, beta: float) -> ir.Value:
    line = site.op("Add", site.op("Mul", data, site.const(alpha)), site.const(beta))
    return site.op("Clip", line, site.const(0.0), site.const(1.0))


@decomposes("HardSwish")
def _hard_swish(site: Site) -> list[ir.Value | None]:
    """``x * clip(x / 6 + 1/2, 0, 1)``."""
    data = site.input(0)
    return [site.op("Mul", data, _hard_gate(site, data, 1.0 / 6.0, 0.5))]


def _exponential_unit(
    site: Site, data: ir.Value, height: float, rate: float = 1.0, gain: float = 1.0
) -> ir.Value:
    """``gain * (relu(x) + height * (exp(n * rate) - 1))``."""
    below = _negative_part(site, data)
    if rate != 1.0:
        below = site.op("Mul", below, site.const(rate))
    curve = site.op("Sub", site.op("Exp", below), site.const(1.0))
    if height != 1.0:
        curve = site.op("Mul", curve, site.const(height))
    result = site.op("Add", site.op("Relu", data), curve)
    return result if gain == 1.0 else site.op("Mul", result, site.const(gain))


@decomposes("Elu")
def _elu(site: Site) -> list[ir.Value | None]:
    """``relu(x) + alpha * (exp(min(x, 0)) - 1)``."""
    return [_exponential_unit(site, site.input(0), site.number("alpha", 1.0))]


@decomposes("Selu")
def _selu(site: Site) -> list[ir.Value | None]:
    """``gamma * elu(x)``."""
    alpha = site.number("alpha", 1.67326319217681884765625)
    gamma = site.number("gamma", 1.05070102214813232421875)
    return [_exponential_unit(site, site.input(0), alpha, gain=gamma)]


@decomposes("Celu")
def _celu(site: Site) -> list[ir.Value | None]:
    """``relu(x) + alpha * (exp(min(x, 0) / alpha) - 1)``."""
    alpha = site.number("alpha", 1.0)
    return [_exponential_unit(site, site.input(0), alpha, 1.0 / alpha)]


@decomposes("PRelu")
def _prelu(site: Site) -> list[ir.Value | None]:
    """``relu(x) + slope * min(x, 0)``; the slope gets its gradient through the product."""
    data, slope = site.input(0), site.input(1)
    below = site.op("Mul", _negative_part(site, data), slope)
    return [site.op("Add", site.op("Relu", data), below)]


@decomposes("Softsign")
def _softsign(site: Site) -> list[ir.Value | None]:
    """``x / (1 + |x|)``."""
    data = site.input(0)
    return [site.op("Div", data, site.op("Add", site.op("Abs", data), site.const(1.0)))]


def _compared(site: Site, op_type: str, bound: float) -> ir.Value:
    """Whether `x` is greater or less than a bound; no gradient flows through it."""
    return site.op(op_type, site.input(0), site.const(bound), dtype=ir.DataType.BOOL)


@decomposes("ThresholdedRelu")
def _thresholded_relu(site: Site) -> list[ir.Value | None]:
    """``x`` where ``x > alpha``, else 0."""
    above = _compared(site, "Greater", site.number("alpha", 1.0))
    return [site.op("Mul", site.input(0), site.cast(above))]


@decomposes("Shrink")
def _shrink(site: Site) -> list[ir.Value | None]:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, 0 between."""
    bias, lambd = site.number("bias", 0.0), site.number("lambd", 0.5)
    low, high = _compared(site, "Less", -lambd), _compared(site, "Greater", lambd)
    # Between the bounds the sum is of no matter: the product below is 0 there.
    moved = site.op("Where", low, site.const(bias), site.const(-bias), dtype=site.dtype)
    total = site.op("Add", site.input(0), moved)
    return [site.op("Mul", total, site.cast(site.op("Or", low, high)))]
