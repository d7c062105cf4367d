r"""Mixed precision on any device: compute in float32 and round to the 16-bit type.

A runtime without kernels for a 16-bit type computes in float32 and may never round between two
operators. Here every tensor of the 16-bit type becomes a float32 tensor that is rounded explicitly,

    x -> float32(low(x)),

a pair of Casts, with the overflow to infinity and the underflow of the type (float16 by IEEE 754:
65520 and more is infinite, below 2^-24 / 2 is zero). Operators compute in float32 and their results
are rounded once, as by matrix units with float32 accumulation.

The rewrite works on the finished graph, gradients included, so it is independent of the engine that
built them. Inputs and outputs of the graph keep their types. The outputs of operators that only
move or select elements are already rounded and are not rounded again.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, insert_after, replace_node
from ortboost.graph.query import is_read
from ortboost.transforms.precision.operators import complete_types

__all__ = ["emulate_precision"]

_FLOAT = ir.DataType.FLOAT
_EXACT = frozenset(
    "Abs Compress Concat DepthToSpace Expand Flatten Gather GatherElements "
    "GatherND Identity Max MaxPool Min Neg Relu ReluGrad Reshape Slice SpaceToDepth Split Squeeze "
    "Tile TopK Transpose Trilu Unsqueeze Where".split()
)
"""Operators whose output elements are copies or negatives of rounded inputs, or 0."""
_ROUND = "ortboost/precision/round"


def emulate_precision(model: ir.Model, low: ir.DataType, *, keep_names: bool = False) -> Report:
    """Replace a 16-bit type, FLOAT16 or BFLOAT16, by float32 with rounding, in place.

    The report has the nodes whose results are rounded. With ``keep_names``, every tensor of the
    model is kept: nodes that would be removed become Identities. The rewrite is idempotent.
    """
    report = Report("emulate_precision")
    complete_types(model)
    builder = Builder(model.graph, "ortboost/precision")
    for graph in model.graphs():
        for value in list(graph.initializers.values()):
            if value.dtype == low and value.const_value is not None:
                array = np.asarray(value.const_value.numpy()).astype(np.float32)
                value.const_value = ir.tensor(array, name=value.name)
                value.type = ir.TensorType(_FLOAT)
        for value in graph.inputs if graph is not model.graph else ():
            if value.dtype == low:  # of a loop body: what it is given is float32 now
                value.type = ir.TensorType(_FLOAT)
    # Record types before any change: the inputs of a node change before the node itself.
    low_values = {
        id(value)
        for node in model.graph.all_nodes()
        if not _rounds(node)
        for value in node.outputs
        if value.dtype == low
    }
    nodes = list(model.graph.all_nodes())
    # A cast of the low type to float32 has no effect once both are float32.
    upcasts = {id(node) for node in nodes if _is_upcast(node, low)}
    ends = [
        value.dtype == low and (node := value.producer()) is not None and not _rounds(node)
        for value in model.graph.outputs
    ]
    _upcast_inputs(model.graph, low, builder)
    for node in nodes:
        if id(node) in upcasts and keep_names:
            node.op_type = "Identity"
            node.attributes.clear()
        # Here a cast has nothing left to do.
        elif id(node) in upcasts:
            _drop_cast(node)
        else:
            _emulate_node(node, low, low_values, builder, report)
    _cast_outputs(model.graph, ends, low, builder)
    return report


def _upcast_inputs(graph: ir.Graph, low: ir.DataType, builder: Builder) -> None:
    """Keep the types of the inputs, whose values are already rounded, and cast them to float32."""
    for value in graph.inputs:
        readers = [usage for usage in value.uses() if not _rounds(usage.node)]
        if value.dtype != low or not readers:
            continue
        upcast = builder.cast(value, _FLOAT, _ROUND)
        for usage in readers:
            usage.node.replace_input_with(usage.idx, upcast)
        graph.insert_before(graph[0], builder.take())


def _cast_outputs(
    graph: ir.Graph, were_low: list[bool], low: ir.DataType, builder: Builder
) -> None:
    """Keep the types of the outputs by casting them back."""
    for index in (i for i, was in enumerate(were_low) if was):
        value = graph.outputs[index]
        name = value.name or ""
        value.name = builder.unique(f"{name}/fp32")
        rounded = builder.cast(value, low, _ROUND)
        builder.flush()
        graph.outputs[index] = rounded
        rounded.name = name


def _emulate_node(
    node: ir.Node, low: ir.DataType, low_values: set[int], builder: Builder, report: Report
) -> None:
    if _rounds(node):
        return
    _retype_attributes(node, low)
    if node.op_type == "Cast" and id(node.outputs[0]) in low_values:
        _emulate_cast(node, low, builder, report)
        return
    for value in node.outputs:
        if id(value) not in low_values:
            continue
        value.type = ir.TensorType(_FLOAT)
        if not is_read(value):
            continue  # also an omitted output
        if node.op_type in _EXACT and node.domain in ("", "ai.onnx", "com.microsoft"):
            continue
        report.changed[node.name or value.name or ""] = f"{node.op_type} in float32, rounded"
        insert_after(value, _rounded(value, low, builder), builder, suffix="exact")


def _is_upcast(node: ir.Node, low: ir.DataType) -> bool:
    """Whether a node casts from the low-precision type to float32."""
    value = node.inputs[0] if node.op_type == "Cast" and not _rounds(node) else None
    return value is not None and value.dtype == low and node.outputs[0].dtype == _FLOAT


def _drop_cast(node: ir.Node) -> None:
    """Remove a Cast back to float32, which has no effect any more."""
    source, output, graph = node.inputs[0], node.outputs[0], node.graph
    assert source is not None
    assert isinstance(graph, ir.Graph)
    # The output keeps its name, so what computes it takes the name over.
    if output.is_graph_output():
        if source.is_graph_output() or source.graph is not graph:
            return  # both names are visible outside the graph
        name, output.name = output.name, f"{output.name}/dropped"
        source.name = name
    ir.convenience.replace_all_uses_with(output, source, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _emulate_cast(node: ir.Node, low: ir.DataType, builder: Builder, report: Report) -> None:
    """Turn a Cast to the low-precision type into a rounding."""
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    report.changed[node.name or output.name or ""] = "rounds"
    if source.dtype == _FLOAT:  # a pair of Casts instead of the one
        replace_node(node, [_rounded(source, low, builder)], builder)
    else:  # from an integer or a wider float: round once, then cast back
        output.type = ir.TensorType(low)
        node.attributes["to"] = ir.AttrInt64("to", int(low))
        node.name = builder.unique(f"{_ROUND}/node")
        insert_after(output, builder.cast(output, _FLOAT, _ROUND), builder, suffix="exact")


def _rounds(node: ir.Node) -> bool:
    """Whether a node was added by this rewrite."""
    return (node.name or "").startswith(_ROUND)


def _rounded(value: ir.Value, low: ir.DataType, builder: Builder) -> ir.Value:
    """Round a value to the low-precision type with a pair of Casts."""
    return builder.cast(builder.cast(value, low, f"{_ROUND}/{value.name}"), _FLOAT, _ROUND)


def _retype_attributes(node: ir.Node, low: ir.DataType) -> None:
    """Change attributes that set the type of an output, as an enum value or as a tensor."""
    for attribute in list(node.attributes.values()):
        name = attribute.name
        if attribute.type == ir.AttributeType.INT and attribute.as_int() == int(low):
            if name in ("to", "dtype", "output_type", "output_dtype", "stash_type"):
                node.attributes[name] = ir.AttrInt64(name, int(_FLOAT))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == low:
            array = attribute.as_tensor().numpy().astype(np.float32)
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(array))
