"""Give no gradient to rows of an attention that are masked as a whole, as torch does.

    Where(IsNaN(p), 0, p)    becomes    Where(masked, 0, Softmax(Where(masked, 0, x)))

where ``p = Softmax(x)`` and ``masked`` is true for the rows of ``x`` whose maximum is not finite.
Both of torch's exporters write the first form for ``scaled_dot_product_attention``: a row of -inf
only, such as that of a token of padding on the left, has the probabilities NaN, replaced by 0. The
gradient of this Softmax would be ``0 * NaN``, so one such row would make every step overflow.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.rewriting import Site, rewrites

__all__ = ["protect_masked_rows"]


@rewrites("Where", what="rows that are masked as a whole get no gradient", subgraphs=True)
def protect_masked_rows(site: Site) -> list[ir.Value] | None:
    """Rewrite the attentions of a model that is not differentiated yet, in place."""
    probabilities, test = site.input(2), site.input(0).producer()
    softmax, otherwise = probabilities.producer(), site.array(1)
    if softmax is None or softmax.op_type != "Softmax" or otherwise is None or otherwise.any():
        return None
    if test is None or test.op_type != "IsNaN" or test.inputs[0] is not probabilities:
        return None
    scores = softmax.inputs[0]
    axis = site.ints(softmax.attributes.get_int("axis", -1))
    top = site.op("ReduceMax", scores, axis, keepdims=1)
    masked = site.op("IsNaN", site.op("Sub", top, top))
    zero = site.input(1)
    kept = site.op("Where", masked, zero, scores)
    again = site.op("Softmax", kept, **softmax.attributes)
    return [site.op("Where", masked, zero, again)]
