"""A graph on its way into the native builder and back: names, uses, large constants, order."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.autodiff.broadcast_sum import sum_broadcast_axes
from ortboost.autodiff.engine import gradient_name
from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder, all_names, replace_node
from ortboost.graph.query import known_shape, producer_of
from ortboost.graph.reach import find_value, uses_inside, values_by_name

__all__ = [
    "Aside",
    "drop_copies",
    "drop_empty_inputs",
    "free_gradient_names",
    "lift_large_constants",
    "one_use_per_node",
    "own_frozen_inputs",
    "part_shapes",
    "protect_pool_indices",
    "protect_running_statistics",
    "put_back",
    "restore",
    "scatter_pool_gradients",
    "set_aside",
    "sum_empty_batches",
    "unique_node_names",
]

# Constants of more elements than this travel apart from the graph.
_LIFT_ELEMENTS = 4096
_GRADIENT_LIKE = re.compile(r"_grad(_\d+)?$")
# Operators and the inputs whose gradients the builder writes unasked.
_ALWAYS_WRITTEN = {
    "BatchNormalization": range(1, 3),
    "BiasGelu": range(1, 2),
    "Concat": range(sys.maxsize),
    "FastGelu": range(1, 2),
    "LayerNormalization": range(1, 3),
    "SimplifiedLayerNormalization": range(1, 2),
}
_OWN = "ortboost/native/own"


def free_gradient_names(model: ir.Model, reserved: Sequence[str]) -> None:
    """Rename inner values whose names the builder would want for its own."""
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
    """Give a requested tensor that one node reads twice an Identity for the further reads.

    ``Mul(w, w)`` would make the builder define ``w_grad`` twice.
    """
    builder = Builder(model.graph, "ortboost/native/use")
    values = values_by_name(model.graph)
    for name in wrt:
        value = values[name]
        for node in {usage.node for usage in value.uses()}:
            places = [index for index, given in enumerate(node.inputs) if given is value]
            for index in places[1:]:
                copy = builder.op("Identity", value, shape=value.shape)
                node.replace_input_with(index, copy)
                model.graph.insert_before(node, builder.take())


def part_shapes(model: ir.Model) -> None:
    """Write a partial Shape that a Slice or Gather reads as a Slice of the whole shape, in place.

    The optimizer that runs before the builder ignores ``start`` and ``end``: it takes the dimension
    with that index of the whole shape.
    """
    builder = Builder(model.graph, "ortboost/native/part")
    for node in list(model.graph):
        start, end = node.attributes.get_int("start", 0), node.attributes.get("end")
        if node.op_type != "Shape" or (start == 0 and end is None):
            continue
        if any(usage.node.op_type in ("Gather", "Slice") for usage in node.outputs[0].uses()):
            whole = builder.op("Shape", node.inputs[0], dtype=ir.DataType.INT64)
            last = sys.maxsize if end is None else end.as_int()
            bounds = builder.ints(start), builder.ints(last)
            part = builder.op("Slice", whole, *bounds, shape=node.outputs[0].shape)
            replace_node(node, [part], builder)


def own_frozen_inputs(model: ir.Model, active: Collection[str | None]) -> set[str]:
    """Give each of some nodes a copy of its own of what it shares and what is not trained.

    The builder writes the gradients of these inputs whether they are asked for or not, each node
    under the same name; only those that are asked for are summed. Each copy is a copy of the last
    one, by a Sum of one
    input: equal nodes would be merged again, and so would an Identity. :func:`drop_copies` takes
        them out.

    Args:
        model: The graph, changed in place.
        active: Names of all values that a gradient goes through.

    Returns:
        Names of what was copied. Constants among them must be lifted: copies of these are computed
        at once, and equal constants are merged.
    """
    builder = Builder(model.graph, _OWN)
    latest: dict[ir.Value, ir.Value] = {}
    for node in list(model.graph):
        written = _ALWAYS_WRITTEN.get(node.op_type, range(0))
        if not any(output.name in active for output in node.outputs):
            continue
        for index in range(len(node.inputs))[written.start : written.stop]:
            value = node.inputs[index]
            while value is not None and (maker := value.producer()) is not None:
                if maker.op_type != "Identity":
                    break
                value = maker.inputs[0]
            if value is None or value.name in active:
                continue
            if value in latest:
                latest[value] = builder.op("Sum", latest[value], shape=value.shape)
                model.graph.insert_before(node, builder.take())
                node.replace_input_with(index, latest[value])
            else:
                latest[value] = value
    return {value.name or "" for value, copy in latest.items() if copy is not value}


def drop_copies(model: ir.Model) -> None:
    """Take the copies of :func:`own_frozen_inputs` out again, in place."""
    for node in list(model.graph):
        if node.op_type == "Sum" and (node.outputs[0].name or "").startswith(_OWN):
            source = node.inputs[0]
            assert source is not None
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            model.graph.remove(node, safe=True)


def drop_empty_inputs(model: ir.Model) -> None:
    """``ReduceSum(x, "")`` is valid, but the gradient of it is not."""
    for node in model.graph:
        count = len(node.inputs)
        while count and node.inputs[count - 1] is None:
            count -= 1
        node.resize_inputs(count)


def unique_node_names(model: ir.Model) -> None:
    """Gradient nodes are named after their forward nodes, so those must be told apart."""
    taken = all_names(model.graph)
    seen: set[str] = set()
    for node in model.graph.all_nodes():
        name = node.name
        if not name or name in seen:
            base, count = name or node.op_type, 0
            while not name or name in taken or name in seen:
                count += 1
                name = f"{base}_{count}"
            node.name = name
        seen.add(name)


def lift_large_constants(
    model: ir.Model, also: Collection[str] = ()
) -> dict[str, ir.TensorProtocol]:
    """Turn large constants into inputs for a while: the builder takes the model as bytes.

    Args:
        model: The graph, changed in place.
        also: Names of constants to turn whatever their size.
    """
    lifted: dict[str, ir.TensorProtocol] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output():
            continue
        large = isinstance(tensor, ir.ExternalTensor) or tensor.size > _LIFT_ELEMENTS
        if large or name in also:
            lifted[name] = tensor
            value.const_value = None
            model.graph.initializers.pop(name)
            value.shape = ir.Shape(tensor.numpy().shape)
            value.type = ir.TensorType(tensor.dtype)
            model.graph.inputs.append(value)
    return lifted


@dataclass(frozen=True)
class Aside:
    """Nodes that the loss does not need, taken out of a graph.

    Args:
        nodes: The nodes, in graph order, without inputs.
        inputs: Names of the inputs of each node, ``None`` where one is left out.
        sources: Graph inputs and initializers that they read.
        outputs: Names of the graph outputs that they make.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[tuple[str | None, ...], ...]
    sources: tuple[ir.Value, ...]
    outputs: tuple[str, ...]


def set_aside(model: ir.Model, loss: str) -> Aside:
    """Take out the nodes that the loss does not need, such as the update of running statistics.

    The builder's time grows faster than the number of nodes, and it has nothing to do with these.
    """
    graph = model.graph
    needed = _ancestors(graph, loss)
    nodes = [n for n in graph if id(n) not in needed and not _has_subgraph(n)]
    # what a node with a subgraph reads stays with it
    kept = {v.name for n in graph if _has_subgraph(n) for v in (*n.inputs, *uses_inside(n)) if v}
    for node in reversed(nodes):
        if any(output.name in kept for output in node.outputs):
            kept.update(value.name for value in node.inputs if value is not None)
    nodes = [n for n in nodes if not any(output.name in kept for output in n.outputs)]
    made = {id(output) for node in nodes for output in node.outputs}
    read = {id(v): v for n in nodes for v in n.inputs if v is not None and id(v) not in made}
    outputs = tuple(v.name or "" for v in graph.outputs if id(v) in made)
    inner = [value for value in read.values() if value.producer() is not None]
    left = [value for value in graph.outputs if id(value) not in made]
    graph.outputs[:] = list({id(value): value for value in (*left, *inner)}.values())
    inputs = tuple(tuple(None if v is None else v.name for v in n.inputs) for n in nodes)
    sources = tuple(value for value in read.values() if value.producer() is None)
    graph.remove(nodes, safe=True)
    return Aside(tuple(nodes), inputs, sources, outputs)


def put_back(model: ir.Model, aside: Aside) -> None:
    """Append to the graph what :func:`set_aside` took out of another one, joined by names."""
    graph = model.graph
    values: dict[str, ir.Value] = dict(values_by_name(graph))
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


def _ancestors(graph: ir.Graph, name: str) -> set[int]:
    """Nodes that a value is computed with."""
    start = find_value(graph, name)
    found: set[int] = set()
    pending = [producer_of(start)]
    while pending:
        node = pending.pop()
        if node is None or id(node) in found:
            continue
        found.add(id(node))
        pending += [v.producer() for v in (*node.inputs, *uses_inside(node)) if v is not None]
    return found


def _has_subgraph(node: ir.Node) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attributes.values())


def restore(
    result: ir.Model,
    source: ir.Model,
    wrt: Sequence[str],
    lifted: dict[str, ir.TensorProtocol],
) -> None:
    """Bring inputs, outputs and metadata back into the order and form of the source model."""
    graph = result.graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    for name, tensor in lifted.items():
        value = inputs.pop(name, None)
        if value is not None:
            graph.inputs.remove(value)
            value.const_value = tensor
            graph.register_initializer(value)
    ordered = []
    for given in source.graph.inputs:
        value = inputs.get(given.name)
        if value is None:  # dropped because nothing reads it any more
            value = ir.Value(name=given.name, type=given.type, shape=given.shape)
        value.type, value.shape = given.type, given.shape
        ordered.append(value)
    graph.inputs[:] = ordered
    declared = [given.name or "" for given in source.graph.outputs]
    missing = [name for name in declared if name not in outputs]
    missing += [name for name in wrt if gradient_name(name) not in outputs]
    if missing:
        raise ModelError(
            "onnxruntime-training lost tensors of the graph.",
            where=", ".join(missing),
            fix="This is a bug of ortboost; please report it with the model.",
        )
    given_outputs = []
    for given in source.graph.outputs:
        value = outputs[given.name]
        if given.shape is not None:
            value.shape = given.shape
        given_outputs.append(value)
    values = values_by_name(source.graph)
    for name in wrt:
        value, about = outputs[gradient_name(name)], values[name]
        value.type = about.type or value.type
        value.shape = about.shape if about.shape is not None else value.shape
        given_outputs.append(value)
    graph.outputs[:] = given_outputs
    graph.name = source.graph.name
    result.metadata_props.update(source.metadata_props)
    common.RemoveUnusedOpsetsPass()(result)
    result.opset_imports.setdefault("", source.opset_imports[""])


def protect_running_statistics(model: ir.Model) -> None:
    """Let BatchNormInternal work on copies of the running statistics.

    Its kernel writes outputs 1 and 2 into the memory of inputs 3 and 4, graph inputs not excepted:
    a caller's state would change under its hands, on skipped steps too, and every other reader of
    the old statistics would race with it. A one-input Sum is a copy that no optimizer pass removes.
    """
    builder = Builder(model.graph, "ortboost/batch_norm/copy")
    for node in model.graph:
        if node.op_type != "BatchNormInternal":
            continue
        for index in (3, 4):
            value = node.inputs[index]
            if value is not None and value.producer() is None:
                copy = builder.op("Sum", value, shape=value.shape)
                model.graph.insert_before(node, builder.take())
                node.replace_input_with(index, copy)


def protect_pool_indices(model: ir.Model) -> None:
    """Keep MaxPoolGrad from writing outside its memory.

    Where a window holds nothing but nan, MaxPool answers with an index below zero, and MaxPoolGrad
    writes there: a batch that overflows would crash the process instead of being skipped.
    """
    builder = Builder(model.graph, "ortboost/max_pool/index")
    for node in model.graph:
        if node.op_type != "MaxPoolGrad" or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        indices = node.inputs[1]
        zero = builder.const(0, ir.DataType.INT64)
        bounded = builder.op("Max", indices, zero, dtype=ir.DataType.INT64, shape=indices.shape)
        model.graph.insert_before(node, builder.take())
        node.replace_input_with(1, bounded)


def scatter_pool_gradients(model: ir.Model) -> None:
    """Write MaxPoolGrad of images of unknown size as the ScatterElements that it is.

    Its kernel takes the shape of what it makes from the file, all but the batch: with symbolic
    channels or
    lengths it writes outside its memory, and the process dies.
    """
    builder = Builder(model.graph, "ortboost/max_pool/scatter")
    for node in list(model.graph):
        if node.op_type != "MaxPoolGrad" or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        gradient, indices, made = node.inputs[0], node.inputs[1], node.outputs[0]
        shape, pool = known_shape(made), indices.producer()
        known = shape is not None and all(isinstance(size, int) for size in shape[1:])
        if known or pool is None or pool.inputs[0] is None or gradient is None:
            continue
        image, dtype, int64 = pool.inputs[0], gradient.dtype or ir.DataType.FLOAT, ir.DataType.INT64
        flat = builder.ints(-1)
        size = builder.op("Reshape", builder.op("Size", image, dtype=int64), flat)
        zeros = builder.op(
            "ConstantOfShape", size, dtype=dtype, value=ir.tensor([0.0], dtype=dtype)
        )
        bounded = builder.op("Max", indices, builder.const(0, int64))
        places, values = (builder.op("Reshape", v, flat) for v in (bounded, gradient))
        added = builder.op("ScatterElements", zeros, places, values, axis=0, reduction="add")
        back = builder.op("Shape", image, dtype=int64)
        answer = builder.op("Reshape", added, back, shape=made.shape, allowzero=1)
        replace_node(node, [answer], builder)


def sum_empty_batches(model: ir.Model) -> None:
    """Write sums over axes that are found at run time so that a batch may be empty, in place.

    BroadcastGradientArgs does not find an axis of length 1 that was broadcast to length 0, and
    ReduceSum over no axes returns a number for an empty tensor.
    """
    builder = Builder(model.graph, "ortboost/native/sum")
    for node in list(model.graph):
        summed = None if node.op_type != "Reshape" else node.inputs[0]
        sum_node = producer_of(summed)
        if sum_node is None or sum_node.op_type != "ReduceSum" or len(sum_node.inputs) < 2:
            continue
        axes, gradient, want = sum_node.inputs[1], sum_node.inputs[0], node.inputs[1]
        maker = producer_of(axes)
        if maker is None or maker.op_type != "BroadcastGradientArgs" or not (gradient and want):
            continue
        answer = sum_broadcast_axes(builder, gradient, want, node.outputs[0].shape)
        replace_node(node, [answer], builder)
    common.RemoveUnusedNodesPass()(model)
