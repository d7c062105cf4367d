"""Operators that the installed onnx defines by others (Attention, RMSNormalization, ...)."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from ortboost.graph.query import find_schema, input_at, known_shape, label
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["expand_by_definition", "has_definition"]


def has_definition(op_type: str, opset: int) -> bool:
    """Whether a standard operator is defined by a function.

    Example:
        >>> has_definition("RMSNormalization", 23), has_definition("MatMul", 23)
        (True, False)
    """
    schema: Any = find_schema(op_type, opset)  # these attributes have no stubs
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def expand_by_definition(site: Site) -> list[ir.Value | None]:
    """A rule for :func:`ortboost.graph.rewriting.rewrite_nodes`: the nodes of the function body.

    Raises:
        Refusal: The element type of an input is unknown, or the definition has a subgraph.
    """
    node = site.node
    proto = _body(site)
    names = list(proto.output)[: len(node.outputs)]
    # The body lists outputs that the node omits, which none of its nodes computes.
    computed = {name for inner in proto.node for name in inner.output}
    del proto.output[:]
    proto.output.extend(name for name in names if name in computed)
    body = ir.serde.deserialize_function(proto)
    settings = {**_defaults(site), **node.attributes}
    values: dict[int, ir.Value | None] = {
        id(inner): input_at(node, place) for place, inner in enumerate(body.inputs)
    }
    for inner in body:
        if any(attribute.type == ir.AttributeType.GRAPH for attribute in inner.attributes.values()):
            raise Refusal(f"its definition has a subgraph ({label(inner)})")
        # An attribute may refer to one of the node, which is given there or has a default.
        attributes: dict[str, Any] = {}
        for name, attribute in inner.attributes.items():
            if not attribute.is_ref():
                attributes[name] = attribute
            elif attribute.ref_attr_name in settings:
                given = settings[attribute.ref_attr_name or ""]
                attributes[name] = ir.Attr(name, given.type, given.value)
        inputs = [None if value is None else values.get(id(value)) for value in inner.inputs]
        if inner.op_type == "Identity":  # would hide a constant length
            values[id(inner.outputs[0])] = inputs[0]
            continue
        made = site.builder.ops(
            inner.op_type, *inputs, names=[None] * len(inner.outputs), **attributes
        )
        for old, new in zip(inner.outputs, made, strict=True):
            new.type = None  # set by shape inference
            values[id(old)] = new
    found = {output.name: values[id(output)] for output in body.outputs}
    return [found.get(name) for name in names]


def _defaults(site: Site) -> dict[str, ir.Attr]:
    """The attributes of the operator that have a default; its function body does not list them."""
    schema = onnx.defs.get_schema(site.node.op_type, site.opset)
    given = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {
        name: ir.serde.deserialize_attribute(value) for name, value in given.items() if value.type
    }


def _body(site: Site) -> onnx.FunctionProto:
    node = site.node
    schema: Any = onnx.defs.get_schema(node.op_type, site.opset)  # its methods have no stubs
    proto = onnx.FunctionProto()
    on_types = schema.context_dependent_function_opset_versions
    versions = on_types or schema.function_opset_versions
    # The newest body that is not above the model's opset, or the oldest: the body of an operator
    # may be given for newer opsets only.
    version = max(v for v in versions if v <= max(site.opset, min(versions)))
    if on_types:
        types = [_type(value) for value in node.inputs]
        data = schema.get_context_dependent_function_with_opset_version(
            version, ir.serde.serialize_node(node).SerializeToString(), types
        )
    else:
        data = schema.get_function_with_opset_version(version)
    proto.ParseFromString(data)
    return proto


def _type(value: ir.Value | None) -> bytes:
    found = onnx.TypeProto()
    if value is not None:
        if value.dtype is None:
            raise Refusal(f"the element type of '{value.name}' is unknown")
        shape = known_shape(value)
        dims = None if shape is None else list(shape)
        found = onnx.helper.make_tensor_type_proto(int(value.dtype), dims)
    return bytes(found.SerializeToString())
