"""Trigonometric and hyperbolic functions in terms of functions with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.formulas import Term
from ortboost.graph.rewriting import Site

__all__: list[str] = []


def _asinh(x: Term) -> Term:
    """``f(max(x, 0)) - f(-min(x, 0))``, ``f(u) = log(u + sqrt(u^2 + 1))``: no cancellation."""
    above = x.call("Relu")
    below = above - x
    # One of them is 0, where f is 0.
    one, other = ((u + (u * u + 1).call("Sqrt")).call("Log") for u in (above, below))
    return one - other


def _atan(x: Term) -> Term:
    """``8 * atan(t)``, t after halving the angle three times; within a few ulp to ``|x| = 1e18``.

    ``|t| <= tan(pi / 16) < 0.199``, where ``t - t^3/3 + t^5/5 - ... + t^13/13`` is within 3e-12.
    """
    t = x
    for _ in range(3):  # tan(a / 2) = t / (1 + sqrt(1 + t^2)) for t = tan(a)
        t = t / ((t * t + 1).call("Sqrt") + 1)
    # t (1 - t^2/3 + t^4/5 - ...) by Horner's rule in t^2, the highest power first.
    square = t * t
    series = square * (1 / 13) - 1 / 11
    for power in (9, 7, 5, 3, 1):
        series = square * series + (-1 if power % 4 == 3 else 1) / power
    return t * series * 8


def _asin(x: Term) -> Term:
    """``2 * atan(x / (1 + sqrt((1 - x) * (1 + x))))``; ``1 - x^2`` loses digits of x near 1."""
    return _atan(x / (((1 - x) * (x + 1)).call("Sqrt") + 1)) * 2


_FORMULAS: Final[Mapping[str, Callable[[Term], Term]]] = {
    "Tan": lambda x: x.call("Sin") / x.call("Cos"),
    "Sinh": lambda x: (x.call("Exp") - (-x).call("Exp")) * 0.5,  # near 0 only absolutely accurate
    "Cosh": lambda x: (x.call("Exp") + (-x).call("Exp")) * 0.5,
    "Asinh": _asinh,
    "Acosh": lambda x: (x + ((x - 1) * (x + 1)).call("Sqrt")).call("Log"),
    "Atanh": lambda x: ((x + 1).call("Log") - (1 - x).call("Log")) * 0.5,
    "Asin": _asin,
    "Acos": lambda x: np.pi / 2 - _asin(x),
    "Atan": _atan,
}


@decomposes(*_FORMULAS)
def _by_formula(site: Site) -> list[ir.Value | None]:
    return [_FORMULAS[site.node.op_type](Term(site, site.input(0))).value]
