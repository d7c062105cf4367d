"""Drop the states of a loop that no turn changes: its body reads the outer value instead.

tf2onnx carries everything that a ``tf.while_loop`` reads, weights and lengths too. Inside, they are
then no constants that could be folded, and each turn copies them.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import own_outputs, states_of
from ortboost.graph.query import all_graphs, is_standard, label, source_before, subgraphs

__all__ = ["drop_carried"]


def drop_carried(model: ir.Model) -> Report:
    """Drop unchanged states of Loop and Scan, in place, including those in subgraphs."""
    report = Report("drop_carried")
    loops = ("Loop", "Scan") if model.opset_imports.get("", 0) > 8 else ("Loop",)  # Scan-8: batches
    for graph in all_graphs(model.graph):
        for node in list(graph):
            if is_standard(node, *loops):
                _drop(node, graph, report)
    return report


def _drop(node: ir.Node, graph: ir.Graph, report: Report) -> None:
    (body,) = subgraphs(node)
    before, first, count = states_of(node)
    found = [
        index
        for index in range(min(count, len(node.outputs)))
        if source_before(body.outputs[first + index], "Identity") is body.inputs[before + index]
        and node.inputs[before + index] is not None
        and not node.outputs[index].is_graph_output()
    ]
    if len(found) == len(node.outputs):  # a loop has at least one
        found = found[1:]
    if not found:
        return
    for index in reversed(found):
        inner, outer = body.inputs.pop(before + index), node.inputs[before + index]
        assert outer is not None
        body.outputs.pop(first + index)
        if inner.is_graph_output():
            own_outputs(body)
        for old in (inner, node.outputs[index]):
            ir.convenience.replace_all_uses_with(old, outer)
        report.changed[f"{label(node)}[{before + index}]"] = f"no turn changes '{outer.name}'"
    _without(node, graph, {before + index for index in found}, set(found))


def _without(node: ir.Node, graph: ir.Graph, inputs: set[int], outputs: set[int]) -> None:
    """Replace a node by one without these inputs and outputs."""
    kept = [value for index, value in enumerate(node.outputs) if index not in outputs]
    other = ir.node(
        node.op_type,
        [value for index, value in enumerate(node.inputs) if index not in inputs],
        node.attributes,
        domain=node.domain,
        num_outputs=len(kept),
        name=node.name,
    )
    other.metadata_props.update(node.metadata_props)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [other], kept, other.outputs)
