"""The activation that a model ends with, and the logits before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.query import constant, is_standard, known_shape, permutation, producer_of

__all__ = ["APPLIED_BY_LOSS", "decision_threshold", "holds_probabilities", "logits_before"]

APPLIED_BY_LOSS: Final[Mapping[str, str]] = {
    "softmax-cross-entropy": "Softmax",
    "bce-with-logits": "Sigmoid",
}
"""Loss to the activation that it applies to the logits."""

_MOVES: Final = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that only move their input, and so come before an activation as well as after it."""


def logits_before(
    builder: Builder, output: ir.Value, activation: str, class_axis: int | None = None
) -> ir.Value | None:
    """The logits to which an output applies an activation, in its shape; ``None`` without one.

    Args:
        builder: Takes the nodes that bring the logits to the shape of the output.
        output: An output of a normalized model, opset 13 or newer.
        activation: ``Softmax`` or ``Sigmoid``.
        class_axis: For a Softmax: the axis of the output that it must be over, from 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,3] x) => (float[n,3] y) { p = Softmax(x) y = Identity(p) }''')
        >>> logits_before(Builder(model.graph, "loss"), model.graph.outputs[0], "Softmax", 1).name
        'x'
    """
    found, moves = _before_moves(output)
    node = producer_of(found, activation)
    binary = _binary_logit(found) if activation == "Softmax" else None
    if binary is not None:
        node = producer_of(found, "Concat")
    if node is None:
        return None
    if class_axis is not None:
        # Over another axis, the results of a Softmax are not the probabilities of the classes.
        place = _axis_before(moves, output, class_axis)
        if place is None or node.attributes.get_int("axis", -1) % place[1] != place[0]:
            return None
    logits = node.inputs[0]
    if binary is not None:
        # [1 - sigmoid(z), sigmoid(z)] is the Softmax of [-z / 2, z / 2].
        halves = [builder.op("Mul", binary, builder.const(sign)) for sign in (-0.5, 0.5)]
        logits = builder.op("Concat", *halves, axis=node.attributes.get_int("axis"))
    for move in moves:
        attributes = {name: attribute.value for name, attribute in move.attributes.items()}
        logits = builder.op(
            move.op_type, logits, *move.inputs[1:], shape=move.outputs[0].shape, **attributes
        )
    return logits


def _binary_logit(probabilities: ir.Value) -> ir.Value | None:
    """The `z` of `[1 - sigmoid(z), sigmoid(z)]`, as scikit-learn's models of two classes end."""
    node = producer_of(probabilities, "Concat")
    if node is None or len(node.inputs) != 2:
        return None
    sigmoid, rest = producer_of(node.inputs[1], "Sigmoid"), producer_of(node.inputs[0], "Sub")
    if sigmoid is None or rest is None or rest.inputs[1] is not node.inputs[1]:
        return None
    one, shape = constant(rest.inputs[0], limit=1), known_shape(node.inputs[1])
    if one is None or one.size != 1 or one.item() != 1 or shape is None or one.ndim > len(shape):
        return None
    # Of several probabilities each, neighbours would not be the two classes.
    return sigmoid.inputs[0] if shape[node.attributes.get_int("axis", 0)] == 1 else None


def holds_probabilities(value: ir.Value) -> bool:
    """Whether a value is a Softmax or Sigmoid, at most moved, cast, or combined with constants.

    For example, models clip them, or divide them by their sum.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,3] x, float a) => (float[n,3] y) { p = Sigmoid(x) y = Clip(p, a) }''')
        >>> holds_probabilities(model.graph.outputs[0])
        True
    """
    if (node := producer_of(value)) is None or is_standard(node, *APPLIED_BY_LOSS.values()):
        return node is not None
    if not is_standard(node, "Cast", "Clip", "Concat", "Div", "Identity", "Sub", *_MOVES):
        return False
    read = node.inputs if node.op_type in ("Concat", "Sub") else node.inputs[:1]
    data = [source for source in read if source is not None and constant(source) is None]
    return bool(data) and all(map(holds_probabilities, data))


def decision_threshold(scores: ir.Value) -> float:
    """The score above which a binary model predicts class 1: 0.5 after a Sigmoid, else 0.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[n,1] x) => (float[n,1] y) { y = Sigmoid(x) }''')
        >>> decision_threshold(model.graph.outputs[0])
        0.5
    """
    found, _ = _before_moves(scores, "Clip")
    return 0.5 if producer_of(found, "Sigmoid") else 0.0


def _before_moves(output: ir.Value, *also: str) -> tuple[ir.Value, list[ir.Node]]:
    """The value before nodes that only rename, cast or reshape it, and those that reshape it."""
    moves: list[ir.Node] = []
    while (node := producer_of(output, "Identity", "Cast", *_MOVES, *also)) is not None:
        if node.inputs[0] is None:
            break
        if is_standard(node, *_MOVES):
            moves.insert(0, node)
        output = node.inputs[0]
    return output, moves


def _axis_before(moves: list[ir.Node], output: ir.Value, axis: int) -> tuple[int, int] | None:
    """The index of an output axis before the nodes that reshape it, and the rank there."""
    shape = known_shape(output)
    for node in reversed(moves):
        if shape is None:
            return None
        if (perm := permutation(node)) is not None:
            shape = tuple(shape[perm.index(i)] for i in range(len(shape)))
            axis = perm[axis]
            continue
        before = known_shape(node.inputs[0])
        if before is None:
            return None
        behind = axis - len(shape)
        if None not in shape[: axis + 1] and shape[: axis + 1] == before[: axis + 1]:
            pass  # only axes after it are joined or split
        elif None not in shape[axis:] and shape[axis:] == before[behind:]:
            axis = behind + len(before)  # only axes before it
        else:
            return None
        shape = before
    return None if shape is None else (axis, len(shape))
