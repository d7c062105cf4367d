r"""Sums, means, norms, extrema and products over axes; cumulative sums.

Shapes: data `x`, output `y` with or without the reduced axes, `g` like `y`. `K(v)` is `v` with the
reduced axes restored with length 1, so that it broadcasts against `x`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.conditions import empty_axes, reduced_axes
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import dims, wider
from ortboost.graph.formulas import Term
from ortboost.graph.query import fixed_lengths, known_shape, static_shape

__all__: list[str] = []

_INT64 = ir.DataType.INT64


def _like_x(b: Backward, value: ir.Value) -> Term:
    """A term whose results have the shape of `x`."""
    return Term(b, value, b.input(0).shape)


def _like_y(b: Backward, value: ir.Value) -> Term:
    """A term whose results have the shape of `y`."""
    return Term(b, value, b.output().shape)


def _kept(b: Backward, value: ir.Value) -> Term:
    """`K(value)` as a term whose results have the shape of `x`."""
    return _like_x(b, kept(b, value))


def kept(b: Backward, value: ir.Value) -> ir.Value:
    """`K(value)` of a value with the shape of `y`; a scalar is returned unchanged."""
    if b.integer("keepdims", 1):
        return value
    axes = reduced_axes(b)
    if _all_axes(b) or axes == ():  # a scalar, which broadcasts, or not reduced
        return value
    if axes is not None:
        whole = known_shape(b.input(0))
        shape = whole and [1 if axis in axes else dim for axis, dim in enumerate(whole)]
        return b.op("Unsqueeze", value, b.ints(*axes), shape=shape)
    return b.op("Reshape", value, _kept_shape(b), allowzero=1)


def _all_axes(b: Backward) -> bool:
    """Whether certainly all axes are reduced, so that `y` has one element."""
    if b.optional(1) is None:
        return not b.integer("noop_with_empty_axes", 0)
    shape, axes = known_shape(b.input(0)), reduced_axes(b)
    return shape is not None and axes is not None and len(axes) == len(shape)


def _kept_shape(b: Backward) -> ir.Value:
    """Shape of `K(y)` at run time for computed axes: the shape of `x` with ones at the axes.

    Empty axes mean all axes (with ``noop_with_empty_axes``: none).
    """
    axes = b.cast(b.input(1), _INT64)
    full = b.shape_of(b.input(0))
    count = b.op("Shape", axes)
    ones = b.op("Expand", b.ints(1), count)
    written = b.op("ScatterElements", full, axes, ones, axis=0)
    if b.integer("noop_with_empty_axes", 0):
        return written
    none = b.op("Equal", count, b.ints(0))
    return b.op("Where", none, b.ints(1), written)


def _expand_to_input(b: Backward, value: ir.Value) -> ir.Value:
    """Expand a value with the shape of `K(y)` to the shape of `x`."""
    x = b.input(0)
    have, want = known_shape(value), known_shape(x)
    if want is not None and have == want and None not in want:
        return value
    return b.op("Expand", value, dims(b, x), shape=x.shape)


def _share(b: Backward, dtype: ir.DataType) -> ir.Value:
    """The reciprocal of the number of elements reduced to one."""
    shape, axes = known_shape(b.input(0)), reduced_axes(b)
    if shape is not None and axes is not None:
        lengths = fixed_lengths([shape[axis] for axis in axes])
        if lengths is not None:
            return b.const(1.0 / max(math.prod(lengths), 1), dtype)
    # The axes or lengths are only known at run time: compare the sizes of y and x.
    size, fixed = b.cast(b.op("Size", b.input(0)), dtype), static_shape(b.output())
    if fixed is not None:
        return b.op("Div", b.const(float(math.prod(fixed)), dtype), size, shape=())
    return b.op("Div", b.cast(b.op("Size", b.output()), dtype), size, shape=())


def _sum(b: Backward) -> ir.Value:
    """`sum(x)`: `K(g)`."""
    return _expand_to_input(b, kept(b, b.gradient()))


def _mean(b: Backward) -> ir.Value:
    """`mean(x)` over n elements: `K(g / n)`."""
    dtype, shape = wider(b.dtype), b.output().shape
    part = b.op("Mul", b.cast(b.gradient(), dtype), _share(b, dtype), shape=shape)
    return _expand_to_input(b, kept(b, b.cast(part)))


def _l1(b: Backward) -> ir.Value:
    """`sum(|x|)`: `K(g) sign(x)`."""
    return (_like_x(b, b.input(0)).call("Sign") * _kept(b, b.gradient())).value


def _l2(b: Backward) -> ir.Value:
    """`y = sqrt(sum(x^2))`: `K(g / y) x`, 0 where `y = 0`."""
    g, y = _like_y(b, b.gradient()), _like_y(b, b.output())
    ratio = g / y
    safe = y.call("Equal", 0.0).where(0.0, ratio)
    return (_like_x(b, b.input(0)) * _kept(b, safe.value)).value


def _sum_square(b: Backward) -> ir.Value:
    """`sum(x^2)`: `K(2 g) x`."""
    double = _like_y(b, b.gradient()) * 2.0
    return (_like_x(b, b.input(0)) * _kept(b, double.value)).value


def _log_sum(b: Backward) -> ir.Value:
    """`y = log(sum(x))`: `K(g exp(-y))`."""
    part = _like_y(b, b.gradient()) * (-_like_y(b, b.output())).call("Exp")
    return _expand_to_input(b, kept(b, part.value))


def _log_sum_exp(b: Backward) -> ir.Value:
    """`y = log(sum(exp(x)))`: `K(g) exp(x - K(y))`."""
    share = (_like_x(b, b.input(0)) - _kept(b, b.output())).call("Exp")
    return (share * _kept(b, b.gradient())).value


def _extremum(b: Backward) -> ir.Value:
    """`max(x)`: `K(g / n)` where `x = K(y)`, with n the number of ties."""
    hit = _like_x(b, b.input(0)).call("Equal", kept(b, b.output())).value
    part = _like_y(b, b.gradient()) / _reduced(b, "ReduceSum", b.cast(hit))
    return b.masked(hit, kept(b, part.value))


def _reduced(b: Backward, op_type: str, value: ir.Value) -> Term:
    """Reduce a value of the shape of `x` over the same axes."""
    options = {"noop_with_empty_axes": b.integer("noop_with_empty_axes", 0)}
    keep = b.integer("keepdims", 1)
    return _like_y(
        b, b.op(op_type, value, b.optional(1), keepdims=keep, shape=b.output().shape, **options)
    )


def _prod(b: Backward) -> ir.Value:
    r"""`y = prod(x)`: the product of the other factors, correct even with zeros.

    With `z` zeros among the factors and `q` the product of the factors that are not 0:

        K(g q) / x where x is not 0 and z = 0,   K(g q) where x = 0 and z = 1,   else 0
    """
    x = _like_x(b, b.input(0))
    is_zero = x.call("Equal", 0.0)
    zeros = _reduced(b, "ReduceSum", b.cast(is_zero.value))
    factors = is_zero.where(1.0, x)  # also divisors that are never 0
    scaled = _like_y(b, b.gradient()) * _reduced(b, "ReduceProd", factors.value)

    def only(count: float) -> Term:
        return _kept(b, zeros.call("Equal", count).where(scaled, 0.0).value)

    return is_zero.where(only(1.0), only(0.0) / factors).value


NORMS: dict[str, Callable[[Backward], ir.Value]] = {
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extremum,
    "ReduceMean": _mean,
    "ReduceMin": _extremum,
    "ReduceProd": _prod,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_square,
}
"""Operator to the gradient of its data."""
_NOOP_IS_IDENTITY = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


@register(*NORMS)
def _reduction(b: Backward) -> Gradients:
    """The gradient by :data:`NORMS`, or that of the identity if no axis is reduced."""
    if reduced_axes(b) == () and b.node.op_type in _NOOP_IS_IDENTITY:
        return [b.gradient()]
    return [NORMS[b.node.op_type](b)]


refuses(*(op for op in NORMS if op not in _NOOP_IS_IDENTITY))(empty_axes)


@register("CumSum")
def cum_sum(b: Backward) -> Gradients:
    """Cumulative sums along an axis: `g` summed from the other end."""
    reverse, exclusive = 1 - b.integer("reverse", 0), b.integer("exclusive", 0)
    axis, shape = b.input(1), b.input(0).shape
    found = b.op("CumSum", b.gradient(), axis, reverse=reverse, exclusive=exclusive, shape=shape)
    return [found]
