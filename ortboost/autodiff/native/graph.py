"""Preparation of a graph for the native builder: names, uses, large constants, unneeded nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import has_subgraph, is_standard, source_before
from ortboost.graph.reach import ancestors, find_value, stops_gradient, values_by_name, values_read

__all__ = [
    "COPY_PREFIX",
    "Aside",
    "cut_stopped",
    "drop_empty_inputs",
    "free_gradient_names",
    "join_stopped",
    "lift_large_constants",
    "one_use_per_node",
    "own_frozen_inputs",
    "part_from_copies",
    "part_shapes",
    "put_back",
    "set_aside",
]

# Constants with more elements than this are passed separately from the graph.
_LIFT_ELEMENTS = 4096
_GRADIENT_LIKE = re.compile(r"_grad(_\d+)?$")
# Operators and the inputs whose gradients the builder writes even if not requested.
_ALWAYS_WRITTEN = {
    "BatchNormInternal": slice(3),  # the optimizer replaces BatchNormalization
    "BiasGelu": slice(2),
    "ConcatTraining": slice(None),  # the optimizer replaces Concat
    "FastGelu": slice(2),
    "LayerNormalization": slice(None),
    "SimplifiedLayerNormalization": slice(None),
}
COPY_PREFIX = "ortboost/native/own"
_STOPPED = "ortboost/native/stopped/"
_SHAPE_READERS = ("EyeLike", "RandomNormalLike", "RandomUniformLike")  # unlike Shape unknown to it


def free_gradient_names(model: ir.Model, reserved: Sequence[str]) -> None:
    """Rename inner values whose names the builder uses for gradients."""
    builder = Builder(model.graph, "ortboost/forward")
    fixed = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    values = [output for node in model.graph for output in node.outputs]
    values += list(model.graph.initializers.values())
    for value in values:
        if (
            value.name
            and value.name not in fixed
            and value.name not in reserved
            and _GRADIENT_LIKE.search(value.name)
        ):
            value.name = builder.unique(f"{value.name}/forward")


def one_use_per_node(model: ir.Model, wrt: Sequence[str]) -> None:
    """Insert an Identity for each further read of a requested tensor by the same node.

    ``Mul(w, w)`` would make the builder define ``w_grad`` twice.
    """
    builder = Builder(model.graph, "ortboost/native/use")
    values = values_by_name(model.graph)
    for name in wrt:
        value = values[name]
        for node in dict.fromkeys(usage.node for usage in value.uses()):  # a set has no fixed order
            places = [index for index, given in enumerate(node.inputs) if given is value]
            for index in places[1:]:
                copy = builder.op("Identity", value, shape=value.shape)
                node.replace_input_with(index, copy)
                model.graph.insert_before(node, builder.take())


def part_shapes(model: ir.Model) -> None:
    """Replace a partial Shape that a Slice or Gather reads by a Slice of the whole shape, in place.

    The optimizer that runs before the builder ignores ``start`` and ``end`` and indexes the whole
    shape.
    """
    builder = Builder(model.graph, "ortboost/native/part")
    for node in list(model.graph):
        start, end = node.attributes.get_int("start", 0), node.attributes.get("end")
        if node.op_type != "Shape" or (start == 0 and end is None):
            continue
        if any(usage.node.op_type in ("Gather", "Slice") for usage in node.outputs[0].uses()):
            whole = builder.op("Shape", node.inputs[0])
            last = sys.maxsize if end is None else end.as_int()
            bounds = builder.ints(start), builder.ints(last)
            part = builder.op("Slice", whole, *bounds, shape=node.outputs[0].shape)
            replace_node(node, [part], builder)


def own_frozen_inputs(model: ir.Model, active: Collection[str | None]) -> None:
    """Give each node that shares an untrained input its own copy, in place.

    The builder writes the gradients of these inputs even if they are not requested, each node under
    the same name; only requested ones are summed. The graph must be optimized before: a fusion may
    make such nodes, and the optimizer removes copies.
    :func:`~ortboost.autodiff.native.built_graph.drop_copies` removes them from the result.

    Args:
        model: The graph, changed in place.
        active: Names of all values that a gradient flows through.
    """
    builder = Builder(model.graph, COPY_PREFIX)
    for node in list(model.graph):
        written = _ALWAYS_WRITTEN.get(node.op_type)
        if written is None or not any(output.name in active for output in node.outputs):
            continue
        for index in range(len(node.inputs))[written]:
            value = node.inputs[index]
            if value is None or value.name in active:
                continue
            node.replace_input_with(index, builder.op("Identity", value, shape=value.shape))
            model.graph.insert_before(node, builder.take())


def part_from_copies(model: ir.Model, active: Collection[str | None]) -> None:
    """Let each Gather and Slice that does not lead to the loss read a copy, in place.

    The optimizer fuses all that take parts of one tensor to a Split, whose gradient is wrong if not
    every part leads to the loss (:mod:`~ortboost.autodiff.native.rewrites.partial`). Each copy is a
    Sum of one value: the optimizer would remove an Identity.
    """
    builder = Builder(model.graph, COPY_PREFIX)
    copies: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        if not is_standard(node, "Gather", "Slice") or node.outputs[0].name in active:
            continue
        value = source_before(node.inputs[0], "Identity")
        if value is None or value.name not in active:
            continue
        if value not in copies:
            copies[value] = builder.op("Sum", value, shape=value.shape)
            model.graph.insert_before(node, builder.take())
        node.replace_input_with(0, copies[value])


def drop_empty_inputs(model: ir.Model) -> None:
    """Drop trailing omitted inputs: the gradient of ``ReduceSum(x, "")`` is invalid."""
    for node in model.graph:
        count = len(node.inputs)
        while count and node.inputs[count - 1] is None:
            count -= 1
        node.resize_inputs(count)


def lift_large_constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Turn large constants into inputs temporarily, as the builder takes the model as bytes.

    The result is name to tensor.
    """
    lifted: dict[str, ir.TensorProtocol] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output():
            continue
        if isinstance(tensor, ir.ExternalTensor) or tensor.size > _LIFT_ELEMENTS:
            lifted[name] = tensor
            value.const_value = None
            model.graph.initializers.pop(name)
            value.shape = ir.Shape(tensor.numpy().shape)
            value.type = ir.TensorType(tensor.dtype)
            model.graph.inputs.append(value)
    return lifted


def cut_stopped(model: ir.Model) -> dict[str, str]:
    """Let the readers of detached values read new inputs: the builder has no form of such a node.

    Nor does it treat a few operators as reading only the shape of their input.

    Returns:
        Name of each new input to the name of the detached value, for :func:`join_stopped`.
    """
    graph, cut = model.graph, dict[str, str]()
    for node in [n for n in graph if stops_gradient(n) or is_standard(n, *_SHAPE_READERS)]:
        value = node.outputs[0]
        entry = ir.Value(name=f"{_STOPPED}{value.name}", type=value.type, shape=value.shape)
        graph.inputs.append(entry)
        for usage in list(value.uses()):
            usage.node.replace_input_with(usage.idx, entry)
        cut[entry.name or ""] = value.name or ""
    return cut


def join_stopped(model: ir.Model, cut: Mapping[str, str]) -> None:
    """Undo :func:`cut_stopped` in the graph with gradients.

    Raises:
        ModelError: The builder dropped a detached value.
    """
    values = values_by_name(model.graph)
    for entry, name in cut.items():
        if name not in values:
            raise ModelError(
                "The native engine cannot stop the gradient of a detached value that a branch or "
                "loop reads.",
                where=f"value '{name}'",
                fix="Use --engine portable.",
            )
        if entry in values:  # else the loss does not depend on it
            values[entry].replace_all_uses_with(values[name])
            model.graph.inputs.remove(values[entry])
    if cut:
        model.graph.sort()  # put_back() appended the detached values after their readers


@dataclass(frozen=True)
class Aside:
    """Nodes removed from a graph because the loss does not need them.

    Args:
        nodes: The nodes, in graph order, without inputs.
        inputs: Names of the inputs of each node, ``None`` for an omitted one.
        sources: Graph inputs and initializers that they read.
        outputs: Names of the graph outputs that they compute.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[tuple[str | None, ...], ...]
    sources: tuple[ir.Value, ...]
    outputs: tuple[str, ...]


def set_aside(model: ir.Model, loss: str) -> Aside:
    """Remove the nodes that the loss does not need, such as the update of running statistics.

    The run time of the builder grows faster than linearly with the number of nodes.
    """
    graph = model.graph
    needed = ancestors([find_value(graph, loss)])
    nodes = [n for n in graph if n not in needed and not has_subgraph(n)]
    # put_back() connects inputs, not what subgraphs capture: nodes with subgraphs stay in the
    # graph, and so does everything that they read, directly or not.
    kept = {v.name for n in graph if has_subgraph(n) for v in values_read(n)}
    for node in reversed(nodes):
        if any(output.name in kept for output in node.outputs):
            kept.update(value.name for value in node.inputs if value is not None)
    nodes = [n for n in nodes if not any(output.name in kept for output in n.outputs)]
    made = {id(output) for node in nodes for output in node.outputs}
    read = {id(v): v for n in nodes for v in n.inputs if v is not None and id(v) not in made}
    outputs = tuple(v.name or "" for v in graph.outputs if id(v) in made)
    # As outputs, the builder's optimizer keeps the inner values that they read.
    inner = [value for value in read.values() if value.producer() is not None]
    left = [value for value in graph.outputs if id(value) not in made]
    graph.outputs[:] = list({id(value): value for value in (*left, *inner)}.values())
    inputs = tuple(tuple(None if v is None else v.name for v in n.inputs) for n in nodes)
    sources = tuple(value for value in read.values() if value.producer() is None)
    graph.remove(nodes, safe=True)  # which disconnects their inputs: hence the names
    return Aside(tuple(nodes), inputs, sources, outputs)


def put_back(model: ir.Model, aside: Aside) -> None:
    """Append the nodes that :func:`set_aside` removed to a graph, connected by names."""
    graph = model.graph
    values: dict[str, ir.Value] = dict(values_by_name(graph))
    # The builder dropped the inputs and constants that only these nodes read.
    for source in aside.sources:
        name = source.name or ""
        if name in values:
            continue
        value = ir.Value(
            name=name, type=source.type, shape=source.shape, const_value=source.const_value
        )
        values[name] = value
        if source.const_value is None:
            graph.inputs.append(value)
        else:
            graph.register_initializer(value)
    for node, names in zip(aside.nodes, aside.inputs, strict=True):
        for index, input_name in enumerate(names):
            node.replace_input_with(index, None if input_name is None else values[input_name])
        values.update({output.name or "": output for output in node.outputs})
        graph.append(node)
    graph.outputs.extend(values[name] for name in aside.outputs)
