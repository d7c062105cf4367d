"""Merge equal nodes with equal inputs, and equal stored tensors.

onnx_ir has passes for both, but they treat Bernoulli, training-mode Dropout and operators of
unknown domains as pure functions of their inputs, and the pass for tensors keeps a copy of all
bytes. Here only tensors of equal type and shape are compared, so that most of a large model need
not be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import RANDOM_OPERATORS, input_at, is_standard, label
from ortboost.graph.rewriting import replace_value

__all__ = ["common_subexpressions"]

# Exactly so with two operands; three summands in another order may differ in the last digit.
_COMMUTATIVE = ("Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean")
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def common_subexpressions(model: ir.Model) -> Report:
    """Merge equal stored tensors and equal nodes of each graph, in place."""
    report = Report("common_subexpressions")
    for graph in list(model.graphs()):
        _merge(graph, report)
    return report


def _merge(graph: ir.Graph, report: Report) -> None:
    _tensors(graph, report)
    seen: dict[Hashable, ir.Node] = {}
    # In graph order, merging as it goes: nodes that read merged values become equal themselves.
    for node in list(graph):
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node:
            continue
        pairs = list(zip(node.outputs, first.outputs, strict=True))
        if any(old.is_graph_output() and new.is_graph_output() for old, new in pairs):
            report.kept[label(node)] = f"equals '{label(first)}', but both are outputs of the model"
            continue
        if all(replace_value(old, new) for old, new in pairs):
            report.changed[label(node)] = f"same as '{label(first)}'"
            graph.remove(node, safe=True)


def _tensors(graph: ir.Graph, report: Report) -> None:
    alike: dict[Hashable, list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output():
            continue
        if tensor.dtype != ir.DataType.STRING:
            alike.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(value)
    for group in alike.values():
        if len(group) < 2:
            continue
        stored: dict[bytes, ir.Value] = {}
        for value in group:
            assert value.const_value is not None
            digest = hashlib.sha256(value.const_value.tobytes()).digest()
            first = stored.setdefault(digest, value)
            if first is value:
                continue
            ir.convenience.replace_all_uses_with(value, first)
            graph.initializers.pop(value.name or "")
            report.changed[value.name or ""] = f"equals '{first.name}'"


def _key(node: ir.Node) -> Hashable | None:
    """A key of the computation of a node; ``None`` if it must not be merged."""
    if not is_standard(node) or is_standard(node, *RANDOM_OPERATORS):
        return None
    if is_standard(node, "Dropout") and input_at(node, 2) is not None:  # it may draw
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref() or attribute.type in _GRAPHS:
            return None
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape), value.tobytes())
        elif isinstance(value, (list, tuple)):
            value = tuple(value)
        attributes.append((name, value))
    inputs = [id(value) if value is not None else None for value in node.inputs]
    if is_standard(node, *_COMMUTATIVE):
        inputs.sort(key=lambda i: i or 0)
    given = tuple(bool(output.name) for output in node.outputs)  # an omitted one cannot be read
    key: Hashable = (node.op_type, given, tuple(inputs), tuple(attributes))
    try:  # an attribute may be of a type that cannot be compared, such as a sparse tensor
        hash(key)
    except TypeError:
        return None
    return key
