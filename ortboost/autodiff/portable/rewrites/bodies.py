"""Prepare the bodies of If, Loop and Scan like models of their own.

The other rewrites of this folder see the main graph only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import as_model, own_outputs, states_of
from ortboost.graph.query import is_standard, known_shape, label, source_before
from ortboost.graph.rewriting import Site, rewrites
from ortboost.graph.shape_inference import infer_shapes

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

    Args:
        model: The model.
        prepare: Rewrites a model in place; returns whether it changed it.

    Returns:
        A report of the nodes whose bodies were rewritten.
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
            _infer(alone.model, node)
            if prepare(alone.model):
                report.changed[label(node)] = f"{node.op_type}: its body is rewritten"
            node.attributes.pop(attribute.name)  # else its names count as taken
            body = alone.put_back(model)
            node.attributes[attribute.name] = ir.AttrGraph(attribute.name, body)
    return report


def _infer(body: ir.Model, node: ir.Node) -> None:
    """Infer the shapes of a body from those of the inputs of its node.

    ONNX's inference does not look for the shapes of the states of a Loop: an iteration may change
    them. A length is kept here if the body returns it as it was given, whatever it is called.
    """
    if node.op_type == "If":
        infer_shapes(body)
        return
    before, first, count = states_of(node)
    inputs = list(body.graph.inputs)
    if node.op_type == "Loop":
        inputs[0].type, inputs[0].shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        inputs[1].type, inputs[1].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    for index in range(len(node.inputs) - count - before):  # the slices of a Scan
        _describe_slice(inputs[count + index], node, count, index)
    guessed = [
        _guess(initial, inner)
        for initial, inner in zip(
            node.inputs[before:], inputs[before : before + count], strict=False
        )
    ]
    results = body.graph.outputs[first : first + count]
    _forget_shapes(body, keep_numbers=True)  # names that an exporter gave may differ for one length
    while True:
        for inner, dims in zip(inputs[before:], guessed, strict=False):
            inner.shape = None if dims is None else ir.Shape(dims)
        infer_shapes(body)
        kept = [_agreement(dims, value) for dims, value in zip(guessed, results, strict=True)]
        if kept == guessed:
            return
        guessed = kept
        _forget_shapes(body)  # inferred from a wrong guess


_Dims: TypeAlias = "list[int | str | None] | None"


def _guess(initial: ir.Value | None, inner: ir.Value) -> _Dims:
    """The shape that a state starts with; unknown lengths get names, to recognize them again."""
    if initial is None:
        return None
    inner.type = initial.type
    shape = known_shape(initial)
    if shape is None:
        return None
    return [f"{inner.name}/{axis}" if dim is None else dim for axis, dim in enumerate(shape)]


def _agreement(dims: _Dims, result: ir.Value) -> _Dims:
    """The lengths that a state still has after an iteration."""
    found = known_shape(result)
    if dims is None or found is None or len(found) != len(dims):
        return None
    return [dim if dim == after else None for dim, after in zip(dims, found, strict=True)]


def _forget_shapes(body: ir.Model, *, keep_numbers: bool = False) -> None:
    for node in body.graph.all_nodes():
        for output in node.outputs:
            dims = known_shape(output) if keep_numbers else None
            output.shape = (
                None
                if dims is None
                else ir.Shape([d if isinstance(d, int) else None for d in dims])
            )


def _describe_slice(inner: ir.Value, node: ir.Node, count: int, index: int) -> None:
    outer = node.inputs[count + index]
    if outer is None:
        return
    inner.type = outer.type
    shape = known_shape(outer)
    if shape is not None:
        axes = node.attributes.get_ints("scan_input_axes", None) or [0] * (index + 1)
        axis = axes[index] % len(shape)
        inner.shape = ir.Shape([d for a, d in enumerate(shape) if a != axis])
