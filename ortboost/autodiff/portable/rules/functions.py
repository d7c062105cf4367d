r"""Functions of one input, elementwise: powers, exponentials, trigonometric and hyperbolic ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import register
from ortboost.graph.formulas import Term
from ortboost.graph.query import constant, is_standard

__all__ = ["of_root", "slope"]

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

_SCALED: Final = {"Mul": ([0], [1]), "Div": ([0],)} | dict.fromkeys(
    ("Cast", "Reshape", "Squeeze", "Unsqueeze"), ([0],)
)
"""Operator to the possible places of its only input with a gradient; others only scale it."""


@slope(*_SLOPES)
def _by_table(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = f(x)`: `g f'(x)`, which :data:`_SLOPES` has for each function."""
    return _SLOPES[b.node.op_type](g, x, y)


@slope("Sqrt")
def _sqrt(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = sqrt(x)`: `g / (2 y)`; of a sum of squares 0 where `y = 0`, as for ReduceL2."""
    return of_root(b, y, g * 0.5 / y)


def of_root(b: Backward, y: Term, found: Term) -> Term:
    """The gradient of a root, but 0 where that of a sum of squares is 0.

    A standard deviation without an epsilon is 0 where a channel is constant, for example after a
    Relu: there the gradient of ``torch.std`` is 0, and `0 / 0` would skip every step.
    """
    if not _sums_squares(b.input(0), b.active):
        return found
    return y.call("Equal", 0.0).where(0.0, found)


def _sums_squares(value: ir.Value, active: Collection[str]) -> bool:
    """Whether a value is a sum or mean of squares, times factors without a gradient."""
    while (node := value.producer()) is not None and is_standard(node):
        if node.op_type == "ReduceSumSquare":
            return True
        if node.op_type in ("ReduceMean", "ReduceSum"):
            return _is_square(node.inputs[0])
        places = [i for i, v in enumerate(node.inputs) if v is not None and v.name in active]
        if places not in _SCALED.get(node.op_type, ()):
            return False
        value = node.inputs[places[0]] or value
    return False


def _is_square(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    exponent = constant(node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and bool(np.all(exponent == 2))
