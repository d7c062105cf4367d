"""Removal of nodes that no output needs."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.graph.build import detach
from ortboost.graph.query import all_nodes, has_subgraph, subgraphs

__all__ = ["remove_unused_nodes"]


def remove_unused_nodes(model: ir.Model) -> None:
    """Remove unused nodes and initializers, in place.

    Unlike the pass of onnx_ir, it also removes what only the bodies of removed nodes read.
    """
    gone = True
    while gone:
        holders = [node for node in model.graph.all_nodes() if has_subgraph(node)]
        common.RemoveUnusedNodesPass()(model)
        removed = (graph for node in holders if node.graph is None for graph in subgraphs(node))
        gone = False
        for graph in removed:
            for node in all_nodes(graph):
                detach(node)
                gone = True
