"""The activation that a model ends with, and the logits before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortboost.graph.query import known_shape, producer_of, source_before

__all__ = ["APPLIED_BY_LOSS", "decision_threshold", "logits_before"]

APPLIED_BY_LOSS: Final[Mapping[str, str]] = {
    "softmax-cross-entropy": "Softmax",
    "bce-with-logits": "Sigmoid",
}
"""Loss to the activation that it applies to the logits."""


def logits_before(
    output: ir.Value, activation: str, class_axis: int | None = None
) -> ir.Value | None:
    """The logits that an output is the activation of; ``None`` if it is not its result.

    Args:
        output: An output of a normalized model, opset 13 or newer.
        activation: ``Softmax`` or ``Sigmoid``.
        class_axis: For a Softmax: the axis that it must be over, from 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,3] x) => (float[n,3] y) { p = Softmax(x) y = Identity(p) }''')
        >>> logits_before(model.graph.outputs[0], "Softmax", 1).name
        'x'
    """
    node = producer_of(source_before(output, "Identity", "Cast"), activation)
    if node is None:
        return None
    shape = known_shape(output)
    if class_axis is None or shape is None:
        return node.inputs[0]
    # Over another axis, its results are not the probabilities of the classes.
    axis = node.attributes.get_int("axis", -1) % len(shape)
    return node.inputs[0] if axis == class_axis else None


def decision_threshold(scores: ir.Value) -> float:
    """The score above which a binary model predicts class 1: 0.5 after a Sigmoid, else 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,1] x) => (float[n,1] y) { y = Sigmoid(x) }''')
        >>> decision_threshold(model.graph.outputs[0])
        0.5
    """
    return 0.0 if logits_before(scores, "Sigmoid") is None else 0.5
