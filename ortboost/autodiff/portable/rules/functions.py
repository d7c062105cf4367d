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
from ortboost.graph.query import constant, is_standard, producer_of

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

_SCALES: Final = ("Abs", "Cast", "Div", "Expand", "Relu", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that only scale or copy a sum of powers, if no other input has a gradient."""


@slope(*_SLOPES)
def _by_table(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = f(x)`: `g f'(x)`, which :data:`_SLOPES` has for each function."""
    return _SLOPES[b.node.op_type](g, x, y)


@slope("Sqrt")
def _root(b: Backward, g: Term, x: Term, y: Term) -> Term:
    """`y = sqrt(x)`: `g / (2 y)`; of a sum of squares 0 where `y = 0`, as for ReduceL2."""
    return zero_at_zero(b, y, g * 0.5 / y)


def zero_at_zero(b: Backward, y: Term, found: Term) -> Term:
    """The gradient of a root; 0 where the root of a sum of squares, or other powers, is 0.

    A standard deviation without an epsilon is 0 where a channel is constant, for example after a
    Relu: there the gradient of ``torch.std`` is 0, and `0 / 0` would skip every step.
    """
    if not _sums_powers(b.input(0), b.active):
        return found
    return y.call("Equal", 0.0).where(0.0, found)


def _sums_powers(value: ir.Value | None, active: Collection[str]) -> bool:
    """Whether a value is a sum or mean of even powers, or powers of absolute values, or a product.

    Where such a sum is 0, all its terms and their slopes are 0. Factors without a gradient do not
    matter.
    """
    node = value.producer() if value is not None else None
    if node is None or not is_standard(node):
        return False
    if node.op_type == "ReduceSumSquare":
        return True
    if node.op_type in ("AveragePool", "ReduceMean", "ReduceSum"):
        return _is_power(node.inputs[0])
    places = [i for i, v in enumerate(node.inputs) if v is not None and v.name in active]
    if node.op_type == "Mul" or (node.op_type in _SCALES and places == [0]):
        return bool(places) and all(_sums_powers(node.inputs[i], active) for i in places)
    return False


def _is_power(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    exponent = constant(node.inputs[1]) if node.op_type == "Pow" else None
    if exponent is None or not np.all(exponent > 1):
        return False
    return producer_of(node.inputs[0], "Abs", "Relu") is not None or bool(np.all(exponent % 2 == 0))
