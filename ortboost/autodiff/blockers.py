"""Obstacles to training that no rewrite removes: types, rules, quantization, wrong exports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.engine import Engine
from ortboost.autodiff.portable.registry import has_own_rule
from ortboost.graph.query import (
    FLOAT_TYPES,
    find_schema,
    input_at,
    is_standard,
    label,
    source_before,
    subgraphs,
)
from ortboost.graph.reach import Reach, ancestors, uses_inside, values_by_name
from ortboost.graph.weights.fake_quantization import is_fake_quantizer

__all__ = ["Blocker", "ignored_rules", "quantizers_between", "standing_blockers"]

_ORT = "com.microsoft"
_QUANTIZERS = ("DynamicQuantizeLinear", "QuantizeLinear")
_QUANTIZED = ("DequantizeLinear", "Integer", "QLinear", "NBits")
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
# Operators of a call in torch, an argument that they have none for, its name, and what to do.
_DROPPED = (
    # cross_entropy_loss(scores, labels, weight, reduction, ignore_index, label_smoothing)
    (
        _LOSSES,
        re.compile(
            r"aten\.cross_entropy_loss\.default\]\(args = \((?:[^,()]+, ){5}(?!0\.0\))([\d.e-]+)\)"
        ),
        "label_smoothing of",
        "Write it out in the model, with log_softmax.",
    ),
    # avg_pool2d(data, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
    (
        ("AveragePool",),
        re.compile(r"aten\.avg_pool[23]d\.default\]\(args = \(.*, (\d+)\)"),
        "divisor_override of",
        "Leave it out in the model, and multiply the averages.",
    ),
    # scatter_reduce(data, dim, index, source, reduce)
    (
        ("ScatterElements",),
        re.compile(r"aten\.scatter_reduce\.two\]\(args = \(.*, (mean)\)"),
        "reduction, the",
        "Write it out in the model: scatter_add of the values, divided by scatter_add of ones.",
    ),
)
_SHORT = (
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT4,
    ir.DataType.UINT4,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E5M2,
)


# Between an integer weight and its DequantizeLinear; Brevitas clips it to a symmetric range.
_INTEGER_STEPS = ("Clip", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class Blocker:
    """One obstacle to training.

    Args:
        node: Name of the node or tensor.
        op: Operator, or ``tensor``, ``input``, ``model``.
        reason: Why it prevents training.
        fix: What the user can do about it.
    """

    node: str
    op: str
    reason: str
    fix: str


def standing_blockers(
    model: ir.Model, wrt: Sequence[str], targets: Sequence[str], *, selected: bool = False
) -> list[Blocker]:
    """What stands in the way of training the parameters ``wrt``, whatever is rewritten.

    The loss is computed from the outputs ``targets``. If the user ``selected`` the parameters,
    quantized weights may stay frozen.
    """
    found = [
        *_about_tensors(model, wrt),
        *_about_quantization(model, frozen=selected),
        *quantizers_between(model, wrt, targets),
        *_wrong_exports(model),
    ]
    known = {blocker.node for blocker in found}  # with a better reason
    found += [blocker for blocker in _wrong_types(model, targets) if blocker.node not in known]
    return found


def _about_tensors(model: ir.Model, wrt: Sequence[str]) -> Iterator[Blocker]:
    values = values_by_name(model.graph)
    for name in wrt:
        value = values.get(name)
        if value is None:
            yield Blocker(name, "tensor", "the model has no such tensor", "Check the name.")
        elif value.dtype is not None and value.dtype not in FLOAT_TYPES:
            yield Blocker(
                name,
                "tensor",
                f"its type {value.dtype} has no gradient",
                "Freeze it, or start from the float model.",
            )
        elif value.dtype not in (None, ir.DataType.FLOAT):
            yield Blocker(
                name,
                "tensor",
                f"parameters of type {value.dtype} cannot be trained, only float32 can",
                "Export the model in float32 (a mixed-precision step keeps float32 parameters, "
                "too), or freeze it.",
            )
        elif value.const_value is not None and not np.isfinite(
            np.sum(value.const_value.numpy(), dtype=np.float64)  # no array of its size is made
        ):
            yield Blocker(
                name,
                "tensor",
                "it has values that are NaN or infinite: every step would overflow",
                "Export the model again, with finite weights, or freeze it.",
            )
    for value in model.graph.inputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            yield Blocker(
                value.name or "",
                "input",
                "sequences, optional values and sparse tensors cannot be inputs of a training step",
                "Export the model with one tensor for each of them.",
            )
        elif value.dtype == ir.DataType.STRING:
            yield Blocker(
                value.name or "",
                "tensor",
                "string tensors cannot be part of a training step",
                "Remove the text processing from the model and feed numbers.",
            )


def _wrong_types(model: ir.Model, targets: Sequence[str]) -> Iterator[Blocker]:
    """Inputs of a type that the operator does not take, as of `torch.log(torch.tensor(3))`.

    Alone, or with its other inputs, as of a `torch.stack` of floats and integers.
    """
    values = values_by_name(model.graph)
    before_loss = ancestors(values.get(name) for name in targets)
    outer = [node for node in model.graph if node in before_loss]
    inner = [node for holder in outer for body in subgraphs(holder) for node in body.all_nodes()]
    for node in filter(is_standard, (*outer, *inner)):
        schema = find_schema(node.op_type, model.opset_imports.get("", 0))
        if schema is None or not schema.inputs:
            continue
        bound: dict[str, tuple[str, str]] = {}  # type variable to the type and name of an input
        for index, value in enumerate(node.inputs):
            if value is None or not isinstance(value.type, ir.TensorType):
                continue
            kind = value.type.dtype.name.lower()
            if kind == "undefined":
                continue
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]  # the last may repeat
            taken = formal.types
            if f"tensor({kind})" not in taken:
                usual = next((k for k in ("float", "int64") if f"tensor({k})" in taken), "")
                yield Blocker(
                    label(node),
                    node.op_type,
                    f"'{value.name}' is {kind}, which {node.op_type} does not take",
                    f"Convert it in the model, before this operator{usual and f', to {usual}'}.",
                )
                continue
            other, name = bound.setdefault(formal.type_str, (kind, value.name or ""))
            if other != kind and formal.is_homogeneous:
                yield Blocker(
                    label(node),
                    node.op_type,
                    f"'{name}' is {other}, but '{value.name}' is {kind}",
                    f"Convert both to one type in the model, before {node.op_type}.",
                )
                break


def _about_quantization(model: ir.Model, *, frozen: bool) -> Iterator[Blocker]:
    """Layers with weights stored as integers, which have no gradient.

    Where they are frozen on purpose, DequantizeLinear is a computation of constants.
    """
    for node in model.graph:
        if frozen and is_standard(node, "DequantizeLinear"):
            continue
        quantized = node.domain == _ORT or any(word in node.op_type for word in _QUANTIZED)
        # The other inputs of DequantizeLinear are scales and zero points.
        inputs = node.inputs[:1] if node.op_type == "DequantizeLinear" else node.inputs
        for read in inputs if quantized else ():
            value = source_before(read, *_INTEGER_STEPS)
            tensor = None if value is None else value.const_value
            if value is None or tensor is None or value.dtype not in _SHORT or tensor.size <= 1:
                continue
            yield Blocker(
                label(node),
                node.op_type,
                f"the weight '{value.name}' is quantized",
                "Start from the float model, and quantize after training; or keep the weight as it "
                "is, and train adapters (--boost lora) or select parameters with --trainable.",
            )
            break  # one blocker for each node


def ignored_rules(reached: Reach, engine: Engine) -> list[Blocker]:
    """Operators for which the user registered a rule that only the portable engine uses."""
    own = [n for n in reached.nodes if has_own_rule(n.domain, n.op_type)]
    reason = f"the {engine.name} engine ignores the gradient rule registered for it"
    fix = "Use --engine portable."
    return [Blocker(label(n), n.op_type, reason, fix) for n in own if engine.name != "portable"]


def quantizers_between(
    model: ir.Model, wrt: Sequence[str], targets: Sequence[str]
) -> Iterator[Blocker]:
    """QuantizeLinear between parameters and loss that is not followed only by its inverse.

    No gradient passes an integer. Without this check, what comes before would not be trained, and
    the rest would be.
    """
    if not any(is_standard(node, *_QUANTIZERS) for node in model.graph):
        return
    values = values_by_name(model.graph)
    before_loss = ancestors(values.get(name) for name in targets)
    # Not by reach(), which stops at integers: here, what depends on a parameter at all.
    moved = set(wrt)
    for node in model.graph:
        names = {value.name for value in (*node.inputs, *uses_inside(node)) if value is not None}
        if node not in before_loss or not names & moved:
            continue
        moved.update(output.name for output in node.outputs if output.name)
        if is_standard(node, *_QUANTIZERS) and not is_fake_quantizer(node):
            fix = "Start from the float model; quantize after training."
            yield Blocker(label(node), node.op_type, "no gradient passes quantized values", fix)


def _wrong_exports(model: ir.Model) -> Iterator[Blocker]:
    """Nodes without a setting that torch's exporters (2.14) drop because ONNX lacks it."""
    reported: set[str] = set()  # one call may become several nodes
    for node in model.graph:
        labels = input_at(node, 1) if is_standard(node, *_LOSSES) else None
        if labels is not None and labels.dtype in FLOAT_TYPES:
            reason = "its labels are probabilities; in ONNX they are class indices"
            fix = "Write it out in the model: -(labels * log_softmax(scores, 1)).sum(1).mean()."
            yield Blocker(label(node), node.op_type, reason, fix)
            continue
        call = node.metadata_props.get("pkg.torch.onnx.fx_node", "")
        for operators, argument, name, fix in _DROPPED if call not in reported else ():
            found = argument.search(call) if is_standard(node, *operators) else None
            if found is not None:
                reported.add(call)
                reason = f"the exporter dropped its {name} {found[1]}"
                yield Blocker(label(node), node.op_type, reason, fix)
