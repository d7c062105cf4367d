"""Sums, means, extrema and products.

ReduceMax and ReduceMin distribute the gradient evenly among equal extrema, as ``torch.amax`` does.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.conditions import fixed_axes
from ortboost.autodiff.decompose.registry import decomposes
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_MAX_PRODUCT = 64  # factors; each is a node


@decomposes("Sum")
def _sum(site: Site) -> list[ir.Value | None]:
    """A chain of additions."""
    total = site.input(0)
    for index in range(1, len(site.node.inputs)):
        total = site.op("Add", total, site.input(index))
    return [total if len(site.node.inputs) > 1 else site.op("Identity", total)]


@decomposes("Mean")
def _mean(site: Site) -> list[ir.Value | None]:
    """The sum divided by the number of inputs."""
    (total,) = _sum(site)
    return [site.op("Mul", total, site.const(1.0 / len(site.node.inputs)))]


@decomposes("ReduceL1")
def _reduce_l1(site: Site) -> list[ir.Value | None]:
    """``sum(|x|)``."""
    data = site.op("Abs", site.input(0))
    return [site.op("ReduceSum", data, site.optional(1), **site.node.attributes)]


@decomposes("ReduceSumSquare")
def _reduce_sum_square(site: Site) -> list[ir.Value | None]:
    """``sum(x * x)``."""
    data = site.op("Mul", site.input(0), site.input(0))
    return [site.op("ReduceSum", data, site.optional(1), **site.node.attributes)]


@decomposes("ReduceLogSum")
def _reduce_log_sum(site: Site) -> list[ir.Value | None]:
    """``log(sum(x))``."""
    total = site.op("ReduceSum", site.input(0), site.optional(1), **site.node.attributes)
    return [site.op("Log", total)]


def extremum(
    site: Site, op_type: str, data: ir.Value, axes: ir.Value | None, keep: int
) -> ir.Value:
    """``sum(x where x is the extremum) / count``; no gradient flows through the comparison."""
    best = site.op(op_type, data, axes, keepdims=1)
    chosen = site.op("Equal", data, best)
    zeros = site.filled(0, site.shape_of(data), shape=data.shape)
    kept = site.op("Where", chosen, data, zeros, shape=data.shape)
    ones = site.cast(chosen)
    total = site.op("ReduceSum", kept, axes, keepdims=keep)
    return site.op("Div", total, site.op("ReduceSum", ones, axes, keepdims=keep))


@decomposes("ReduceMax", "ReduceMin")
def _extremum(site: Site) -> list[ir.Value | None]:
    """The mean of the elements equal to the extremum."""
    axes = fixed_axes(site)
    if not axes:
        return [site.op("Identity", site.input(0))]
    keep = site.integer("keepdims", 1)
    given = site.ints(*axes)
    return [extremum(site, site.node.op_type, site.input(0), given, keep)]


@decomposes("GlobalMaxPool")
def _global_max_pool(site: Site) -> list[ir.Value | None]:
    """The maximum over all spatial axes."""
    axes = site.ints(*range(2, site.rank()))
    return [extremum(site, "ReduceMax", site.input(0), axes, 1)]


@decomposes("ReduceProd")
def _reduce_prod(site: Site) -> list[ir.Value | None]:
    """A chain of products of slices, which is correct even if factors are 0."""
    axes = fixed_axes(site)
    if not axes:
        return [site.op("Identity", site.input(0))]
    result = site.input(0)
    for axis in axes:
        length = site.shape()[axis]
        if not isinstance(length, int) or length > _MAX_PRODUCT:
            raise Refusal(f"axis {axis} has no fixed length of at most {_MAX_PRODUCT}")
        pieces = [site.op("Gather", result, site.ints(index), axis=axis) for index in range(length)]
        result = pieces[0]
        for piece in pieces[1:]:
            result = site.op("Mul", result, piece)
    if not site.integer("keepdims", 1):
        result = site.op("Squeeze", result, site.ints(*axes))
    return [result]


@decomposes("CumSum")
def _cum_sum(site: Site) -> list[ir.Value | None]:
    """A product with a triangular matrix of ones along the axis, ``O(length^2)``."""
    axis_value = site.array(1)
    if axis_value is None:
        raise Refusal("its axis is not constant; export with a fixed axis")
    rank, data = site.rank(), site.input(0)
    axis = int(axis_value.reshape(-1)[0]) % rank
    exclusive, reverse = site.integer("exclusive", 0), site.integer("reverse", 0)
    order = [other for other in range(rank) if other != axis] + [axis]
    back = [order.index(place) for place in range(rank)]
    length = site.shape_of(data, axis, axis + 1)
    square = site.op("Concat", length, length, axis=0)
    ones = site.filled(1, square)
    shift = site.builder.const((-1 if reverse else 1) if exclusive else 0, ir.DataType.INT64)
    # y[j] = sum_i x[i] T[i, j], T = 1 for i <= j; i < j if exclusive; i >= j in reverse.
    triangle = site.op("Trilu", ones, shift, upper=0 if reverse else 1)
    moved = data if axis == rank - 1 else site.op("Transpose", data, perm=order)
    if rank == 1:  # the native gradient of a product with a vector may be wrong
        row = site.op("MatMul", site.op("Unsqueeze", moved, site.ints(0)), triangle)
        return [site.op("Squeeze", row, site.ints(0))]
    summed = site.op("MatMul", moved, triangle)
    return [summed if axis == rank - 1 else site.op("Transpose", summed, perm=back)]
