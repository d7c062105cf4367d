"""Protect Dropouts from being removed by onnxruntime.

onnxruntime 1.31 removes a Dropout whose mask is not read (``EliminateDropout``), also in training
mode. In a step those are the Dropouts that no gradient passes, such as those between frozen layers
and a new head. Here `d` becomes `Where(mask, d, d)`, which reads the mask and changes nothing; then
a step keeps its Dropouts in any session. ortboost's own sessions disable the fusion, too
(:mod:`ortboost.runtime.session`), for graphs that are made later.

Source: measured with onnxruntime 1.31.1; 1.19.2 does not do it.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import all_nodes, constant, find_nodes, input_at, is_read

__all__ = ["guard_dropouts"]


def guard_dropouts(model: ir.Model) -> Report:
    """Read the mask of each Dropout in training mode of a typed graph if nothing does, in place."""
    report = Report("guard_dropouts")
    for node in find_nodes(all_nodes(model.graph), "Dropout"):
        training = input_at(node, 2)
        known = constant(training)
        if training is None or (known is not None and not known.any()):
            continue  # not in training mode
        if len(node.outputs) == 2 and is_read(node.outputs[1]):
            continue
        _read_mask(node)
        report.changed[node.name or ""] = (
            "its mask is read now; onnxruntime would remove it otherwise"
        )
    return report


def _read_mask(node: ir.Node) -> None:
    dropped, graph = node.outputs[0], node.graph
    assert graph is not None  # it was found there
    if len(node.outputs) < 2:
        node.resize_outputs(2)
    mask = node.outputs[1]
    mask.name = mask.name or f"{dropped.name}/mask"
    mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), dropped.shape
    value = ir.val(dropped.name, shape=dropped.shape, type=dropped.type)
    dropped.name = f"{dropped.name}/dropped"
    dropped.replace_all_uses_with(value, replace_graph_outputs=True)
    operands = [mask, dropped, dropped]
    graph.insert_after(node, ir.node("Where", operands, outputs=[value], name=f"{node.name}/kept"))
