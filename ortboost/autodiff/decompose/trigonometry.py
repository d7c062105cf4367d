"""Trigonometric and hyperbolic functions in terms of functions with gradients."""

from __future__ import annotations

import numpy as np

from ortboost.autodiff.decompose.registry import formula
from ortboost.graph.formulas import Term
from ortboost.graph.rewriting import Site

__all__: list[str] = []

formula("Tan", "``sin(x) / cos(x)``.")(lambda site, x: x.call("Sin") / x.call("Cos"))
formula("Sinh", "``(exp(x) - exp(-x)) / 2``; near 0 only absolutely accurate.")(
    lambda site, x: (x.call("Exp") - (-x).call("Exp")) * 0.5
)
formula("Cosh", "``(exp(x) + exp(-x)) / 2``.")(
    lambda site, x: (x.call("Exp") + (-x).call("Exp")) * 0.5
)
formula("Acosh", "``log(x + sqrt((x - 1) * (x + 1)))``.")(
    lambda site, x: (x + ((x - 1) * (x + 1)).call("Sqrt")).call("Log")
)
formula("Atanh", "``(log(1 + x) - log(1 - x)) / 2``.")(
    lambda site, x: ((x + 1).call("Log") - (1 - x).call("Log")) * 0.5
)


@formula("Asinh")
def _asinh(site: Site, x: Term) -> Term:
    """``f(max(x, 0)) - f(-min(x, 0))``, ``f(u) = log(u + sqrt(u^2 + 1))``: no cancellation."""
    above = x.call("Relu")
    below = above - x
    # One of them is 0, where f is 0.
    one, other = ((u + (u * u + 1).call("Sqrt")).call("Log") for u in (above, below))
    return one - other


@formula("Atan")
def _atan(site: Site, x: Term) -> Term:
    """The angle is halved three times, then a series; within a few ulp up to ``|x| = 1e18``."""
    t = x
    for _ in range(3):  # tan(a / 2) = t / (1 + sqrt(1 + t^2)) for t = tan(a)
        t = t / ((t * t + 1).call("Sqrt") + 1)
    # |t| <= tan(pi / 16) < 0.199, where t - t^3/3 + t^5/5 - ... + t^13/13 is within 3e-12:
    # t (1 - t^2/3 + t^4/5 - ...) by Horner's rule in t^2, the highest power first.
    square = t * t
    series = square * (1 / 13) - 1 / 11
    for power in (9, 7, 5, 3, 1):
        series = square * series + (-1 if power % 4 == 3 else 1) / power
    return t * series * 8


@formula("Asin")
def _asin(site: Site, x: Term) -> Term:
    """``2 * atan(x / (1 + sqrt((1 - x) * (1 + x))))``."""
    # Not 1 - x * x, which loses the digits of x near 1.
    return _atan(site, x / (((1 - x) * (x + 1)).call("Sqrt") + 1)) * 2


formula("Acos", "``pi / 2 - asin(x)``.")(lambda site, x: np.pi / 2 - _asin(site, x))
