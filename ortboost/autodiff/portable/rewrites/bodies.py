"""Prepare the bodies of If, Loop and Scan like models of their own.

The other rewrites of this folder see the main graph only.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import as_model, own_outputs
from ortboost.graph.query import is_standard, label
from ortboost.graph.shapes.loop_shapes import infer_body

__all__ = ["prepare_bodies"]


def prepare_bodies(model: ir.Model, prepare: Callable[[ir.Model], bool]) -> Report:
    """Rewrite the bodies of If, Loop and Scan in the main graph, and infer their shapes, in place.

    ``prepare`` rewrites a model in place and returns whether it changed it. The report has the
    nodes whose bodies were rewritten.
    """
    report = Report("prepare_bodies")
    for node in model.graph:
        if not is_standard(node, "If", "Loop", "Scan"):
            continue
        for attribute in list(node.attributes.values()):
            if attribute.type != ir.AttributeType.GRAPH:
                continue
            body = attribute.as_graph()
            own_outputs(body)
            alone = as_model(body, model)
            infer_body(alone.model, node)
            if prepare(alone.model):
                report.changed[label(node)] = f"{node.op_type}: its body is rewritten"
            node.attributes.pop(attribute.name)  # else its names count as taken
            body = alone.put_back(model)
            node.attributes[attribute.name] = ir.AttrGraph(attribute.name, body)
    return report
