"""A zoo of models that nobody here made: gathered, trained, exported, and put into one table."""

from __future__ import annotations

import onnx

__all__ = ["count_nodes"]


def count_nodes(proto: onnx.ModelProto) -> int:
    """Nodes of a model with those of its branches and functions; ``Constant`` counts as none."""

    def count(nodes: object) -> int:
        total = 0
        for node in nodes:  # type: ignore[attr-defined]
            total += node.op_type != "Constant"
            for attribute in node.attribute:
                graphs = (
                    [attribute.g]
                    if attribute.type == onnx.AttributeProto.GRAPH
                    else attribute.graphs
                )
                total += sum(count(graph.node) for graph in graphs)
        return total

    return count(proto.graph.node) + sum(count(function.node) for function in proto.functions)
