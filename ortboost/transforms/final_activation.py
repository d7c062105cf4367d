"""The activation that a model ends with, and the logits before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import is_standard, known_shape, producer_of

__all__ = ["APPLIED_BY_LOSS", "decision_threshold", "logits_before"]

APPLIED_BY_LOSS: Final[Mapping[str, str]] = {
    "softmax-cross-entropy": "Softmax",
    "bce-with-logits": "Sigmoid",
}
"""Loss to the activation that it applies to the logits."""


def logits_before(
    builder: Builder, output: ir.Value, activation: str, class_axis: int | None = None
) -> ir.Value | None:
    """The logits that an output is the activation of, in its shape; ``None`` if it is not.

    Args:
        builder: Takes the nodes that move the axes of the logits to those of the output.
        output: An output of a normalized model, opset 13 or newer.
        activation: ``Softmax`` or ``Sigmoid``.
        class_axis: For a Softmax: the axis of the output that it must be over, from 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,3] x) => (float[n,3] y) { p = Softmax(x) y = Identity(p) }''')
        >>> logits_before(Builder(model.graph, "loss"), model.graph.outputs[0], "Softmax", 1).name
        'x'
    """
    node, perms = _activation(output)
    if node is None or node.op_type != activation:
        return None
    shape = known_shape(output)
    if class_axis is not None and shape is not None:
        # Over another axis, its results are not the probabilities of the classes.
        axis = node.attributes.get_int("axis", -1) % len(shape)
        for perm in perms:
            axis = perm.index(axis)
        if axis != class_axis:
            return None
    logits = node.inputs[0]
    for perm in perms:
        logits = builder.op("Transpose", logits, perm=perm)
    if perms and logits is not None:
        logits.shape = output.shape
    return logits


def _activation(output: ir.Value) -> tuple[ir.Node | None, list[list[int]]]:
    """The node before all that only names, casts or moves its results, and the moves in order."""
    perms: list[list[int]] = []
    while (node := output.producer()) is not None and is_standard(
        node, "Identity", "Cast", "Transpose"
    ):
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", None)
            if perm is None:
                return None, []
            perms.insert(0, [*perm])
        if node.inputs[0] is None:
            return None, []
        output = node.inputs[0]
    return producer_of(output, *APPLIED_BY_LOSS.values()), perms


def decision_threshold(scores: ir.Value) -> float:
    """The score above which a binary model predicts class 1: 0.5 after a Sigmoid, else 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,1] x) => (float[n,1] y) { y = Sigmoid(x) }''')
        >>> decision_threshold(model.graph.outputs[0])
        0.5
    """
    node, _ = _activation(scores)
    return 0.5 if node is not None and node.op_type == "Sigmoid" else 0.0
