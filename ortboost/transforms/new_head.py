"""Replace the last fully connected layer or convolution by one with another number of outputs.

For fine-tuning: the backbone keeps its weights, the head is reinitialized. Weight and bias are
drawn uniformly from `[-1/sqrt(fan_in), 1/sqrt(fan_in)]` with a seed, as PyTorch initializes a
`Linear` (`torch.nn.Linear` documentation, section Variables).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import ModelError, UsageError
from ortboost.core.limits import LIMITS_VARIABLE, Limits
from ortboost.core.report import Report
from ortboost.graph.query import (
    constant,
    input_at,
    is_standard,
    known_shape,
    producer_of,
    static_shape,
)
from ortboost.graph.reach import descendants
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name

__all__ = ["PASS_THROUGH", "DenseLayer", "find_head", "new_head"]

PASS_THROUGH = {"Identity", "Softmax", "LogSoftmax", "Sigmoid", "Cast", "Reshape", "Flatten"}
"""Operators between the last layer and an output."""
_MOVING = ("Flatten", "Reshape", "Resize", "Transpose")
"""Operators that may mix the channels of a convolution with other axes."""


@dataclass(frozen=True)
class DenseLayer:
    """A fully connected layer in a graph, or a convolution.

    Args:
        node: The Gemm, MatMul or Conv.
        weight: Its weight initializer.
        bias: Its bias initializer, if it has one.
        out_axis: Output axis of the weight (0 for torch's ``[out, in]``).
        axis: Axis of the outputs in the layer's result, 1 for a convolution and else -1.
    """

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    out_axis: int
    axis: int = -1


def find_head(
    model: ir.Model, output: str | None = None, *, convolutions: bool = False
) -> DenseLayer:
    """Find the fully connected layer that computes an output, by default the first, of a model.

    With ``convolutions``, it may be a convolution, as in segmentation.

    Raises:
        UsageError: The output does not exist.
        ModelError: No such layer was found before the output.
    """
    outputs = [v for v in model.graph.outputs if output is None or v.name == output]
    if not outputs:
        raise UsageError(
            f"The model has no output '{output}'.",
            where=source_name(model),
            fix=f"Outputs: {', '.join(v.name or '' for v in model.graph.outputs)}.",
        )
    value: ir.Value | None = outputs[0]
    bias: ir.Value | None = None  # the stored operand of an Add after the product
    while (node := producer_of(value)) is not None:
        if node.op_type == "Gemm" and (weight := _matrix(node.inputs[1])):
            out_axis = 0 if node.attributes.get_int("transB", 0) else 1
            own = input_at(node, 2)
            # A computed third operand is not a bias; the Gemm may have both its own and an Add's.
            if own is None or own.is_initializer():
                return DenseLayer(node, weight, own or bias, out_axis)
        if node.op_type == "MatMul":
            if weight := _matrix(node.inputs[1]):
                return DenseLayer(node, weight, bias, 1)
            transpose = producer_of(node.inputs[1], "Transpose")
            if transpose is not None and (weight := _matrix(transpose.inputs[0])):
                return DenseLayer(node, weight, bias, 0)
        if convolutions and bias is None and (convolution := _convolution(node)):
            return convolution
        # The Add before the product in this search is the bias; a second one ends it.
        if node.op_type == "Add" and bias is None:
            stored = [index for index in (0, 1) if _initializer(node.inputs[index])]
            if not stored:
                break
            bias, value = node.inputs[stored[0]], node.inputs[1 - stored[0]]
            if bias is not None and static_shape(bias) == ():
                bias = None  # a number that is added to all outputs
            continue
        if node.op_type not in PASS_THROUGH:
            break
        convolutions &= node.op_type not in ("Reshape", "Flatten")  # they move the channels
        value = node.inputs[0]
    raise ModelError(
        "No fully connected layer was found at the end of the model.",
        where=f"{source_name(model)}: output '{outputs[0].name}'",
        fix="Name the output of the classifier with --output, or train the head you have.",
    )


def new_head(model: ir.Model, size: int, *, seed: int = 0, output: str | None = None) -> Report:
    """Give the last layer ``size`` outputs and new random weights, in place.

    It is the fully connected layer or convolution of the first output of the normalized model,
    unless another one is named.

    Raises:
        UsageError: ``size`` is not positive or too large, or the output does not exist.
        ModelError: No such layer was found, its weight is shared with another node, or a Reshape
            after it has a fixed number of outputs, or may move the channels of a convolution.
    """
    if size < 1:
        raise UsageError(
            f"A head cannot have {size} outputs.",
            where="--new-head",
            fix="Give the number of classes, 1 or more.",
        )
    head = find_head(model, output, convolutions=True)
    shared = [v for v in (head.weight, head.bias) if v is not None and len(v.uses()) > 1]
    if shared:
        raise ModelError(
            f"The head cannot be replaced: '{shared[0].name}' is also used by other nodes.",
            where=f"{source_name(model)}: node '{head.node.name}'",
            fix="Untie the weights before the export.",
        )
    _check_readers(model, head, size)
    # Draw new values for weight and bias.
    old_shape = static_shape(head.weight) or (0, 0)
    fan_in = math.prod(old_shape) // max(1, old_shape[head.out_axis])
    new_shape = tuple(size if i == head.out_axis else n for i, n in enumerate(old_shape))
    size_in_bytes, limit = 4 * size * fan_in, Limits.from_environment().tensor_bytes
    if size_in_bytes > limit:
        raise UsageError(
            f"A head with {size:,} outputs needs {size_in_bytes:,} bytes.",
            where=f"{source_name(model)}: --new-head {size}, '{head.weight.name}' has {fan_in:,} "
            "inputs",
            fix="Give the number of classes of the data; if that is intended, set "
            f"{LIMITS_VARIABLE}=tensor_bytes={size_in_bytes}.",
        )
    generator = np.random.default_rng(seed)
    bound = 1.0 / np.sqrt(fan_in)
    report = Report("new_head")
    for value, shape in ((head.weight, new_shape), (head.bias, (size,))):
        if value is None or value.const_value is None:
            continue
        old = value.const_value.numpy()
        drawn = generator.uniform(-bound, bound, shape).astype(old.dtype)
        report.changed[value.name or ""] = f"{old.shape} -> {shape}, new values"
        value.const_value = ir.tensor(drawn, name=value.name)
        value.shape = ir.Shape(shape)
    _forget_shapes_after(model.graph, head)  # inference keeps shapes that it finds
    infer_shapes(model)
    return report


def _check_readers(model: ir.Model, head: DenseLayer, size: int) -> None:
    """Refuse nodes after the head that do not take another number of outputs."""
    for node in descendants(model.graph, head.node.outputs):
        if head.axis == 1 and node.op_type in _MOVING:
            raise ModelError(
                f"The head cannot be replaced: the channels of this convolution are read by a "
                f"{node.op_type}, which may be for their number only.",
                where=f"{source_name(model)}: node '{node.name}'",
                fix="Export the model without this node.",
            )
        sizes = constant(input_at(node, 1)) if is_standard(node, "Reshape") else None
        if sizes is not None and any(n not in (-1, 0, size) for n in sizes[head.axis :][:1]):
            raise ModelError(
                f"The head cannot be replaced: a Reshape after it is to {sizes.tolist()}.",
                where=f"{source_name(model)}: node '{node.name}'",
                fix="Export the model without it, or with -1 for the number of outputs.",
            )
        for value in node.inputs if node.op_type == "Add" else ():
            if value is None or not value.is_initializer() or static_shape(value) == ():
                continue
            if value is not head.bias:
                raise ModelError(
                    f"The head cannot be replaced: '{value.name}' is added to its outputs, too.",
                    where=f"{source_name(model)}: node '{node.name}'",
                    fix="Export the model with one bias for its last layer.",
                )


def _forget_shapes_after(graph: ir.Graph, head: DenseLayer) -> None:
    """Clear the shapes after a layer, to be inferred again; graph outputs keep their rank."""
    nodes = {head.node, *descendants(graph, head.node.outputs)}
    for output in (o for node in nodes for o in node.outputs):
        shape = known_shape(output)
        kept = shape and output.is_graph_output()
        output.shape = ir.Shape(shape) if shape and kept else None
        if output.shape:
            output.shape[head.axis if len(shape or ()) > 1 else -1] = None


def _convolution(node: ir.Node) -> DenseLayer | None:
    """The layer of a Conv with stored weights and without groups."""
    if node.op_type != "Conv" or node.attributes.get_int("group", 1) != 1:
        return None
    weight, bias = _initializer(node.inputs[1]), input_at(node, 2)
    computed = bias is not None and not bias.is_initializer()
    return None if weight is None or computed else DenseLayer(node, weight, bias, 0, 1)


def _initializer(value: ir.Value | None) -> ir.Value | None:
    return value if value is not None and value.is_initializer() else None


def _matrix(value: ir.Value | None) -> ir.Value | None:
    """A stored matrix; a stack of matrices is not a head."""
    stored = _initializer(value)
    return stored if stored is not None and len(static_shape(stored) or ()) == 2 else None
