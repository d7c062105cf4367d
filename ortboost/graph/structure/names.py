"""Names: text is UTF-8, each name is defined once, and every name that is read is defined."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ortboost.core.errors import FileError
from ortboost.graph.structure.walk import EXPORT_AGAIN, damaged, graphs_of, label, subgraphs

__all__ = ["check_names", "check_text"]


def check_text(message: Message, where: str) -> None:
    """Raise a FileError for text that is not UTF-8; protobuf returns it as bytes."""
    if isinstance(message, onnx.TensorProto):  # avoid copying its data
        _check_field(message.name, "TensorProto.name", where)
        return
    for field, value in message.ListFields():
        many = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in many:
                _check_field(text, f"{message.DESCRIPTOR.name}.{field.name}", where)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in many:
                check_text(inner, where)


def _check_field(text: str | bytes, field: str, where: str) -> None:
    if isinstance(text, bytes):
        what = "A name or text in the file is not UTF-8."
        raise damaged(what, f"{where}: {field} {text[:40]!r}")


def check_names(proto: onnx.ModelProto, where: str) -> bool:
    """Raise a FileError for a name that is defined twice, or not at all.

    Returns:
        Whether the nodes are in topological order.
    """
    in_order = _check_graph(proto.graph, frozenset(), where)
    for function in proto.functions:
        in_order &= _check_nodes(function.node, frozenset(function.input), where)
    return in_order


def _check_graph(graph: onnx.GraphProto, outer: frozenset[str], where: str) -> bool:
    stored = frozenset(tensor.name for tensor in graph.initializer)
    given = stored | {value.name for value in graph.input}
    in_order = _check_nodes(graph.node, outer | given, where, stored)
    known = outer | given | {name for node in graph.node for name in node.output}
    for value in graph.output:
        if value.name not in known:
            raise damaged(f"The output '{value.name}' is not defined.", where)
    return in_order


def _check_nodes(
    nodes: Sequence[onnx.NodeProto],
    given: frozenset[str],
    where: str,
    stored: frozenset[str] = frozenset(),
) -> bool:
    made: set[str] = set()
    for node in nodes:
        for name in filter(None, node.output):
            if name in made or name in given:
                # torch's dynamo exporter names parameters as in the module, and results after their
                # operators: a parameter 't' and the result of x.t() get the same name.
                rename = f"Rename the parameter '{name}' of the module, and export it again."
                raise FileError(
                    f"'{name}' is defined twice.",
                    where=f"{where}: {label(node)}",
                    fix=rename if name in stored else EXPORT_AGAIN,
                )
            made.add(name)
    # All names are known before any is looked up: the nodes may be in any order.
    everything = given | made
    in_order, before = True, set(given)
    for node in nodes:
        missing = next((name for name in node.input if name and name not in everything), None)
        if missing is not None:
            raise damaged(f"A node reads '{missing}', which is not defined.", where, node)
        in_order &= _reads(node) & made <= before  # what it reads of this graph comes before it
        before.update(node.output)
        for graph in subgraphs(node):
            # A body may read all names around it but the results of its own node.
            in_order &= _check_graph(graph, everything - set(node.output), where)
    return in_order


def _reads(node: onnx.NodeProto) -> set[str]:
    """Names that a node or its subgraphs read."""
    names = set(node.input)
    for graph in graphs_of([node]):
        for inside in graph.node:
            names.update(inside.input)
        names.update(value.name for value in graph.output)
    return names - {""}
