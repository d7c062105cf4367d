"""Remove nodes and stored tensors that no output needs, and unused opset imports."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.report import Report
from ortboost.graph.query import count_operators, is_read
from ortboost.graph.unused import remove_unused_nodes

__all__ = ["dead_code"]


def dead_code(model: ir.Model) -> Report:
    """Remove unused nodes and tensors, in place. The inputs of the model are always kept."""
    report = Report("dead_code")
    before, stored = count_operators(model), list(model.graph.initializers)
    remove_unused_nodes(model)
    common.RemoveUnusedOpsetsPass()(model)
    for graph in model.graph.subgraphs():  # the pass handles the main graph only
        for name, value in list(graph.initializers.items()):
            if not is_read(value) and not value.is_graph_input():
                del graph.initializers[name]
                report.changed[name] = "not used"
    after = count_operators(model)
    for op in sorted(before):
        if before[op] > after.get(op, 0):
            report.changed[op] = f"{before[op]} -> {after.get(op, 0)}"
    for name in stored:
        if name not in model.graph.initializers:
            report.changed[name] = "not used"
    return report
