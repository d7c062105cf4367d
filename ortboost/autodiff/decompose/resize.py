"""Resize, with constant or computed sizes.

The positions of the new points on the old axis are computed in the graph, in float32 and in the
order of operations of onnxruntime's kernels: otherwise `1 / (1/3)` may differ from 3 and select
another nearest pixel. If the lengths are constants, the runtime folds all of this when it loads the
graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.sizes import joined, length
from ortboost.graph.formulas import Term
from ortboost.graph.query import constant, producer_of
from ortboost.graph.rewriting import Refusal, Site
from ortboost.graph.shapes.dimensions import dimensions, elements

__all__: list[str] = []

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_TAPS = (-1, 0, 1, 2)


class _Axis:
    """One resized axis, whose terms are float32.

    Args:
        site: The node.
        axis: The axis.
        place: Its index in the scales or sizes.
    """

    def __init__(self, site: Site, axis: int, place: int) -> None:
        self.site = site
        start = site.ints(place), site.ints(place + 1)
        self.length = joined(site, [length(site, site.input(0), axis)])
        self.old = self._term(self.length)
        sizes = site.optional(3)
        # One is given, the other follows: the size is rounded down, the scale is not changed by it.
        if sizes is not None:
            self.size = site.op("Slice", sizes, *start, dtype=_INT64)
            self.new = self._term(self.size)
            self.scale = self.new / self.old
        else:
            self.scale = Term(site, site.op("Slice", site.input(2), *start, dtype=_FLOAT))
            self.size = site.cast((self.old * self.scale).call("Floor").value, _INT64)
            self.new = self._term(self.size)

    def _term(self, value: ir.Value) -> Term:
        return Term(self.site, self.site.cast(value, _FLOAT))

    def count(self, length: ir.Value) -> Term:
        """0, 1, ..."""
        site = self.site
        zero, one = (site.builder.const(k, _INT64) for k in (0, 1))
        return self._term(site.op("Range", zero, site.op("Squeeze", length), one))

    def positions(self) -> Term:
        """Positions of the points of the resized axis on the original one."""
        mode = self.site.text("coordinate_transformation_mode", "half_pixel")
        points = self.count(self.size)
        if mode == "asymmetric":
            return points / self.scale
        if mode == "align_corners":
            return points * (self.old - 1) / (self.new - 1).call("Max", 1)
        found = (points + 0.5) / self.scale
        if mode == "tf_half_pixel_for_nn":  # an axis that keeps its length stays as it is
            return self.scale.call("Equal", 1).where(points, found)
        found = found - 0.5
        if mode == "half_pixel":
            return found
        if mode == "pytorch_half_pixel":
            return (self.new > 1).where(found, 0)
        raise Refusal(f"coordinate_transformation_mode='{mode}' has no gradient here")

    def clipped(self, places: Term) -> Term:
        """Positions limited to the original axis."""
        return places.call("Max", 0).call("Min", self.old - 1)

    def nearest(self) -> ir.Value:
        """The nearest pixels, as in onnxruntime 1.19; 1.31 differs in ties of round_prefer_ceil."""
        mode = self.site.text("nearest_mode", "round_prefer_floor")
        found = self.positions()
        if mode == "floor":
            found = found.call("Floor")
        elif mode == "ceil":
            found = found.call("Ceil")
        elif mode == "round_prefer_ceil":
            found = (found + 0.5).call("Floor")
        else:
            found = (found - 0.5).call("Ceil")
        return self.site.cast(self.clipped(found).value, _INT64)

    def linear(self) -> Term:
        """Weights `[length, size]`: `max(0, 1 - |i - p|)`, constant beyond the ends."""
        return (1 - (self.clipped(self.positions()) - self.rows()).call("Abs")).call("Max", 0)

    def cubic(self) -> Term:
        r"""Weights `[length, size]` of the four neighbours, which are limited to the axis.

        With `d` the distance and `a = cubic_coeff_a`: `(a + 2) d^3 - (a + 3) d^2 + 1` up to 1, then
        `a (d^3 - 5 d^2 + 8 d - 4)`. With `exclude_outside`, pixels beyond the ends have weight 0.
        """
        near, far = self._cubic
        exact = bool(self.site.integer("exclude_outside", 0))
        positions = self.positions()
        low, rows, parts = positions.call("Floor"), self.rows(), list[Term]()
        for tap in _TAPS:
            place = low + tap
            d = (positions - place).call("Abs")
            weight = near(d) if tap in (0, 1) else far(d)  # at most 1 away, or up to 2
            hit = rows.call("Equal", place if exact else self.clipped(place))
            parts.append(self._term(hit.value) * weight)
        # Taps limited to the axis may coincide: their weights are added.
        total = functools.reduce(operator.add, parts)
        return self._normalized(total) if exact else total

    def antialiased(self, mode: str) -> Term:
        """Weights `[length, size]` of a filter that is wider where the axis gets shorter."""
        d = (self.positions() - self.rows()).call("Abs") * self.scale.call("Min", 1)
        if mode == "linear":
            return self._normalized((1 - d).call("Max", 0))
        near, far = self._cubic
        return self._normalized((d < 2).where((d < 1).where(near(d), far(d)), 0))

    @property
    def _cubic(self) -> tuple[Callable[[Term], Term], Callable[[Term], Term]]:
        """The weights of pixels at a distance of up to 1, and of 1 to 2."""
        a = self.site.number("cubic_coeff_a", -0.75)
        return (
            lambda d: (d * (a + 2) - (a + 3)) * d * d + 1,
            lambda d: ((d * a - 5 * a) * d + 8 * a) * d - 4 * a,
        )

    def _normalized(self, weights: Term) -> Term:
        """Weights whose sum over the pixels is 1, without those beyond the ends."""
        return weights / weights.call("ReduceSum", self.site.ints(0), keepdims=1)

    def rows(self) -> Term:
        """0, 1, ... of the original axis, `[length, 1]`."""
        return self.count(self.length).call("Unsqueeze", self.site.ints(1))


@decomposes("Resize")
def _resize(site: Site) -> list[ir.Value | None]:
    """Nearest: a Gather along each axis; linear and cubic: products with weight matrices."""
    mode, smooth = site.text("mode", "nearest"), bool(site.integer("antialias", 0))
    if mode not in ("nearest", "linear", "cubic"):
        raise Refusal(f"mode='{mode}' has no gradient here")
    if smooth and not site.integer("exclude_outside", 0):
        raise Refusal("antialias has a gradient only with exclude_outside=1, as torch writes it")
    if site.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Refusal("keep_aspect_ratio_policy has no gradient here")
    rank, data = site.rank(), site.input(0)
    result, dims = data, list(site.shape())
    axes = [axis % rank for axis in site.integers("axes") or range(rank)]
    if all(_is_kept(site, a, k) or _rounds_to_itself(site, a, k) for k, a in enumerate(axes)):
        axes = []  # onnxruntime copies an image that keeps its lengths, whatever the scales
    # Interpolation is separable: one axis after the other.
    for place, axis in enumerate(axes):
        if _is_kept(site, axis, place):
            continue
        resized = _Axis(site, axis, place)
        dims[axis] = None
        if mode == "nearest":
            result = site.op("Gather", result, resized.nearest(), shape=dims, axis=axis)
            continue
        if smooth:
            weights = resized.antialiased(mode)
        else:
            weights = resized.linear() if mode == "linear" else resized.cubic()
        matrix = site.cast(weights.value)
        matrix.shape = ir.Shape([None, None])  # in case shape inference fails
        order = [other for other in range(rank) if other != axis] + [axis]
        inverse = [order.index(other) for other in range(rank)]
        shape = [dims[other] for other in order]
        last = site.op("Transpose", result, shape=shape, perm=order)  # [..., length]
        resampled = site.op("MatMul", last, matrix, shape=shape)  # [..., size]
        result = site.op("Transpose", resampled, shape=dims, perm=inverse)
    return [result if result is not data else site.op("Identity", data)]


def _rounds_to_itself(site: Site, axis: int, place: int) -> bool:
    """Whether a scale is too close to 1 to change a length."""
    scales, n = constant(site.optional(2)), site.shape()[axis]
    return (
        scales is not None
        and place < scales.size
        and isinstance(n, int)
        and n == int(n * scales[place])
    )


def _is_kept(site: Site, axis: int, place: int) -> bool:
    """Whether an axis certainly keeps its length."""
    sizes = site.optional(3)
    if sizes is not None:
        found, lengths = elements(sizes), dimensions(site.input(0))
        if found is None or lengths is None or place >= len(found):
            return False
        return found[place] == lengths[axis]
    parts = producer_of(site.input(2), "Concat")  # ones, followed by computed scales
    array = constant(site.input(2) if parts is None else parts.inputs[0])
    return array is not None and place < array.size and bool(array.reshape(-1)[place] == 1.0)
