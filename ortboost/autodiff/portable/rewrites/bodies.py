"""Prepare the bodies of If, Loop and Scan like models of their own.

The other rewrites of this folder see the main graph only.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import as_model, own_outputs, states_of
from ortboost.graph.loop_shapes import infer_body
from ortboost.graph.query import is_standard, label, source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["capture_unchanged_states", "prepare_bodies"]


@rewrites("Loop", "Scan", name="unchanged_states", what="its unchanged states are captured")
def capture_unchanged_states(site: Site) -> list[ir.Value | None] | None:
    """Let the body of a Loop or Scan capture the states that it passes on unchanged, in place.

    tf2onnx and jax2onnx pass weights through a loop as states. Of each state the backward pass
    needs the value in every iteration; of a captured weight it needs one.
    """
    node = site.node
    body = node.attributes["body"].as_graph()
    own_outputs(body)  # so that none of them is an input
    before, first, count = states_of(node)
    unchanged: dict[int, ir.Value] = {}
    for index in range(count):
        inner, initial = body.inputs[before + index], node.inputs[before + index]
        if initial is not None and source_before(body.outputs[first + index], "Identity") is inner:
            unchanged[index] = initial
    if not unchanged:
        return None
    for index in sorted(unchanged, reverse=True):
        body.outputs.pop(first + index)
        body.inputs[before + index].replace_all_uses_with(unchanged[index])
        body.inputs.pop(before + index)
    kept = [index for index in range(len(node.outputs)) if index not in unchanged]
    inputs = [v for index, v in enumerate(node.inputs) if index - before not in unchanged]
    made = [
        ir.Value(name=site.builder.unique(f"{node.name}/kept"), type=node.outputs[index].type)
        for index in kept
    ]
    name = site.builder.unique(node.name or node.op_type)
    site.builder.nodes.append(
        ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=made, name=name)
    )
    results = {**unchanged, **dict(zip(kept, made, strict=True))}
    return [results[index] for index in range(len(node.outputs))]


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
