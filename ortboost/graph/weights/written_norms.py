"""Running statistics of a BatchNormalization that the file writes out.

jax2onnx writes the BatchNormalization of Keras as arithmetic, so only the form of the expression
distinguishes the statistics from the scale and shift: `m = scale / sqrt(variance + eps)`,
`y = x * m + (shift - mean * m)`, or `y = (x - mean) / sqrt(variance + eps)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortboost.graph.query import is_standard, producer_of, scalar
from ortboost.graph.reach import ancestors

__all__ = ["statistic"]

_MOVES = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_LARGEST_EPSILON = 0.1


def statistic(value: ir.Value) -> str | None:
    """Say which running statistic a stored tensor is, if its uses show that.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,4] x, float[4] v) => (float[N,4] y)
        ... { e = Constant<value_float=0.001>()  a = Add(v, e)  s = Sqrt(a)  y = Div(x, s) }''')
        >>> statistic(model.graph.inputs[1])
        'it is the running variance of a normalization that the file writes out'
    """
    uses = list(_uses(value, _MOVES))
    if uses and all(_adds_epsilon(node) for node, _ in uses):
        return "it is the running variance of a normalization that the file writes out"
    uses = list(_uses(value, (*_MOVES, "Neg")))
    if uses and all(_shifts(node, index) for node, index in uses):
        return "it is the running mean of a normalization that the file writes out"
    return None


def _uses(value: ir.Value, through: tuple[str, ...]) -> Iterator[tuple[ir.Node, int]]:
    """The nodes that read a value, directly or through these operators."""
    pending = [value]
    while pending:
        for usage in pending.pop().uses():
            if usage.idx == 0 and is_standard(usage.node, *through):
                pending += usage.node.outputs
            else:
                yield usage.node, usage.idx


def _adds_epsilon(node: ir.Node) -> bool:
    """Whether a node adds a small positive number and nothing but a square root reads the sum."""
    added = [number for number in map(scalar, node.inputs) if number is not None]
    readers = {usage.node.op_type for usage in node.outputs[0].uses()}
    small = len(added) == 1 and 0 < added[0] <= _LARGEST_EPSILON
    return is_standard(node, "Add") and small and readers == {"Sqrt"}


def _shifts(node: ir.Node, index: int) -> bool:
    """Whether a node subtracts a mean from data that a deviation divides, before or after that."""
    if is_standard(node, "Sub") and index == 1:
        return all(
            is_standard(reader, "Mul", "Div") and _has_deviation(reader.inputs[1 - place])
            for reader, place in _uses(node.outputs[0], _MOVES)
        )
    if not is_standard(node, "Mul") or not _has_deviation(node.inputs[1 - index]):
        return False
    readers = [reader for reader, _ in _uses(node.outputs[0], (*_MOVES, "Neg"))]
    return bool(readers) and all(is_standard(reader, "Add", "Sub") for reader in readers)


def _has_deviation(value: ir.Value | None) -> bool:
    """Whether a value is computed from stored tensors, one of them a variance, without data."""
    nodes = list(ancestors([value]))
    read = [source for node in nodes for source in node.inputs if source is not None]
    if any(source.is_graph_input() and not source.is_initializer() for source in read):
        return False
    sums = (producer_of(node.inputs[0]) for node in nodes if is_standard(node, "Sqrt"))
    return any(node is not None and _adds_epsilon(node) for node in sums)
