"""Element types that TensorRT lacks or casts, and values that half precision cannot represent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.deploy.findings import Finding, error, info, warn
from ortboost.deploy.rewrites.clamp_infinite import FP16_MAX
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import all_tensors

__all__ = ["TENSORRT_TYPES"]

TENSORRT_TYPES: Final = {
    ir.DataType.FLOAT: "FP32",
    ir.DataType.FLOAT16: "FP16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.INT32: "INT32",
    ir.DataType.INT64: "INT64",
    ir.DataType.INT8: "INT8",
    ir.DataType.UINT8: "UINT8",
    ir.DataType.BOOL: "BOOL",
    ir.DataType.INT4: "INT4",
    ir.DataType.FLOAT8E4M3FN: "FP8",
    ir.DataType.FLOAT4E2M1: "FP4",
}
"""ONNX element types to TensorRT's names; DOUBLE is cast, all others are rejected."""

_CASTED: Final = ir.DataType.DOUBLE
# Operators that really lack integer kernels.
_EXACT: Final = (
    *("Conv", "ConvTranspose", "DequantizeLinear", "Einsum", "Gemm", "MatMul", "QuantizeLinear"),
)
_ANY_TYPE: Final = ("Cast", "CastLike", "If", "Loop", "Scan")
# Operators that may overflow or lose precision in float16.
_FRAGILE: Final = (
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("LpNormalization", "Softmax", "LogSoftmax", "Exp", "Pow", "ReduceSum", "ReduceMean"),
    *("ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"),
)


@rule("TRT030", "DOUBLE tensors")
def doubles(context: Context) -> Iterator[Finding]:
    """TensorRT casts them to FLOAT and clamps."""
    seen: set[str] = set()
    for value, what in _values(context):
        if value.dtype == _CASTED and value.name not in seen:
            seen.add(value.name or "")
            yield warn(
                (value.name or "?", what),
                "It is DOUBLE, which TensorRT casts to FLOAT and clamps.",
                "Make it FLOAT: ortboost check --fix does.",
                fixable=True,
            )


@rule("TRT031", "UINT8 inside the graph")
def bytes_inside(context: Context) -> Iterator[Finding]:
    """UINT8 is supported only for inputs and outputs, next to a Cast."""
    for node in context.standard():
        if node.op_type in _ANY_TYPE:
            continue
        values = (*node.inputs, *node.outputs)
        used = [v for v in values if v is not None and v.dtype == ir.DataType.UINT8]
        if used:
            quantized = node.op_type in ("QuantizeLinear", "DequantizeLinear")
            yield error(
                node,
                f"'{used[0].name}' is UINT8, which is for inputs and outputs only.",
                "Quantize to INT8, symmetrically: ortboost export --precision int8 --target "
                "tensorrt."
                if quantized
                else "Cast to FLOAT or INT32 right after the input.",
            )


@rule("TRT032", "types that TensorRT does not have")
def foreign_types(context: Context) -> Iterator[Finding]:
    """Strings, sequences, optionals, complex numbers, small unsigned integers."""
    seen: set[str] = set()
    for value, what in _values(context):
        name = value.name or "?"
        kind = ""
        if isinstance(value.type, ir.SequenceType):
            kind = "a sequence"
        elif isinstance(value.type, ir.OptionalType):
            kind = "an optional"
        elif value.dtype not in (None, _CASTED, *TENSORRT_TYPES):
            kind = str(value.dtype)
        if kind and name not in seen:
            seen.add(name)
            yield error(
                (name, what),
                f"It is {kind}, which TensorRT does not have.",
                "Use tensors of FLOAT, FLOAT16, BFLOAT16, INT32, INT64 or BOOL; keep the rest "
                "outside.",
            )


@rule("TRT033", "INT64 at the edge")
def wide_bindings(context: Context) -> Iterator[Finding]:
    """From TensorRT 9 on, such an input is bound as 64-bit integers."""
    for value in (*context.inputs, *context.model.graph.outputs):
        if value.dtype == ir.DataType.INT64:
            what = "input" if value in context.inputs else "output"
            yield info(
                (value.name or "?", what),
                "It is INT64: the engine needs a buffer of 64-bit integers (before TensorRT 9: "
                "32).",
                "Check the code that feeds the engine.",
            )


@rule("TRT034", "element types that an operator does not support")
def operator_types(context: Context) -> Iterator[Finding]:
    """The first input's type is not in the operator's list."""
    for node, known in context.known():
        if not known.types or node.op_type in _ANY_TYPE:
            continue
        value = next((v for v in node.inputs if v is not None), None)
        if value is None or value.dtype is None or context.constness(value) == "folds":
            continue
        name = TENSORRT_TYPES.get(value.dtype)
        if name is None or name == "UINT8" or name in known.types:  # these have separate rules
            continue
        whole = name in ("INT32", "INT64", "BOOL") and node.op_type not in _EXACT
        found = warn if whole else error  # for integers the table is known to be outdated
        yield found(
            node,
            f"'{value.name}' is {name}, but the operator supports {', '.join(known.types)}.",
            "Leave biases in FLOAT: ortboost export --precision int8 --target tensorrt does."
            if node.op_type == "DequantizeLinear"
            else "Insert a Cast before and after.",
        )


@rule("TRT035", "two types at one operator")
def mixed_types(context: Context) -> Iterator[Finding]:
    """A strongly typed network does not insert casts."""
    for node in context.standard():
        schema = context.schema(node)
        if schema is None or not schema.inputs:
            continue
        types: dict[str, dict[ir.DataType, str]] = {}
        for position, value in enumerate(node.inputs):
            if value is None or value.dtype is None:
                continue
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            # Only operands of one type variable must agree: not fixed types, "tensor(int64)", nor
            # lists of any types, such as the inputs of a Loop.
            mixed = formal.option == formal.option.Variadic and not formal.is_homogeneous
            if "(" in formal.type_str or mixed:
                continue
            types.setdefault(formal.type_str, {}).setdefault(value.dtype, value.name or "?")
        for found in types.values():
            if len(found) > 1:
                names = ", ".join(f"'{name}' {dtype}" for dtype, name in found.items())
                yield error(
                    node,
                    f"Its inputs must have one type, but have several: {names}.",
                    "Insert an explicit Cast.",
                )


@rule("TRT036", "infinities and values beyond float16")
def ranges(context: Context) -> Iterator[Finding]:
    """Masks of ``-inf`` or ``-1e12`` become NaN or -inf in half precision."""
    for value, tensor in all_tensors(context.model):
        short = not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16
        numbers = None if short else context.array(value)
        if numbers is None or not numbers.size:
            continue
        if np.isnan(numbers).any():
            yield warn(value, "It contains NaN.", "Check how it was trained.")
        infinite = int(np.isinf(numbers).sum())
        if infinite:
            yield warn(
                value,
                f"It contains {infinite} infinite values: inf - inf and 0 * inf are NaN.",
                "Use -65504 in masks: ortboost check --fix does.",
                fixable=True,
            )
        finite = np.abs(numbers[np.isfinite(numbers)])
        if value.dtype == ir.DataType.FLOAT16:
            small = (finite > 0) & (finite < 2.0**-14)
            if small.any() and small.sum() * 2 > finite.size:
                yield warn(
                    value,
                    "More than half of it is subnormal in float16: precision is lost.",
                    "Keep this tensor and its operator in FLOAT.",
                )
        elif value.dtype != ir.DataType.BFLOAT16 and finite.size and finite.max() > FP16_MAX:
            yield info(
                value,
                f"Its largest value, {finite.max():.3g}, does not fit in float16.",
                "Keep its operator in FLOAT if the rest goes to float16.",
            )


@rule("TRT037", "operators that lose precision in float16")
def fragile(context: Context) -> Iterator[Finding]:
    """Normalizations, softmax, exp, pow and sums in half precision."""
    for node in context.standard(*_FRAGILE):
        first = next((value for value in node.inputs if value is not None), None)
        if first is None or first.dtype != ir.DataType.FLOAT16:
            continue
        yield warn(
            node,
            "It runs in float16, where it may overflow or lose precision.",
            "Keep it in FLOAT with casts around it: ortboost export --precision fp16 does.",
        )


def _values(context: Context) -> Iterator[tuple[ir.Value, str]]:
    for value in context.model.graph.inputs:
        yield value, "input"
    for value, _ in all_tensors(context.model):
        yield value, "tensor"
    for node in context.nodes:
        for output in node.outputs:
            yield output, node.op_type
