r"""Functions of one input, elementwise: powers, exponentials, trigonometric and hyperbolic ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import register
from ortboost.autodiff.roots import sums_powers
from ortboost.graph.formulas import Term

__all__ = ["slope", "zero_at_zero"]

_Slope: TypeAlias = Callable[[Backward, Term, Term, Term], Term]


def slope(*op_types: str, domain: str = "") -> Callable[[_Slope], _Slope]:
    """Register the gradient of the first input of elementwise functions, as a decorator.

    The decorated function computes it from the node, `g`, the gradient of the output, the input
    `x`, and the output `y`.
    """

    def enter(formula: _Slope) -> _Slope:
        @functools.wraps(formula)
        def rule(b: Backward) -> Gradients:
            values = b.gradient(), b.input(0), b.output()
            return [formula(b, *(Term(b, value, b.output().shape) for value in values)).value]

        register(*op_types, domain=domain)(rule)
        return formula

    return enter


# `g f'(x)`, by `y = f(x)` if that is cheaper.
_SLOPES: Final[Mapping[str, Callable[[Term, Term, Term], Term]]] = {
    "Identity": lambda g, x, y: g,
    "Neg": lambda g, x, y: -g,
    "Abs": lambda g, x, y: g * x.call("Sign"),  # 0 at 0
    "Exp": lambda g, x, y: g * y,
    "Log": lambda g, x, y: g / x,
    "Reciprocal": lambda g, x, y: -(g * (y * y)),
    "Sin": lambda g, x, y: g * x.call("Cos"),
    "Cos": lambda g, x, y: -(g * x.call("Sin")),
    "Tan": lambda g, x, y: g * (y * y + 1),
    "Tanh": lambda g, x, y: g * (1 - y * y),
    "Sigmoid": lambda g, x, y: g * (y * (1 - y)),
    "Softplus": lambda g, x, y: g * x.call("Sigmoid"),
    "Erf": lambda g, x, y: g * ((-(x * x)).call("Exp") * (2 / math.sqrt(math.pi))),
    "Sinh": lambda g, x, y: g * x.call("Cosh"),
    "Cosh": lambda g, x, y: g * x.call("Sinh"),
    "Asin": lambda g, x, y: g / (1 - x * x).call("Sqrt"),
    "Acos": lambda g, x, y: -(g / (1 - x * x).call("Sqrt")),
    "Atan": lambda g, x, y: g / (x * x + 1),
    "Asinh": lambda g, x, y: g / (x * x + 1).call("Sqrt"),
    "Acosh": lambda g, x, y: g / ((x - 1).call("Sqrt") * (x + 1).call("Sqrt")),
    "Atanh": lambda g, x, y: g / (1 - x * x),
}


@slope(*_SLOPES)
def _by_table(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = f(x)`: `g f'(x)`, which :data:`_SLOPES` has for each function."""
    return _SLOPES[b.node.op_type](g, x, y)


@slope("Sqrt")
def _root(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = sqrt(x)`: `g / (2 y)`; of a sum of squares 0 where `y = 0`, as for ReduceL2."""
    return zero_at_zero(b, y, g * 0.5 / y)


def zero_at_zero(b: Backward, y: Term, found: Term) -> Term:
    """The gradient of a root; 0 where the root of a sum of powers is 0.

    See :mod:`ortboost.autodiff.roots`.
    """
    if not sums_powers(b.input(0), b.active):
        return found
    return y.call("Equal", 0.0).where(0.0, found)
