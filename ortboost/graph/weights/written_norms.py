"""Normalizations that the file writes out: their running statistics, scales and shifts.

An RMSNorm, a LayerNorm before opset 17 and the groups of torch's GroupNorm are arithmetic after the
normalization itself: `y = x / sqrt(mean(x^2) + eps) * scale + shift`, in many forms. Their scales
and shifts have that role, which decides about the weight decay.

jax2onnx writes the BatchNormalization of Keras as arithmetic, so only the form of the expression
distinguishes the statistics from the scale and shift: `m = scale / sqrt(variance + eps)`,
`y = x * m + (shift - mean * m)`, or `y = (x - mean) / sqrt(variance + eps)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortboost.graph.query import (
    constant,
    is_standard,
    known_shape,
    producer_of,
    scalar,
    source_before,
)
from ortboost.graph.reach import ancestors

__all__ = ["norm_role", "statistic"]

_MOVES = tuple("Cast CastLike Expand Identity Reshape Squeeze Transpose Unsqueeze".split())
_MEANS = ("ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")
_LARGEST_EPSILON = 0.1


def norm_role(value: ir.Value, node: ir.Node, index: int) -> str | None:
    """The role of a stored tensor, read at this input, if it scales or shifts what was normalized.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,4] x, float[4] w) => (float[N,4] y)
        ... { n = ReduceL2(x)  d = Div(x, n)  y = Mul(w, d) }''')
        >>> norm_role(model.graph.inputs[1], model.graph.node(2), 0)
        'norm_scale'
    """
    if is_standard(node, "Mul"):
        return "norm_scale" if any(map(_normalizes, _factors(node.outputs[0]))) else None
    if not is_standard(node, "Add", "Sub"):
        return None
    factors = list(_factors(node.inputs[1 - index]))
    # A position embedding, which may follow, too, has more axes than the scale. It may have the
    # shape of the data, if their batch size is fixed.
    alike = any(known_shape(f) == known_shape(value) and _is_stored(f) for f in factors)
    return "norm_shift" if alike and any(map(_normalizes, factors)) else None


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


def _factors(value: ir.Value | None) -> Iterator[ir.Value]:
    """The factors of a product of any number of values; the value itself if it is none."""
    pending, seen = [value], set[ir.Value]()
    while pending:
        current = source_before(pending.pop(), *_MOVES)
        if current is None or current in seen:
            continue
        seen.add(current)
        product = producer_of(current, "Mul")
        if product is None:
            yield current
        else:
            pending += product.inputs


def _is_stored(factor: ir.Value) -> bool:
    """Whether a factor is stored, or computed from stored tensors only, as `1 + scale`."""
    node = factor.producer()
    sources = [factor] if node is None else node.inputs
    return all(value is None or value.is_initializer() for value in sources)


def _normalizes(factor: ir.Value) -> bool:
    """Whether a factor contains data divided by a mean of themselves, or one over the mean."""
    node = factor.producer()
    if node is None:
        return False
    if is_standard(node, "InstanceNormalization"):  # the groups of torch's GroupNorm
        scale = constant(source_before(node.inputs[1], *_MOVES))
        return scale is not None and bool((scale == 1).all())
    if is_standard(node, "Div"):
        return _has_mean(node.inputs[1], rooted=False)
    if is_standard(node, "Pow"):
        return scalar(node.inputs[1]) == -0.5 and _has_mean(node.inputs[0], rooted=True)
    return is_standard(node, "Reciprocal") and _has_mean(node.inputs[0], rooted=False)


def _has_mean(value: ir.Value | None, *, rooted: bool) -> bool:
    """Whether a value is the root of a mean, with an epsilon added or a bound before or after.

    A stored tensor below the root is a running variance.
    """
    source = source_before(value, *_MOVES)
    node = producer_of(source)
    if source is None or node is None:
        return rooted and source is not None and source.is_initializer() and scalar(source) is None
    if is_standard(node, *_MEANS):
        return rooted or node.op_type == "ReduceL2"
    if is_standard(node, "Sqrt") or (is_standard(node, "Pow") and scalar(node.inputs[1]) == 0.5):
        return _has_mean(node.inputs[0], rooted=True)
    if is_standard(node, "Clip"):
        return _has_mean(node.inputs[0], rooted=rooted)
    # Mul and Div for the variance of a sample, which divides by n - 1.
    if not is_standard(node, "Add", "Max", "Mul", "Div"):
        return False
    others = [v for v in node.inputs if scalar(v) is None and known_shape(v) != ()]
    return len(others) == 1 and _has_mean(others[0], rooted=rooted)
