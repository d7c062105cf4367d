r"""Fold the weight normalization of a full-normalization head.

    y = m <n(x), n(w)> = <n(x), w'>    with    w' = m n(w),   n(v) = v / sqrt(max(sum v^2, eps))

The trained weight and multiplier are constants at inference; only the normalization of the input
and one Gemm or MatMul remain.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.boosts.full_norm_head import read_full_norm
from ortboost.graph.build import detach
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.query import constant, is_read, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, remove_unused, rewrites

__all__ = ["fold_full_norm"]


@rewrites("Mul", bypass=True)
def fold_full_norm(site: Site) -> list[ir.Value] | None:
    """Merge normalized weight and multiplier of full-normalization heads into one weight, in place.

    The weights have to be initializers. The new weight has the name, shape and dtype of the old
    one, or a new name if another node uses the old one too. A second call changes nothing.
    """
    head = read_full_norm(site.node)
    if head is None:
        return None
    old, multiplier, product = head.weight, head.multiplier, head.product.outputs[0]
    for value in (old, multiplier):
        if constant(value) is None:
            raise Refusal(f"'{value.name}' is computed, not stored")
    if sole_consumer(product) is None:
        raise Refusal(f"the output of '{head.product.name}' is used elsewhere too")
    # In float64: the file's weights should not depend on the order of this sum.
    weight, factor = (np.asarray(constant(v)).astype(np.float64) for v in (old, multiplier))
    squares = (weight * weight).sum(axis=head.axis, keepdims=True)
    folded = weight / np.sqrt(np.maximum(squares, head.epsilon)) * factor
    last = head.product.inputs[1]
    if last is not head.normalized:  # with a Transpose in between
        folded = folded.T
    folded = folded.astype((old.dtype or ir.DataType.FLOAT).numpy())
    # Without what computed the normalized weight, the name of the old weight may be free.
    head.product.replace_input_with(1, None)
    remove_unused(producer_of(last))
    detach(site.node)
    graph, name = site.builder.graph, old.name or ""
    for value in (old, multiplier):
        if value.is_initializer() and not is_read(value):
            graph.initializers.pop(value.name or "")
    if name in graph.initializers:
        name = site.builder.unique(f"{name}/folded")
    head.product.replace_input_with(1, add_initializer(graph, name, folded))
    product.type, product.shape = site.node.outputs[0].type, site.node.outputs[0].shape
    site.note = f"into '{name}'"
    return site.computed_by(head.product)
