r"""Fold the weight normalization of a full-normalization head.

    y = m <n(x), n(w)> = <n(x), w'>    with    w' = m n(w),   n(v) = v / sqrt(max(sum v^2, eps))

The trained weight and multiplier are constants at inference; only the normalization of the input
and one Gemm or MatMul remain.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.boosts.full_norm_head import FoundHead, read_full_norm
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import is_read, is_standard
from ortboost.graph.rewriting import remove_unused

__all__ = ["fold_full_norm"]


def fold_full_norm(model: ir.Model) -> Report:
    """Merge normalized weight and multiplier of full-normalization heads into one weight, in place.

    The new weight has the name, shape and dtype of the old one, or a new name if another node uses
    the old one too.

    Args:
        model: An inference graph whose weights are initializers.

    Returns:
        A report of the folded heads, and of the kept heads with reasons. A second call changes
        nothing.
    """
    report = Report("fold_full_norm")
    for node in list(model.graph):
        head = read_full_norm(node) if is_standard(node, "Mul") else None
        if head is None:
            continue
        obstacle = _obstacle(head)
        if obstacle is not None:
            report.kept[node.name or ""] = obstacle
            continue
        report.changed[node.name or ""] = f"into '{_fold(model.graph, head)}'"
    return report


def _obstacle(head: FoundHead) -> str | None:
    for value in (head.weight, head.multiplier):
        if value.const_value is None:
            return f"'{value.name}' is computed, not stored"
    product = head.product.outputs[0]
    if len(product.uses()) > 1 or product.is_graph_output():
        return f"the output of '{head.product.name}' is used elsewhere too"
    return None


def _fold(graph: ir.Graph, head: FoundHead) -> str:
    """Replace the head, and return the name of the new weight."""
    old, multiplier = head.weight, head.multiplier
    if old.const_value is None or multiplier.const_value is None:
        raise TypeError("_obstacle() checks for them")
    # In float64: the file's weights should not depend on the order of this sum.
    weight = old.const_value.numpy().astype(np.float64)
    squares = (weight * weight).sum(axis=head.axis, keepdims=True)
    normal = weight / np.sqrt(np.maximum(squares, head.epsilon))
    folded = normal * multiplier.const_value.numpy().astype(np.float64)
    dtype = old.const_value.dtype
    if head.product.inputs[1] is not head.normalized:  # with a Transpose in between
        folded = folded.T
    new = ir.Value(
        name=Builder(graph, "ortboost").unique(f"{old.name}/folded"),
        type=ir.TensorType(dtype),
        shape=ir.Shape(folded.shape),
        const_value=ir.tensor(np.ascontiguousarray(folded.astype(dtype.numpy())), dtype=dtype),
    )
    graph.register_initializer(new)
    last = head.product.inputs[1]
    head.product.replace_input_with(1, new)
    # The product takes the place of the multiplication by the multiplier, name and type included.
    product, output = head.product.outputs[0], head.output.outputs[0]
    ir.convenience.replace_all_uses_with(output, product, replace_graph_outputs=True)
    graph.remove(head.output, safe=True)
    name, output.name = output.name, f"{output.name}/folded"
    product.name, product.type, product.shape = name, output.type, output.shape
    # Remove what computed the normalized weight, and what nobody reads any more; then the name of
    # the old weight is free for the new one.
    remove_unused(None if last is None else last.producer())
    for value in (old, multiplier):
        if value.is_initializer() and not is_read(value):
            graph.initializers.pop(value.name or "")
    if old.name not in graph.initializers:
        graph.initializers.pop(new.name or "")
        new.name = old.name
        graph.register_initializer(new)
    return new.name or ""
