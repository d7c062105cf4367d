r"""Functions of one input, elementwise: powers, exponentials, trigonometric and hyperbolic ones.

`g` is the gradient of the output `y = f(x)`; each rule is `g f'(x)`, expressed by `y` if that is
cheaper.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import register

__all__: list[str] = []


_Slope: TypeAlias = Callable[[Backward], ir.Value]


def _slope(op_type: str) -> Callable[[_Slope], _Slope]:
    """Register the gradient of the only input of an operator."""

    def enter(slope: _Slope) -> _Slope:
        @functools.wraps(slope)
        def rule(b: Backward) -> Gradients:
            return [slope(b)]

        register(op_type)(rule)
        return slope

    return enter


def _op(b: Backward, op_type: str, *inputs: ir.Value) -> ir.Value:
    return b.op(op_type, *inputs, shape=b.output().shape)


def _square(b: Backward, value: ir.Value) -> ir.Value:
    return _op(b, "Mul", value, value)


@_slope("Abs")
def _abs(b: Backward) -> ir.Value:
    """`|x|`: `g sign(x)`, 0 at 0."""
    return _op(b, "Mul", b.gradient(), _op(b, "Sign", b.input(0)))


@_slope("Exp")
def _exp(b: Backward) -> ir.Value:
    """`exp(x)`: `g y`."""
    return _op(b, "Mul", b.gradient(), b.output())


@_slope("Log")
def _log(b: Backward) -> ir.Value:
    """`log(x)`: `g / x`."""
    return _op(b, "Div", b.gradient(), b.input(0))


@_slope("Sqrt")
def _sqrt(b: Backward) -> ir.Value:
    """`sqrt(x)`: `g / (2 y)`."""
    return _op(b, "Div", _op(b, "Mul", b.gradient(), b.const(0.5)), b.output())


@_slope("Reciprocal")
def _reciprocal(b: Backward) -> ir.Value:
    """`1 / x`: `-g y^2`."""
    return _op(b, "Neg", _op(b, "Mul", b.gradient(), _square(b, b.output())))


@_slope("Sin")
def _sin(b: Backward) -> ir.Value:
    """`sin(x)`: `g cos(x)`."""
    return _op(b, "Mul", b.gradient(), _op(b, "Cos", b.input(0)))


@_slope("Cos")
def _cos(b: Backward) -> ir.Value:
    """`cos(x)`: `-g sin(x)`."""
    return _op(b, "Neg", _op(b, "Mul", b.gradient(), _op(b, "Sin", b.input(0))))


@_slope("Tan")
def _tan(b: Backward) -> ir.Value:
    """`tan(x)`: `g (1 + y^2)`."""
    return _op(b, "Mul", b.gradient(), _op(b, "Add", _square(b, b.output()), b.const(1.0)))


@_slope("Tanh")
def _tanh(b: Backward) -> ir.Value:
    """`tanh(x)`: `g (1 - y^2)`."""
    return _op(b, "Mul", b.gradient(), _op(b, "Sub", b.const(1.0), _square(b, b.output())))


@_slope("Sigmoid")
def _sigmoid(b: Backward) -> ir.Value:
    """`1 / (1 + exp(-x))`: `g y (1 - y)`."""
    y = b.output()
    slope = _op(b, "Mul", y, _op(b, "Sub", b.const(1.0), y))
    return _op(b, "Mul", b.gradient(), slope)


@_slope("Erf")
def _erf(b: Backward) -> ir.Value:
    """`erf(x)`: `g 2 / sqrt(pi) exp(-x^2)`."""
    bell = _op(b, "Exp", _op(b, "Neg", _square(b, b.input(0))))
    scaled = _op(b, "Mul", bell, b.const(2.0 / math.sqrt(math.pi)))
    return _op(b, "Mul", b.gradient(), scaled)


@_slope("Sinh")
def _sinh(b: Backward) -> ir.Value:
    """`sinh(x)`: `g cosh(x)`."""
    return _op(b, "Mul", b.gradient(), _op(b, "Cosh", b.input(0)))


@_slope("Cosh")
def _cosh(b: Backward) -> ir.Value:
    """`cosh(x)`: `g sinh(x)`."""
    return _op(b, "Mul", b.gradient(), _op(b, "Sinh", b.input(0)))


@_slope("Asin")
def _asin(b: Backward) -> ir.Value:
    """`asin(x)`: `g / sqrt(1 - x^2)`."""
    inside = _op(b, "Sub", b.const(1.0), _square(b, b.input(0)))
    return _op(b, "Div", b.gradient(), _op(b, "Sqrt", inside))


@_slope("Acos")
def _acos(b: Backward) -> ir.Value:
    """`acos(x)`: `-g / sqrt(1 - x^2)`."""
    return _op(b, "Neg", _asin(b))


@_slope("Atan")
def _atan(b: Backward) -> ir.Value:
    """`atan(x)`: `g / (1 + x^2)`."""
    below = _op(b, "Add", _square(b, b.input(0)), b.const(1.0))
    return _op(b, "Div", b.gradient(), below)


@_slope("Asinh")
def _asinh(b: Backward) -> ir.Value:
    """`asinh(x)`: `g / sqrt(x^2 + 1)`."""
    inside = _op(b, "Add", _square(b, b.input(0)), b.const(1.0))
    return _op(b, "Div", b.gradient(), _op(b, "Sqrt", inside))


@_slope("Acosh")
def _acosh(b: Backward) -> ir.Value:
    """`acosh(x)`: `g / (sqrt(x - 1) sqrt(x + 1))`."""
    x, one = b.input(0), b.const(1.0)
    low = _op(b, "Sqrt", _op(b, "Sub", x, one))
    high = _op(b, "Sqrt", _op(b, "Add", x, one))
    return _op(b, "Div", b.gradient(), _op(b, "Mul", low, high))


@_slope("Atanh")
def _atanh(b: Backward) -> ir.Value:
    """`atanh(x)`: `g / (1 - x^2)`."""
    below = _op(b, "Sub", b.const(1.0), _square(b, b.input(0)))
    return _op(b, "Div", b.gradient(), below)
