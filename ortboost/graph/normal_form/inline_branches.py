"""Replace each If with a constant condition by the branch taken.

Exporters write both branches for a sampling rate or a mode that the user fixes later (``--input
sr=16000``), or for a length that shape inference finds. Inside an If, parameters are not found and
gradients do not flow.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.report import Report
from ortboost.graph.bodies import unwrap
from ortboost.graph.build import detach
from ortboost.graph.query import all_nodes, find_nodes

__all__ = ["inline_branches"]


def inline_branches(model: ir.Model) -> Report:
    """Inline the branch taken by every If with a constant condition, in place.

    This includes those in bodies: onnxruntime (1.19 and 1.32) crashes when it inlines a branch
    itself, in a body of a body. Constants of the model are initializers. The rewrite is idempotent.
    """
    report = Report("inline_branches")
    for node in find_nodes(list(all_nodes(model.graph)), "If"):
        given, graph = node.inputs[0], node.graph
        if not isinstance(graph, ir.Graph):
            continue
        condition = None if given is None else ir.convenience.get_const_tensor(given)
        if condition is None:
            continue
        taken = "then_branch" if bool(condition.numpy().all()) else "else_branch"
        other = "else_branch" if taken == "then_branch" else "then_branch"
        _inline(graph, node, node.attributes[taken].as_graph())
        for unused in node.attributes[other].as_graph().all_nodes():
            detach(unused)  # no longer among the uses of the values that it read
        graph.remove(node, safe=True)
        report.changed[node.name or "If"] = f"replaced by its {taken}: the condition is constant"
    if report.modified:
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.NameFixPass()(model)
    return report


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph) -> None:
    shown = {id(value) for value in graph.outputs}
    for old, new in zip(node.outputs, unwrap(branch, node), strict=True):
        if id(old) in shown:  # users know its name
            copy = ir.val(old.name, shape=old.shape, type=old.type)
            old.name = None
            graph.insert_before(node, ir.node("Identity", [new], outputs=[copy]))
            index = next(i for i, value in enumerate(graph.outputs) if value is old)
            graph.outputs[index] = new = copy
        ir.convenience.replace_all_uses_with(old, new)
