"""Iteration over graphs and nodes of a proto, and their names in errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from ortboost.core.errors import FileError

__all__ = ["EXPORT_AGAIN", "STANDARD", "all_graphs", "damaged", "graphs_of", "label", "subgraphs"]

EXPORT_AGAIN = "Export the model again, or check that the download or copy is complete."
STANDARD = ("", "ai.onnx")  # two names of one domain


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    """The subgraphs of nodes, at any depth."""
    for node in nodes:
        for graph in subgraphs(node):
            yield graph
            yield from graphs_of(graph.node)


def all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and all subgraphs, including those of functions."""
    yield proto.graph
    yield from graphs_of(proto.graph.node)
    for function in proto.functions:
        yield from graphs_of(function.node)


def label(node: onnx.NodeProto) -> str:
    """The name of a node in errors."""
    made = next((name for name in node.output if name), "")
    return f"node '{node.name}'" if node.name else f"{node.op_type} that computes '{made}'"


def damaged(what: str, where: str, node: onnx.NodeProto | None = None) -> FileError:
    """The error for a file that no exporter writes."""
    place = where if node is None else f"{where}: {label(node)}"
    return FileError(what, where=place, fix=EXPORT_AGAIN)
