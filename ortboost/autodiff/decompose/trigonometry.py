"""Trigonometric and hyperbolic functions in terms of functions with gradients."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.rewriting import Site

__all__: list[str] = []


@decomposes("Tan")
def _tan(site: Site) -> list[ir.Value | None]:
    """``sin(x) / cos(x)``."""
    return [site.op("Div", site.op("Sin", site.input(0)), site.op("Cos", site.input(0)))]


def _exponentials(site: Site, op_type: str) -> ir.Value:
    data = site.input(0)
    rising, falling = site.op("Exp", data), site.op("Exp", site.op("Neg", data))
    return site.op("Mul", site.op(op_type, rising, falling), site.const(0.5))


@decomposes("Sinh")
def _sinh(site: Site) -> list[ir.Value | None]:
    """``(exp(x) - exp(-x)) / 2``; near 0 only absolutely accurate."""
    return [_exponentials(site, "Sub")]


@decomposes("Cosh")
def _cosh(site: Site) -> list[ir.Value | None]:
    """``(exp(x) + exp(-x)) / 2``."""
    return [_exponentials(site, "Add")]


@decomposes("Asinh")
def _asinh(site: Site) -> list[ir.Value | None]:
    """``f(max(x, 0)) - f(-min(x, 0))``, ``f(u) = log(u + sqrt(u^2 + 1))``: no cancellation."""
    data = site.input(0)
    above = site.op("Relu", data)
    below = site.op("Sub", above, data)
    parts = []
    for part in (above, below):  # one of them is 0, where f is 0
        root = site.op("Sqrt", site.op("Add", site.op("Mul", part, part), site.const(1.0)))
        parts.append(site.op("Log", site.op("Add", part, root)))
    return [site.op("Sub", *parts)]


@decomposes("Acosh")
def _acosh(site: Site) -> list[ir.Value | None]:
    """``log(x + sqrt((x - 1) * (x + 1)))``."""
    data = site.input(0)
    product = site.op(
        "Mul", site.op("Sub", data, site.const(1.0)), site.op("Add", data, site.const(1.0))
    )
    return [site.op("Log", site.op("Add", data, site.op("Sqrt", product)))]


@decomposes("Atanh")
def _atanh(site: Site) -> list[ir.Value | None]:
    """``(log(1 + x) - log(1 - x)) / 2``."""
    data = site.input(0)
    up = site.op("Log", site.op("Add", data, site.const(1.0)))
    down = site.op("Log", site.op("Sub", site.const(1.0), data))
    return [site.op("Mul", site.op("Sub", up, down), site.const(0.5))]


def _half_angle(site: Site, data: ir.Value) -> ir.Value:
    """``tan(a / 2) = t / (1 + sqrt(1 + t^2))`` for ``t = tan(a)``."""
    root = site.op("Sqrt", site.op("Add", site.op("Mul", data, data), site.const(1.0)))
    return site.op("Div", data, site.op("Add", root, site.const(1.0)))


def _arctangent(site: Site, data: ir.Value) -> ir.Value:
    """``8 * atan(t)``, t after halving the angle three times.

    ``|t| <= tan(pi / 16) < 0.199``, where ``t - t^3/3 + t^5/5 - ... + t^13/13`` is within 3e-12.
    """
    t = data
    for _ in range(3):
        t = _half_angle(site, t)
    # t (1 - t^2/3 + t^4/5 - ...) by Horner's rule in t^2, the highest power first.
    square = site.op("Mul", t, t)
    series = site.const(1.0 / 13.0)
    for power in (11, 9, 7, 5, 3, 1):
        sign = -1.0 if power % 4 == 3 else 1.0
        series = site.op("Add", site.op("Mul", square, series), site.const(sign / power))
    return site.op("Mul", site.op("Mul", t, series), site.const(8.0))


@decomposes("Atan")
def _atan(site: Site) -> list[ir.Value | None]:
    """The angle is halved three times, then a series; within a few ulp up to ``|x| = 1e18``."""
    return [_arctangent(site, site.input(0))]


@decomposes("Asin")
def _asin(site: Site) -> list[ir.Value | None]:
    """``2 * atan(x / (1 + sqrt((1 - x) * (1 + x))))``."""
    data = site.input(0)
    # Not 1 - x * x, which loses the digits of x near 1.
    product = site.op(
        "Mul", site.op("Sub", site.const(1.0), data), site.op("Add", data, site.const(1.0))
    )
    half = site.op("Div", data, site.op("Add", site.op("Sqrt", product), site.const(1.0)))
    return [site.op("Mul", _arctangent(site, half), site.const(2.0))]


@decomposes("Acos")
def _acos(site: Site) -> list[ir.Value | None]:
    """``pi / 2 - asin(x)``."""
    return [site.op("Sub", site.const(np.pi / 2), *_asin(site))]
