"""The model that ONNX's shape inference reads, and the transfer of what it finds."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
from onnx_ir import serde

from ortboost.graph.query import FLOAT_TYPES, input_at, is_standard, known_shape, subgraphs
from ortboost.graph.structure import walk

__all__ = ["SMALL", "describe_model", "describe_value", "take_over", "take_type"]

SMALL = 1000
"""Bytes of weights whose values inference may need: sizes, axes."""
# Definitions for ONNX's inference, which has no schemas of com.microsoft.
_ELEMENTWISE = {
    "BiasGelu": "y = Add(x, bias)",
    **dict.fromkeys(("FastGelu", "Gelu", "QuickGelu"), "y = Identity(x)"),
}
_CAST_LIKE = 15  # the first opset with this operator


def describe_model(model: ir.Model) -> onnx.ModelProto:
    """Serialize the graph with weights as inputs; only small weights keep their values."""
    graph, proto = model.graph, onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        serde.serialize_function_into(proto.functions.add(), function)
    if "com.microsoft" in model.opset_imports and not model.functions:
        proto.functions.extend(_elementwise())
    given = {value.name for value in graph.inputs}  # old files list their weights there, too
    for value in graph.inputs:
        describe_value(proto.graph.input.add(), value)
    for value in graph.initializers.values():
        tensor = value.const_value
        # onnxruntime.transformers transposes weights and leaves the shapes that torch noted.
        if tensor is not None and known_shape(value) != (shape := tuple(tensor.shape.numpy())):
            value.shape = ir.Shape(shape)
        if tensor is not None and value.dtype is None:
            value.dtype = tensor.dtype
        if value.name not in given:
            describe_value(proto.graph.input.add(), value)
        if tensor is not None and tensor.nbytes <= SMALL:
            tensor.name = value.name  # the serializer writes the tensor's own name
            serde.serialize_tensor_into(proto.graph.initializer.add(), tensor)
    examples: set[int] = set()
    for node in graph:
        made = proto.graph.node.add()
        serde.serialize_node_into(made, node)
        if _casts_floats(node) and model.opset_imports.get("", 0) >= _CAST_LIKE:
            examples.add(_cast_by_example(made))
        for value in node.outputs:
            if value.name and value.type is not None and not value.is_graph_output():
                describe_value(proto.graph.value_info.add(), value)
    for value in graph.outputs:
        describe_value(proto.graph.output.add(), value)
    for dtype in examples:
        info = onnx.helper.make_tensor_value_info(_example(dtype), dtype, [])
        proto.graph.input.append(info)
    return proto


def _casts_floats(node: ir.Node) -> bool:
    x = input_at(node, 0) if is_standard(node, "Cast") else None
    # As a number: in a damaged file it may not be a valid type.
    floats = x is not None and x.dtype in FLOAT_TYPES
    return floats and node.attributes.get_int("to", 1) in FLOAT_TYPES


def _cast_by_example(node: onnx.NodeProto) -> int:
    """Make a Cast a CastLike, whose value onnx does not propagate; returns the type.

    From the length of a vector alone, it would propagate a placeholder for each element: for the
    gradient of a max pooling, 25 million of them, which takes seconds and gigabytes.
    """
    to = int(next(attribute.i for attribute in node.attribute if attribute.name == "to"))
    node.op_type = "CastLike"
    node.input.append(_example(to))
    del node.attribute[:]
    return to


def _example(dtype: int) -> str:
    return f"ortboost/example/{dtype}"


@functools.cache
def _elementwise() -> tuple[onnx.FunctionProto, ...]:
    """Operators of com.microsoft as functions with the shape of their result."""
    header = '<domain: "com.microsoft", opset_import: ["" : 18]>'
    return tuple(
        onnx.parser.parse_function(f"{header} {name} (x, bias) => (y) {{ {body} }}")
        for name, body in _ELEMENTWISE.items()
    )


def describe_value(info: onnx.ValueInfoProto, value: ir.Value) -> None:
    """Name, type and shape of a value."""
    if not isinstance(value.type, ir.TensorType):
        serde.serialize_value_into(info, value)
        return
    info.name = value.name or ""
    info.type.tensor_type.elem_type = value.type.dtype.value
    if value.shape is None:
        return
    shape = info.type.tensor_type.shape
    shape.SetInParent()  # a scalar has a shape without dimensions, not no shape
    for dim in known_shape(value) or ():
        made = shape.dim.add()
        if isinstance(dim, int):
            made.dim_value = dim
        elif dim is not None:
            made.dim_param = dim


def take_over(graph: ir.Graph, found: onnx.GraphProto) -> None:
    """Copy the inferred shapes and types of tensors, including those in subgraphs."""
    infos = {info.name: info for info in (*found.input, *found.value_info, *found.output)}
    values = [*graph.inputs, *graph.initializers.values()]
    # Inference keeps the nodes and their order.
    for node, made in zip(graph, found.node, strict=True):
        values += node.outputs
        for inner, described in zip(subgraphs(node), walk.subgraphs(made), strict=True):
            take_over(inner, described)
    for value in values:
        info = infos.get(value.name or "")
        if info is not None:
            take_type(value, info.type)


def take_type(value: ir.Value, found: onnx.TypeProto) -> None:
    """Copy the inferred shape and type of a tensor."""
    if not found.HasField("tensor_type"):
        return
    tensor = found.tensor_type
    if tensor.elem_type and tensor.elem_type != value.dtype:
        value.type = ir.TensorType(ir.DataType(tensor.elem_type))  # clones share the old one
    if tensor.HasField("shape"):
        dims = tuple(_dim(dim) for dim in tensor.shape.dim)
        if dims != known_shape(value):
            value.shape = ir.Shape(dims)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    kind = dim.WhichOneof("value")
    return None if kind is None else getattr(dim, kind)
