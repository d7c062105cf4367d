"""Convert BatchNormalization and Dropout back to inference form, for evaluation and export."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import find_nodes, input_at, is_read, is_unused, label
from ortboost.transforms.trainable_norm import (
    MOMENTUM_KEY,
    NEXT,
    OWN_PREFIX,
    VARIANCE_KEY,
    batch_norms,
    is_training,
)

__all__ = ["to_inference"]


def to_inference(model: ir.Model) -> Report:
    """Put BatchNormalization and Dropout nodes of the main graph in inference form, in place.

    BatchNormalization normalizes by its running statistics and has one output; the nodes that
    compute the next statistics are removed, also from the graph's outputs. Dropout passes on its
    input.
    """
    report = Report("to_inference")
    graph = model.graph
    # Buffers are inputs in a program, and initializers in a model.
    originals = {value.name: value for value in graph.inputs}
    originals.update(graph.initializers)
    training = [node for node in batch_norms(model) if is_training(node) or len(node.outputs) > 1]
    for node in training:  # all of them first: one may read the next statistics of another
        for index in (3, 4):
            stored = _stored_of(node.inputs[index], originals)
            if stored is not None:
                node.replace_input_with(index, stored)
    for node in training:
        for output in node.outputs[1:]:
            _drop_downstream(graph, output, report)
        node.resize_outputs(1)
        node.attributes.pop("training_mode", None)
        node.metadata_props.pop(VARIANCE_KEY, None)
        if MOMENTUM_KEY in node.metadata_props:
            momentum = float(node.metadata_props.pop(MOMENTUM_KEY))
            node.attributes["momentum"] = ir.AttrFloat32("momentum", momentum)
        report.changed[label(node)] = "put in inference mode"
    if report.modified:
        _remove_unused(graph)
    for node in find_nodes(graph, "Dropout"):
        if input_at(node, 2) is not None:
            node.replace_input_with(2, None)
            node.resize_inputs(2)
            report.changed[label(node)] = "put in inference mode"
        if len(node.outputs) > 1 and not is_read(node.outputs[1]):
            node.resize_outputs(1)
    return report


def _stored_of(value: ir.Value | None, originals: dict[str | None, ir.Value]) -> ir.Value | None:
    """The stored tensor that a running statistic added by ortboost is computed from."""
    while value is not None and value.name not in originals:
        producer = value.producer()
        if producer is None or not (producer.name or "").startswith((OWN_PREFIX, NEXT)):
            return None
        value = producer.inputs[0]  # of Mul(old, 0.5), Add(kept, new), Mul(old, momentum)
    return value


def _drop_downstream(graph: ir.Graph, value: ir.Value, report: Report) -> None:
    """Remove all nodes that depend on a value, and the graph outputs among it and their results."""
    for usage in list(value.uses()):
        node = usage.node
        # Already removed, by way of another of its inputs.
        if node.graph is None:
            continue
        for output in node.outputs:
            _drop_downstream(graph, output, report)
        if node.graph is graph:
            graph.remove(node, safe=True)
    if value.is_graph_output():
        graph.outputs[:] = [output for output in graph.outputs if output is not value]
        report.notes.append(f"output '{value.name}' was removed: it is a training state")


def _remove_unused(graph: ir.Graph) -> None:
    """Remove nodes and constants that only the next statistics needed."""
    # From the end: what reads a node is removed before it.
    for node in reversed(list(graph)):
        if (node.name or "").startswith(OWN_PREFIX) and is_unused(node):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if name.startswith(OWN_PREFIX) and not value.uses():
            graph.initializers.pop(name)
