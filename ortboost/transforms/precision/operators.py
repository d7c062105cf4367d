"""Operator types: the inputs and outputs of a node that become 16-bit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ortboost.graph.query import FLOAT_TYPES, find_schema, has_subgraph

__all__ = ["Form", "complete_types", "form_of"]

_FLOAT = ir.DataType.FLOAT
_TENSORS = {ir.DataType.FLOAT16: "tensor(float16)", ir.DataType.BFLOAT16: "tensor(bfloat16)"}
# Operators without a schema in onnx: all their float tensors have the same type.
_MICROSOFT = frozenset(
    "BiasGelu FastGelu FusedConv FusedGemm FusedMatMul Gelu MultiHeadAttention QuickGelu "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization".split()
)
# Operators with several type variables whose tensors are multiplied with each other.
_ONE_TYPE = frozenset({"Attention"})
_SCATTERS = ("ScatterElements", "ScatterND")
_TYPE_FROM_ATTRIBUTE = (
    *("Bernoulli", "Cast", "CastLike", "ConstantOfShape", "EyeLike"),
    *("RandomNormalLike", "RandomUniformLike"),
)
_NAMED = {
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(int64)": ir.DataType.INT64,
}


@dataclass(frozen=True)
class Form:
    """The float32 inputs and outputs of a node.

    Args:
        reads: Indices of the inputs that become low precision together.
        writes: Indices of the outputs that become low precision with them.
        fixed: Indices of the inputs that stay float32 in any case.
        reason: Why the node cannot be low precision; ``None`` if it can.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    fixed: tuple[int, ...]
    reason: str | None = None


def form_of(node: ir.Node, low: ir.DataType, opsets: Mapping[str, int]) -> Form:
    """The inputs and outputs of a node, with values of known types, that low precision changes."""
    reads = tuple(i for i, v in enumerate(node.inputs) if v is not None and v.dtype == _FLOAT)
    writes = tuple(i for i, v in enumerate(node.outputs) if v.dtype == _FLOAT)
    # Nodes whose types cannot be changed, or are not known.
    if has_subgraph(node):
        return Form((), (), reads, "control flow")
    if node.attributes.get_string("reduction", "none") != "none" and node.op_type in _SCATTERS:
        return Form((), (), reads, "the runtime supports 16-bit scatters only without a reduction")
    types = [v.type for v in (*node.inputs, *node.outputs) if v is not None and v.type is not None]
    if not all(isinstance(kind, ir.TensorType) for kind in types):
        return Form((), (), reads, "a sequence of tensors")
    unknown = [v.name for v in (*node.inputs, *node.outputs) if v and v.name and v.dtype is None]
    if unknown:
        return Form((), (), reads, f"the type of '{unknown[0]}' is unknown")
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain == "com.microsoft" and node.op_type in _MICROSOFT and low == ir.DataType.FLOAT16:
        return Form(reads, writes, ())
    schema = find_schema(node.op_type, opsets.get(domain, 1), domain)
    if schema is None:
        return Form((), (), reads, "its types are unknown")
    # By the schema: tensors of one type variable change together, if it allows the low type.
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    inputs = _type_variables(node.inputs, schema.inputs)
    outputs = _type_variables(node.outputs, schema.outputs)
    if not (reads or writes):
        return Form((), (), ())
    possible = [
        kind
        for kind in (*inputs.values(), *outputs.values())
        if _TENSORS[low] in allowed.get(kind, ())
    ]
    if node.op_type in _TYPE_FROM_ATTRIBUTE or not inputs:
        # The type of the output is set by an attribute, not by an input.
        possible = [] if writes else [kind for kind in inputs.values() if kind in possible]
        if not possible:
            return Form((), (), reads, "an attribute sets its type")
    if not possible:
        return Form((), (), reads, _too_new(node.op_type, domain, low, opsets))
    if node.op_type in _ONE_TYPE:
        return Form(reads, writes, ())
    # The type variable of the data; others are those of settings, such as the scales of a Resize.
    main = possible[0]
    return Form(
        tuple(i for i in reads if inputs[i] == main),
        tuple(i for i in writes if outputs[i] == main),
        tuple(i for i in reads if inputs[i] != main),
    )


def _type_variables(values: Sequence[ir.Value | None], formals: object) -> dict[int, str]:
    """Index of each float tensor to its type variable in the schema."""
    return {
        index: _formal(formals, index)
        for index, value in enumerate(values)
        if value is not None and value.dtype in FLOAT_TYPES
    }


def complete_types(model: ir.Model) -> None:
    """Infer the types of values without one, in place; the native engine leaves some out.

    The type follows from the inputs by the schema of the operator. onnxruntime's own operators,
    including gradients, have no schema here: their first output gets the type of their first float
    input.
    """
    for node in model.graph.all_nodes():
        for index, value in enumerate(node.outputs):
            if value.dtype is None:
                dtype = _output_type(node, index, model.opset_imports)
                if dtype is not None:
                    value.type = ir.TensorType(dtype)


def _output_type(node: ir.Node, index: int, opsets: Mapping[str, int]) -> ir.DataType | None:
    if node.op_type == "Cast":
        return ir.DataType(node.attributes.get_int("to", int(_FLOAT)))
    types = [None if value is None else value.dtype for value in node.inputs]
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = find_schema(node.op_type, opsets.get(domain, 1), domain)
    if schema is None:
        floats = [dtype for dtype in types if dtype in FLOAT_TYPES]
        # Further outputs are masks, statistics and lengths, of any type.
        known = domain == "com.microsoft" and index == 0
        return floats[0] if floats and known else None
    kind = _formal(schema.outputs, index)
    if kind in _NAMED:
        return _NAMED[kind]
    for place, dtype in enumerate(types):
        if dtype is not None and _formal(schema.inputs, place) == kind:
            return dtype
    # No typed input has this type variable, but it may allow one type only.
    for constraint in schema.type_constraints:
        if constraint.type_param_str == kind and len(constraint.allowed_type_strs) == 1:
            return _NAMED.get(constraint.allowed_type_strs[0])
    return None


def _formal(formals: object, index: int) -> str:
    """Type variable at an index; the last formal of a variadic operator repeats."""
    known = list(formals)  # type: ignore[call-overload]  # a sequence type of the C++ bindings
    return str(known[min(index, len(known) - 1)].type_str) if known else ""


def _too_new(op: str, domain: str, low: ir.DataType, opsets: Mapping[str, int]) -> str:
    """Explain that an operator lacks the type, and name the first opset that has it."""
    version = opsets.get(domain, 1)
    text = f"{op} has no {low.numpy().name} at opset {version}"
    last = version if domain else onnx.defs.onnx_opset_version()
    for later in range(version + 1, last + 1):
        schema = onnx.defs.get_schema(op, later)
        if any(_TENSORS[low] in c.allowed_type_strs for c in schema.type_constraints):
            return f"{text}; opset {later} has it"
    return text
