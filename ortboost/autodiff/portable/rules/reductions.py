r"""Sums, means, norms, extrema and products over axes.

Shapes: data `x`, output `y` with or without the reduced axes, `g` like `y`. `K(v)` is `v` with the
reduced axes restored with length 1, so that it broadcasts against `x`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import empty_axes, reduced_axes
from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.sizes import dims, wider
from ortboost.graph.query import known_shape

__all__: list[str] = []

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
Dims = tuple[int | str | None, ...]


def _op(b: Backward, op_type: str, *inputs: ir.Value) -> ir.Value:
    """Create a node whose output has the shape and dtype of `x`."""
    return b.op(op_type, *inputs, dtype=b.dtype, shape=b.input(0).shape)


def kept_dims(b: Backward) -> Dims | None:
    """Shape of `K(y)`, if known."""
    shape, axes = known_shape(b.input(0)), reduced_axes(b)
    if shape is None or axes is None:
        return None
    return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))


def kept(b: Backward, value: ir.Value) -> ir.Value:
    """`K(value)` of a value with the shape of `y`; a scalar is returned unchanged."""
    if b.integer("keepdims", 1):
        return value
    axes = reduced_axes(b)
    if _all_axes(b) or axes == ():  # a scalar, which broadcasts, or not reduced
        return value
    if axes is not None:
        return b.op("Unsqueeze", value, b.ints(*axes), shape=kept_dims(b))
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
    count = b.op("Shape", axes, dtype=_INT64)
    ones = b.op("Expand", b.ints(1), count, dtype=_INT64)
    written = b.op("ScatterElements", full, axes, ones, dtype=_INT64, axis=0)
    if b.integer("noop_with_empty_axes", 0):
        return written
    none = b.op("Equal", count, b.ints(0), dtype=_BOOL)
    return b.op("Where", none, b.ints(1), written, dtype=_INT64)


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
        lengths = [shape[axis] for axis in axes]
        if all(isinstance(length, int) for length in lengths):
            count = int(np.prod([n for n in lengths if isinstance(n, int)], dtype=np.int64))
            return b.const(1.0 / max(count, 1), dtype)
    # The axes are only known at run time: compare the sizes of y and x.
    sizes = [b.cast(b.op("Size", v, dtype=_INT64), dtype) for v in (b.output(), b.input(0))]
    return b.op("Div", *sizes, shape=())


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
    return _op(b, "Mul", _op(b, "Sign", b.input(0)), kept(b, b.gradient()))


def _l2(b: Backward) -> ir.Value:
    """`y = sqrt(sum(x^2))`: `K(g / y) x`, 0 where `y = 0`."""
    y, shape, zero = b.output(), b.output().shape, b.const(0.0)
    ratio = b.op("Div", b.gradient(), y, shape=shape)
    is_zero = b.op("Equal", y, zero, dtype=_BOOL, shape=shape)
    safe = b.op("Where", is_zero, zero, ratio, dtype=b.dtype, shape=shape)
    return _op(b, "Mul", b.input(0), kept(b, safe))


def _sum_square(b: Backward) -> ir.Value:
    """`sum(x^2)`: `K(2 g) x`."""
    double = b.op("Mul", b.gradient(), b.const(2.0), shape=b.output().shape)
    return _op(b, "Mul", b.input(0), kept(b, double))


def _log_sum(b: Backward) -> ir.Value:
    """`y = log(sum(x))`: `K(g exp(-y))`."""
    shape = b.output().shape
    inverse = b.op("Exp", b.op("Neg", b.output(), shape=shape), shape=shape)
    return _expand_to_input(b, kept(b, b.op("Mul", b.gradient(), inverse, shape=shape)))


def _log_sum_exp(b: Backward) -> ir.Value:
    """`y = log(sum(exp(x)))`: `K(g) exp(x - K(y))`."""
    share = _op(b, "Exp", _op(b, "Sub", b.input(0), kept(b, b.output())))
    return _op(b, "Mul", share, kept(b, b.gradient()))


def _extremum(b: Backward) -> ir.Value:
    """`max(x)`: `K(g / n)` where `x = K(y)`, with n the number of ties."""
    hit = b.op("Equal", b.input(0), kept(b, b.output()), dtype=_BOOL, shape=b.input(0).shape)
    ones = b.cast(hit)
    options = _options(b)
    count = b.op("ReduceSum", ones, b.optional(1), shape=b.output().shape, **options)
    part = b.op("Div", b.gradient(), count, shape=b.output().shape)
    return b.masked(hit, kept(b, part))


def _options(b: Backward) -> dict[str, int]:
    """The attributes that determine the reduced axes and the shape."""
    return {
        "noop_with_empty_axes": b.integer("noop_with_empty_axes", 0),
        "keepdims": b.integer("keepdims", 1),
    }


def _op_where(b: Backward, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
    return b.op("Where", condition, yes, no, dtype=b.dtype, shape=b.input(0).shape)


def _prod(b: Backward) -> ir.Value:
    r"""`y = prod(x)`: the product of the other factors, correct even with zeros.

    With `z` zeros among the factors and `q` the product of the factors that are not 0:

        K(g q) / x where x is not 0 and z = 0,   K(g q) where x = 0 and z = 1,   else 0
    """
    x, zero, one = b.input(0), b.const(0.0), b.const(1.0)
    options = _options(b)
    axes = b.optional(1)

    def equal(left: ir.Value, right: ir.Value) -> ir.Value:
        return b.op("Equal", left, right, dtype=_BOOL, shape=left.shape)

    is_zero = equal(x, zero)
    ones = b.cast(is_zero)
    zeros = b.op("ReduceSum", ones, axes, shape=b.output().shape, **options)
    factors = _op_where(b, is_zero, one, x)  # also divisors that are never 0
    product = b.op("ReduceProd", factors, axes, shape=b.output().shape, **options)
    scaled = b.op("Mul", b.gradient(), product, shape=b.output().shape)

    def only(count: ir.Value) -> ir.Value:
        chosen = b.op(
            "Where", equal(zeros, count), scaled, zero, dtype=b.dtype, shape=b.output().shape
        )
        return kept(b, chosen)

    return _op_where(b, is_zero, only(one), _op(b, "Div", only(zero), factors))


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
