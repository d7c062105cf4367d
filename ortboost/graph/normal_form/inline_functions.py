"""Replace calls of functions by their bodies; weights in a function stay one tensor.

jax2onnx writes a module as a function with its weights as Constant nodes; a module that is applied
several times becomes several calls.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.report import Report
from ortboost.graph.query import FLOAT_TYPES, find_nodes

__all__ = ["inline_functions"]


def inline_functions(
    model: ir.Model, kept: Callable[[ir.Function], bool] = lambda _: False
) -> Report:
    """Inline the model's functions, in place, other than those to be kept."""
    report = Report("inline_functions")
    inlined = [key for key, function in model.functions.items() if not kept(function)]
    report.changed = {"::".join(p for p in key if p): "inlined" for key in inlined}
    if report.modified:
        common.InlinePass(lambda function: not kept(function))(model)
        _merge_constants(model.graph)
    return report


def _merge_constants(graph: ir.Graph) -> None:
    """Merge the Constant nodes of tensors that calls of one function have in common."""
    alike: dict[int, list[ir.Node]] = {}
    for node in find_nodes(graph.all_nodes(), "Constant"):
        if "value" not in node.attributes or node.outputs[0].is_graph_output():
            continue
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype in FLOAT_TYPES and len(tensor.shape):
            alike.setdefault(id(tensor), []).append(node)
    for first, *others in alike.values():
        if not others:
            continue
        for node in others:
            node.outputs[0].replace_all_uses_with(first.outputs[0])
        for node in (first, *others):
            assert node.graph is not None
            node.graph.remove(node)
        graph.insert_before(graph[0], first)  # where all bodies can read it
