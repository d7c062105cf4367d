"""States of loops that no iteration changes: the body reads the outer value instead."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.bodies import own_outputs, states_of
from ortboost.graph.query import source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["capture_unchanged_states"]


@rewrites(
    *("Loop", "Scan"),
    name="unchanged_states",
    what="its unchanged states are captured",
    subgraphs=True,
)
def capture_unchanged_states(site: Site) -> list[ir.Value | None] | None:
    """Let the body of a Loop or Scan capture the states that it passes on unchanged, in place.

    tf2onnx and jax2onnx pass weights through a loop as states. In the body they
    cannot be folded like constants then, each iteration copies them, and the backward pass needs
    the value of each iteration.
    """
    node = site.node
    if node.op_type == "Scan" and site.opset < 9:  # it has a batch axis and other inputs
        return None
    body = node.attributes["body"].as_graph()
    before, first, count = states_of(node)
    unchanged: dict[int, ir.Value] = {}
    for index in range(count):
        inner, initial = body.inputs[before + index], node.inputs[before + index]
        if initial is not None and source_before(body.outputs[first + index], "Identity") is inner:
            unchanged[index] = initial
    if not unchanged:
        return None
    own_outputs(body)  # so that none of them is an input
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
    if made:
        site.builder.nodes.append(
            ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=made, name=name)
        )
    results = {**unchanged, **dict(zip(kept, made, strict=True))}
    return [results[index] for index in range(len(node.outputs))]
