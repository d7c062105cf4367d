"""Give no gradient to rows of an attention that are masked as a whole, as torch does.

    Where(masked, 0, Softmax(x))    becomes    Where(masked, 0, Softmax(Where(masked, 0, x)))

where ``masked`` has one value for each row, as in the standard's definition of Attention. A row of
-inf only, such as that of a token of padding on the left, has the probabilities NaN; the gradient
of this Softmax would be ``0 * NaN``, so one such row would make every step overflow. Both of
torch's exporters write IsNaN(Softmax(x)) for ``masked``, which becomes ``IsNaN(m - m)``, where
``m`` is the maximum of the row. That is also the inner condition where ``masked`` has a value for
each element, and ``x`` is Where(masked, -inf, scores): torch's ``masked_fill`` before and after.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortboost.graph.query import constant, known_shape, producer_of, scalar, source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["finite_masked_rows"]

_COPIES = ("CastLike", "Expand")  # zeros_like, and numbers of torch's dynamo exporter


@rewrites("Where", what="rows that are masked as a whole get no gradient")
def finite_masked_rows(site: Site) -> list[ir.Value | None] | None:
    """Rewrite the attentions of a model that is not differentiated yet, in place."""
    masked, otherwise = site.input(0), constant(source_before(site.input(1), *_COPIES))
    result = site.input(2)
    cast = producer_of(result, "Cast")  # one: of several, each may round
    probabilities = result if cast is None else cast.inputs[0]
    softmax = producer_of(probabilities, "Softmax")
    if softmax is None or probabilities is None or otherwise is None or otherwise.any():
        return None
    scores, axis = softmax.inputs[0], softmax.attributes.get_int("axis", -1)
    test = producer_of(masked, "IsNaN")
    earlier = producer_of(scores, "Where")
    if earlier is not None and earlier.inputs[0] is masked and scalar(earlier.inputs[1]) == 0:
        return None  # done before
    tested = test is not None and source_before(test.inputs[0], "Cast") is probabilities
    rows = masked
    if tested or _filled(earlier, masked):
        top = site.op("ReduceMax", scores, site.ints(axis), keepdims=1)
        rows = site.op("IsNaN", site.op("Sub", top, top))
        masked = rows if tested else masked
    elif not _one_for_each_row(masked, probabilities, axis):
        return None
    kept = site.op("Where", rows, site.const(0.0, probabilities.dtype), scores)
    again = site.op("Softmax", kept, **softmax.attributes)
    if result is not probabilities:
        again = site.cast(again, result.dtype)
    return [site.op("Where", masked, site.input(1), again)]


def _filled(earlier: ir.Node | None, masked: ir.Value) -> bool:
    """Whether a node gives -inf to the same elements that are replaced by 0 later."""
    if earlier is None or scalar(source_before(earlier.inputs[1], *_COPIES)) != -math.inf:
        return False
    return source_before(earlier.inputs[0], "Cast") is source_before(masked, "Cast")


def _one_for_each_row(masked: ir.Value, rows: ir.Value, axis: int) -> bool:
    """Whether a condition has the length 1 along an axis of what it is applied to."""
    shape, given = known_shape(rows), known_shape(masked)
    if shape is None or given is None or len(given) != len(shape):
        return False
    return given[axis] == 1
