"""The terms that a loss is the mean or sum of; THOR's Fisher matrix is an expectation over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import constant, input_at, is_standard, known_shape

__all__ = ["TERMS", "Terms", "count_terms", "loss_terms"]

TERMS: Final = "ortboost/thor/terms"
"""Name of the value with the number of terms."""
_INT64 = ir.DataType.INT64


@dataclass(frozen=True)
class Terms:
    """The terms of a loss.

    Args:
        mean: Whether the loss is their mean; otherwise it is their sum.
        labels: Class indices, one per term; ``None`` if the terms are the samples.
        ignored: The label to ignore, if there is one.
    """

    mean: bool
    labels: ir.Value | None = None
    ignored: int | None = None


def loss_terms(objective: ir.Value) -> Terms:
    """Find the terms of a loss; an unknown loss is assumed to be a mean over the samples."""
    value: ir.Value | None = objective
    mean = True
    while value is not None and (node := value.producer()) is not None:
        if is_standard(node, "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
            reduction = node.attributes.get_string("reduction", "mean")
            if reduction != "none":
                mean = reduction == "mean"
            ignored = node.attributes.get_int("ignore_index", None)
            return Terms(mean, input_at(node, 1), ignored)
        if is_standard(node, "ReduceMean", "ReduceSum"):
            if _reduces_samples(node):
                mean = node.op_type == "ReduceMean"
        elif not is_standard(node, "Reshape", "Identity", "Squeeze", "Cast"):
            break
        value = node.inputs[0]
    return Terms(mean)


def _reduces_samples(node: ir.Node) -> bool:
    """Whether a reduction covers axis 0; assumed if its axes are unknown."""
    attribute = node.attributes.get("axes")
    axes = constant(input_at(node, 1)) if attribute is None else attribute.as_ints()
    data = input_at(node, 0)
    shape = None if data is None else known_shape(data)
    if axes is None or len(axes) == 0:
        return not node.attributes.get_int("noop_with_empty_axes", 0)
    return shape is None or any(axis in (0, -len(shape)) for axis in axes)


def count_terms(model: ir.Model, found: Terms, data: ir.Value, batch_size: int | None) -> str:
    """Add the number of terms of the loss to the graph as :data:`TERMS`, an int64 scalar.

    Axis 0 of ``data`` is the batch axis; ``batch_size`` is the number of terms, if given. The
    result is a note that says what the terms are.
    """
    b = Builder(model.graph, "ortboost/thor")
    labels = found.labels
    if batch_size is not None:
        number = b.const(batch_size, _INT64)
        terms = f"{batch_size} terms, as given"
    elif labels is not None and found.ignored is not None:
        ignored = b.const(found.ignored, labels.dtype or _INT64)
        counts = b.op("Not", b.op("Equal", labels, ignored))
        number = b.op("ReduceSum", b.cast(counts, _INT64), keepdims=0)
        number = b.op("Max", number, b.const(1, _INT64))
        terms = "its terms are the labels that are not ignored"
    elif labels is not None:
        number = b.op("Size", labels)
        terms = "its terms are the labels"
    else:
        shape = b.op("Shape", data)
        number = b.op("Gather", shape, b.const(0, _INT64))
        terms = f"its terms are the samples, axis 0 of '{data.name}'"
    b.op("Identity", number, name=TERMS, shape=())
    b.flush()
    return f"the loss is a {'mean' if found.mean else 'sum'}; {terms}"
