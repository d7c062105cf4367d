"""Corrections of the graph that the native builder returns: names, order, and safe kernels."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.autodiff.broadcast_sum import sum_broadcast_axes
from ortboost.autodiff.engine import gradient_name
from ortboost.autodiff.native.graph import COPY_PREFIX
from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import known_shape, producer_of
from ortboost.graph.reach import values_by_name
from ortboost.graph.unused import remove_unused_nodes

__all__ = [
    "drop_copies",
    "protect_pool_indices",
    "restore",
    "restore_recurrent",
    "scatter_pool_gradients",
    "sum_empty_batches",
]

_OF_OPTIMIZER = ("splits", "squeeze_axes")


def drop_copies(model: ir.Model) -> None:
    """Remove the copies of ``own_frozen_inputs`` and ``part_from_copies``, in place."""
    for node in list(model.graph):
        copy = node.outputs[0]
        if node.op_type in ("Identity", "Sum") and (copy.name or "").startswith(COPY_PREFIX):
            source = node.inputs[0]
            assert source is not None
            ir.convenience.replace_all_uses_with(copy, source)
            model.graph.remove(node, safe=True)


def restore_recurrent(model: ir.Model) -> None:
    """Make recurrent layers the standard operators again, in place.

    They are frozen, since they have no gradient here; but the builder takes them for trained ones,
    whose kernels have one direction only.
    """
    for node in model.graph.all_nodes():
        standard = node.op_type.removesuffix("Training")
        if standard in ("GRU", "LSTM") and node.op_type != standard:
            node.op_type, node.domain = standard, ""
            node.resize_outputs(2 if standard == "GRU" else 3)


def restore(
    result: ir.Model, source: ir.Model, wrt: Sequence[str], lifted: dict[str, ir.TensorProtocol]
) -> None:
    """Restore the order and form of inputs, outputs and metadata of the source model."""
    graph = result.graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    for name, tensor in lifted.items():
        value = inputs.pop(name, None)
        if value is not None:
            graph.inputs.remove(value)
            value.const_value = tensor
            graph.register_initializer(value)
    # The runtime's optimizer makes constants of the same names again, and fails if it finds them.
    for value in list(graph.initializers.values()):
        if value.name in _OF_OPTIMIZER and value.name not in source.graph.initializers:
            graph.initializers.pop(value.name)
            value.name = f"ortboost/native/{value.name}"
            graph.register_initializer(value)
    # Inputs as in the source: the builder drops unused ones.
    ordered = []
    for given in source.graph.inputs:
        value = inputs.get(given.name)
        if value is None:  # dropped by the builder because it is unused
            value = ir.Value(name=given.name, type=given.type, shape=given.shape)
        value.type, value.shape = given.type, given.shape
        ordered.append(value)
    graph.inputs[:] = ordered
    # Outputs as in the source, then the gradients in the order of the request.
    declared = [given.name or "" for given in source.graph.outputs]
    missing = [name for name in declared if name not in outputs]
    missing += [name for name in wrt if gradient_name(name) not in outputs]
    if missing:
        raise ModelError(
            "onnxruntime-training lost tensors of the graph.",
            where=", ".join(missing),
            fix="This is a bug in ortboost; please report it with the model.",
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
    graph.outputs[:] = given_outputs  # drops those that set_aside added
    graph.name = source.graph.name
    result.metadata_props.update(source.metadata_props)
    common.RemoveUnusedOpsetsPass()(result)
    result.opset_imports.setdefault("", source.opset_imports[""])


def protect_pool_indices(model: ir.Model) -> None:
    """Keep MaxPoolGrad from writing out of bounds.

    If a window contains only NaN, MaxPool returns a negative index, and MaxPoolGrad writes there:
    an overflow would crash the process instead of skipping the step.
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
    """Replace MaxPoolGrad for images of unknown size by the equivalent ScatterElements.

    Its kernel takes the shape of its output from the model, except for the batch: with symbolic
    channels or lengths it writes out of bounds and crashes the process.
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
        size = builder.op("Reshape", builder.op("Size", image), flat)
        zeros = builder.filled(0, size, dtype)
        bounded = builder.op("Max", indices, builder.const(0, int64))
        places, values = (builder.op("Reshape", v, flat) for v in (bounded, gradient))
        added = builder.op("ScatterElements", zeros, places, values, axis=0, reduction="add")
        back = builder.op("Shape", image)
        result = builder.op("Reshape", added, back, shape=made.shape, allowzero=1)
        replace_node(node, [result], builder)


def sum_empty_batches(model: ir.Model) -> None:
    """Rewrite sums over axes computed at run time so that empty batches work, in place.

    BroadcastGradientArgs does not find an axis of length 1 that was broadcast to length 0, and
    ReduceSum over no axes returns a scalar for an empty tensor.
    """
    builder = Builder(model.graph, "ortboost/native/sum")
    # The builder writes Reshape(ReduceSum(g, BroadcastGradientArgs(...)), shape) for each operand.
    for node in list(model.graph):
        summed = None if node.op_type != "Reshape" else node.inputs[0]
        sum_node = producer_of(summed)
        if sum_node is None or sum_node.op_type != "ReduceSum" or len(sum_node.inputs) < 2:
            continue
        axes, gradient, want = sum_node.inputs[1], sum_node.inputs[0], node.inputs[1]
        maker = producer_of(axes)
        if maker is None or maker.op_type != "BroadcastGradientArgs" or not (gradient and want):
            continue
        result = sum_broadcast_axes(builder, gradient, want, node.outputs[0].shape)
        replace_node(node, [result], builder)
    remove_unused_nodes(model)
