"""Resize, with constant or computed sizes.

The positions of the new points on the old axis are computed in the graph, in float32 and in the
order of operations of onnxruntime's kernels: otherwise `1 / (1/3)` may differ from 3 and select
another nearest pixel. If the lengths are constants, the runtime folds all of this when it loads the
graph.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.sizes import joined, length
from ortboost.graph.dimensions import dimensions, elements
from ortboost.graph.query import constant, producer_of
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_TAPS = (-1, 0, 1, 2)


class _Axis:
    """One resized axis; operators compute in float32, and lengths are vectors of one element.

    Args:
        site: The node.
        axis: The axis.
        place: Its index in the scales or sizes.
    """

    def __init__(self, site: Site, axis: int, place: int) -> None:
        self.site, self.axis = site, axis
        start = site.ints(place), site.ints(place + 1)
        self.length = joined(site, [length(site, site.input(0), axis)])
        sizes = site.optional(3)
        old = self.cast(self.length)
        # One is given, the other follows: the size is rounded down, the scale is not changed by it.
        if sizes is not None:
            self.size = site.op("Slice", sizes, *start, dtype=_INT64)
            self.scale = self.op("Div", self.cast(self.size), old)
        else:
            self.scale = site.op("Slice", site.input(2), *start, dtype=_FLOAT)
            self.size = self.cast(self.op("Floor", self.op("Mul", old, self.scale)), _INT64)

    def op(self, op_type: str, *inputs: ir.Value, dtype: ir.DataType = _FLOAT) -> ir.Value:
        return self.site.op(op_type, *inputs, dtype=dtype)

    def number(self, value: float) -> ir.Value:
        return self.site.builder.const(value, _FLOAT)

    def cast(self, value: ir.Value, dtype: ir.DataType = _FLOAT) -> ir.Value:
        return self.site.cast(value, dtype)

    def count(self, length: ir.Value) -> ir.Value:
        """0, 1, ... in float32."""
        zero, one = (self.site.builder.const(k, _INT64) for k in (0, 1))
        scalar = self.op("Squeeze", length, dtype=_INT64)
        return self.cast(self.op("Range", zero, scalar, one, dtype=_INT64))

    def positions(self) -> ir.Value:
        """Positions of the points of the resized axis on the original one."""
        mode = self.site.text("coordinate_transformation_mode", "half_pixel")
        points, one, half = self.count(self.size), self.number(1), self.number(0.5)
        old, new = self.cast(self.length), self.cast(self.size)
        if mode == "asymmetric":
            return self.op("Div", points, self.scale)
        if mode == "align_corners":
            steps = self.op("Max", self.op("Sub", new, one), one)
            return self.op("Div", self.op("Mul", points, self.op("Sub", old, one)), steps)
        found = self.op("Div", self.op("Add", points, half), self.scale)
        if mode == "tf_half_pixel_for_nn":  # an axis that keeps its length stays as it is
            kept = self.op("Equal", self.scale, one, dtype=_BOOL)
            return self.op("Where", kept, points, found)
        found = self.op("Sub", found, half)
        if mode == "half_pixel":
            return found
        if mode == "pytorch_half_pixel":
            several = self.op("Greater", new, one, dtype=_BOOL)
            return self.op("Where", several, found, self.number(0))
        raise Refusal(f"coordinate_transformation_mode='{mode}' has no gradient here")

    def clipped(self, places: ir.Value) -> ir.Value:
        last = self.op("Sub", self.cast(self.length), self.number(1))
        return self.op("Min", self.op("Max", places, self.number(0)), last)

    def nearest(self) -> ir.Value:
        """The nearest pixels, as in onnxruntime 1.19; 1.31 differs in ties of round_prefer_ceil."""
        mode = self.site.text("nearest_mode", "round_prefer_floor")
        found, half = self.positions(), self.number(0.5)
        if mode == "floor":
            found = self.op("Floor", found)
        elif mode == "ceil":
            found = self.op("Ceil", found)
        elif mode == "round_prefer_ceil":
            found = self.op("Floor", self.op("Add", found, half))
        else:
            found = self.op("Ceil", self.op("Sub", found, half))
        return self.cast(self.clipped(found), _INT64)

    def linear(self) -> ir.Value:
        """Weights `[length, size]`: `max(0, 1 - |i - p|)`, constant beyond the ends."""
        far = self.op("Abs", self.op("Sub", self.clipped(self.positions()), self.rows()))
        return self.op("Max", self.op("Sub", self.number(1), far), self.number(0))

    def cubic(self) -> ir.Value:
        r"""Weights `[length, size]` of the four neighbours, which are limited to the axis.

        With `d` the distance and `a = cubic_coeff_a`: `(a + 2) d^3 - (a + 3) d^2 + 1` up to 1, then
        `a (d^3 - 5 d^2 + 8 d - 4)`. With `exclude_outside`, pixels beyond the ends have weight 0.
        """
        a = self.site.number("cubic_coeff_a", -0.75)
        exact = bool(self.site.integer("exclude_outside", 0))
        positions = self.positions()
        low, rows, parts = self.op("Floor", positions), self.rows(), list[ir.Value]()
        for tap in _TAPS:
            place = self.op("Add", low, self.number(tap))
            d = self.op("Abs", self.op("Sub", positions, place))
            if tap in (0, 1):  # the neighbours at most 1 away, then those up to 2 away
                weight = self.polynomial(d, (a + 2, -(a + 3), 0, 1))
            else:
                weight = self.polynomial(d, (a, -5 * a, 8 * a, -4 * a))
            target = place if exact else self.clipped(place)
            hit = self.cast(self.op("Equal", rows, target, dtype=_BOOL))
            parts.append(self.op("Mul", hit, weight))
        # Taps limited to the axis may coincide: their weights are added.
        total = functools.reduce(lambda left, right: self.op("Add", left, right), parts)
        if exact:  # the weights that are left must sum to 1 again
            columns = self.site.op("ReduceSum", total, self.site.ints(0), keepdims=1, dtype=_FLOAT)
            total = self.op("Div", total, columns)
        return total

    def polynomial(self, d: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
        """Horner's rule, the highest power first."""
        total = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.op("Add", self.op("Mul", total, d), self.number(coefficient))
        return total

    def rows(self) -> ir.Value:
        return self.op("Unsqueeze", self.count(self.length), self.site.ints(1))


@decomposes("Resize")
def _resize(site: Site) -> list[ir.Value | None]:
    """Nearest: a Gather along each axis; linear and cubic: products with weight matrices."""
    mode = site.text("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic") or site.integer("antialias", 0):
        raise Refusal(
            f"mode='{mode}' (antialias={site.integer('antialias', 0)}) has no gradient here"
        )
    if site.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("keep_aspect_ratio_policy has no gradient here")
    rank, data = site.rank(), site.input(0)
    result, dims = data, list(site.shape())
    # Interpolation is separable: one axis after the other.
    for place, axis in enumerate(a % rank for a in site.integers("axes") or range(rank)):
        if _is_kept(site, axis, place):
            continue
        resized = _Axis(site, axis, place)
        dims[axis] = None
        if mode == "nearest":
            result = site.op("Gather", result, resized.nearest(), shape=dims, axis=axis)
            continue
        matrix = resized.linear() if mode == "linear" else resized.cubic()
        if site.dtype != _FLOAT:
            matrix = resized.cast(matrix, site.dtype)
        matrix.shape = ir.Shape([None, None])  # in case shape inference fails
        order = [other for other in range(rank) if other != axis] + [axis]
        inverse = [order.index(other) for other in range(rank)]
        shape = [dims[other] for other in order]
        last = site.op("Transpose", result, shape=shape, perm=order)  # [..., length]
        resampled = site.op("MatMul", last, matrix, shape=shape)  # [..., size]
        result = site.op("Transpose", resampled, shape=dims, perm=inverse)
    return [result if result is not data else site.op("Identity", data)]


def _is_kept(site: Site, axis: int, place: int) -> bool:
    """Whether an axis certainly keeps its length."""
    sizes = site.optional(3)
    if sizes is not None:
        found, lengths = elements(sizes), dimensions(site.input(0))
        if found is None or lengths is None or place >= len(found):
            return False
        return found[place] == lengths[axis]
    parts = producer_of(site.input(2), "Concat")  # ones, and computed scales behind them
    array = constant(site.input(2) if parts is None else parts.inputs[0])
    return array is not None and place < array.size and bool(array.reshape(-1)[place] == 1.0)
