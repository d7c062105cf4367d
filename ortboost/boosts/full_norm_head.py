r"""The full-normalization head: a last layer that computes scaled cosine similarities.

    y_ij = m <n(x_i), n(w_j)>,    n(v) = v / sqrt(max(sum v^2, 1e-4))

The rows of input and weight are normalized to length 1, so each output is the cosine of the angle
between a feature vector and a class vector, times a trained scalar `m` initialized to 1. The old
weight is kept and trained further; the old bias is dropped. The head complements LessBN: with fewer
normalizations before it, nothing else controls the length of the features.

The clamp is part of the graph (`Max`), so the gradient is exact: for rows with `|v|^2 < 1e-4`, `n`
is `100 v` with the derivative 100. MindSpore clamps the norm itself in the backward pass, which
makes the gradient of such rows up to 100 times larger; above the clamp both are equal. Zero rows
give zeros.

Source: MindSpore Boost, ``LessBN(network, fn_flag=True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Stage
from ortboost.boosts.grad_centralization import HEAD_MARK
from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.patterns import Op, match
from ortboost.graph.query import (
    ROLE_MARK,
    constant,
    is_read,
    known_shape,
    producer_of,
    scalar,
    source_before,
    static_shape,
)
from ortboost.graph.rewriting import remove_unused
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name
from ortboost.transforms.new_head import PASS_THROUGH, DenseLayer, find_head

__all__ = ["EPSILON", "FoundHead", "FullNormHead", "find_full_norm", "full_norm", "read_full_norm"]

EPSILON = 1e-4
"""Lower bound of the squared length of a row."""
_SQUARES: Final = Op("ReduceSum", Op("Mul", "v", "v"), "axes")
_NORMALIZED: Final = Op("Div", "v", Op("Sqrt", Op("Max", _SQUARES, "eps")))


@dataclass(frozen=True)
class FullNormHead(Boost):
    """Convert the last layer to a full-normalization head.

    Args:
        if_present: Leave a model unchanged, with a note, if no layer can be converted. The levels
            do so, as MindSpore does; a boost requested by its own name raises an error.

    Example:
        >>> import ortboost as ob
        >>> config = ob.ProgramConfig(boosts=(FullNormHead(),))
        >>> program = ob.build_program("models/lenet5.onnx", config)
        >>> "fc3.multiplier" in program.initial
        True
    """

    if_present: bool = False

    name: ClassVar[str] = "full-norm-head"
    stage: ClassVar[Stage] = "forward"
    card: ClassVar[str] = "less-bn"

    def rewrite_network(self, graph: GraphContext) -> Report:
        """See :func:`full_norm`."""
        return full_norm(graph.model, output=graph.output, if_present=self.if_present)


@dataclass(frozen=True)
class FoundHead:
    """A full-normalization head in a graph.

    Args:
        output: The node that multiplies by the multiplier.
        product: The Gemm or MatMul of the normalized rows.
        normalized: The normalized :attr:`weight`.
        weight: The weight.
        multiplier: The multiplier, a scalar.
        axis: The axis along which the weight is normalized.
        epsilon: Lower bound of its squared lengths.
    """

    output: ir.Node
    product: ir.Node
    normalized: ir.Value
    weight: ir.Value
    multiplier: ir.Value
    axis: int
    epsilon: float


def full_norm(model: ir.Model, *, output: str | None = None, if_present: bool = False) -> Report:
    """Convert the fully connected layer before the output to a full-normalization head, in place.

    The layer is a Gemm, or a MatMul with or without an Add, right before the output or before its
    Softmax or Sigmoid. The multiplier is a new initializer ``[]`` next to the weight
    (``fc.weight``, ``fc.multiplier``) with the role ``norm_scale``: like the scale of a
    normalization it is trained, but exempt from the default weight decay, from centralization and
    from LARS.

    Args:
        model: A normalized model.
        output: The output of the head; the only or first one if not given.
        if_present: Report a missing layer in a note instead of raising an error.

    Returns:
        The report. A second call changes nothing.

    Raises:
        ModelError: There is no such layer, or its operands are transposed or not of rank 2.
        UsageError: The output is unknown.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,3] x) => (float[N,2] y)
        ... <float[2,3] w = {1, 0, 0, 0, 2, 0}, float[2] b = {1, 1}> {
        ...   [fc] y = Gemm<transB = 1>(x, w, b)
        ... }''')
        >>> full_norm(model).changed["b"]
        'the bias was dropped'
        >>> [node.op_type for node in model.graph][-2:]
        ['Gemm', 'Mul']
    """
    report = Report("full_norm")
    present = find_full_norm(model, output)
    if present is not None:
        report.kept[present.output.name or ""] = "already a full-normalization head"
        return report
    try:
        head = find_head(model, output)
        data, axis = _operands(model, head)
    except ModelError as error:
        if not if_present:
            raise
        report.notes.append(
            f"full-norm-head changes nothing: {error.what[0].lower()}{error.what[1:]}"
        )
        return report
    # Build the head beside the old layer, and replace that.
    last, biases = _with_bias(head)  # of a MatMul with an Add, the Add
    b = Builder(model.graph, f"{head.node.name}/full_norm")
    multiplier = _multiplier(b, head.weight)
    scaled = _scaled(b, head, data, axis, multiplier, known_shape(last.outputs[0]))
    head.weight.metadata_props[HEAD_MARK] = "weight"
    transpose = producer_of(head.node.inputs[1], "Transpose")  # between the weight and a MatMul
    replace_node(last, [scaled], b)
    remove_unused(head.node, transpose)  # only the old layer needed them
    infer_shapes(model)
    # Report, and drop biases that nothing else reads.
    name = head.node.name or ""
    report.changed[name] = "y = m <n(x), n(W)>: rows of input and weight are normalized"
    report.changed[multiplier.name or ""] = "new, a trained scalar initialized to 1"
    for bias in biases:
        if bias.is_initializer() and not is_read(bias):
            model.graph.initializers.pop(bias.name or "")
        report.changed[bias.name or ""] = "the bias was dropped"
    if head.node.op_type == "Gemm" and head.node.attributes.get_float("alpha", 1.0) != 1.0:
        report.notes.append(f"the factor alpha of '{name}' was dropped: the multiplier replaces it")
    return report


def find_full_norm(model: ir.Model, output: str | None = None) -> FoundHead | None:
    """Find the full-normalization head that computes an output, by default the first."""
    outputs = [v for v in model.graph.outputs if output is None or v.name == output]
    last = producer_of(source_before(outputs[0], *PASS_THROUGH), "Mul") if outputs else None
    return None if last is None else read_full_norm(last)


def read_full_norm(node: ir.Node) -> FoundHead | None:
    """Match the head that ends in a node of type Mul; ``None`` if there is none."""
    multiplier = node.inputs[1]
    product = producer_of(node.inputs[0], "Gemm", "MatMul")
    if product is None or multiplier is None or static_shape(multiplier) != ():
        return None
    normalized = product.inputs[1]
    if (turn := producer_of(normalized, "Transpose")) is not None:
        normalized = turn.inputs[0]
    read = _read_normalized(normalized)
    # Both operands must be normalized, else it is an ordinary layer with a factor.
    if normalized is None or read is None or _read_normalized(product.inputs[0]) is None:
        return None
    weight, axis, epsilon = read
    return FoundHead(node, product, normalized, weight, multiplier, axis, epsilon)


def _read_normalized(value: ir.Value | None) -> tuple[ir.Value, int, float] | None:
    """The normalized value, the axis, and the epsilon."""
    found = match(value, _NORMALIZED)
    axes, least = (None, None) if found is None else (constant(found["axes"]), scalar(found["eps"]))
    if found is None or axes is None or least is None:
        return None
    return found["v"], int(axes[0]), least


def _operands(model: ir.Model, head: DenseLayer) -> tuple[ir.Value, int]:
    """The layer's input, and the contracted axis of its weight."""
    node, data = head.node, head.node.inputs[0]
    shape = static_shape(head.weight)
    turned = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    if data is None or data is head.weight or turned or shape is None or len(shape) != 2:
        raise ModelError(
            "The last fully connected layer has no rows of input and weight to normalize.",
            where=f"{source_name(model)}: node '{node.name}'",
            fix="Export it as a plain linear layer, or leave the full-normalization head out.",
        )
    return data, 1 - head.out_axis


def _with_bias(head: DenseLayer) -> tuple[ir.Node, list[ir.Value]]:
    """The last node of the layer, which may be an Add, and its biases."""
    third = head.node.inputs[2] if len(head.node.inputs) > 2 else None
    biases = [] if third is None else [third]
    output = head.node.outputs[0]
    uses = list(output.uses())
    if len(uses) != 1 or output.is_graph_output() or uses[0].node.op_type != "Add":
        return head.node, biases
    added = uses[0].node.inputs[1 - uses[0].idx]
    size = (static_shape(head.weight) or (0, 0))[head.out_axis]
    # A bias is one number, or one per output; anything else is another layer.
    shape = static_shape(added) if added is not None and added.is_initializer() else None
    if added is None or shape is None or int(np.prod(shape)) not in (1, size):
        return head.node, biases
    return uses[0].node, [*biases, added]


def _scaled(
    b: Builder,
    head: DenseLayer,
    data: ir.Value,
    axis: int,
    multiplier: ir.Value,
    shape: tuple[int | str | None, ...] | None,
) -> ir.Value:
    """`m <n(x), n(w)>` with the operator of the old layer, whose result has this shape."""
    dtype = head.weight.dtype or ir.DataType.FLOAT
    rows = _normalized(b, data, -1, dtype)
    weight = _normalized(b, head.weight, axis, dtype)
    if head.node.op_type == "Gemm":
        product = b.op("Gemm", rows, weight, shape=shape, transB=1 if axis == 1 else 0)
    else:
        if axis == 1:
            weight = b.op("Transpose", weight, perm=[1, 0])
        product = b.op("MatMul", rows, weight, shape=shape)
    return b.op("Mul", product, multiplier, shape=shape)


def _multiplier(b: Builder, value: ir.Value) -> ir.Value:
    """A new scalar parameter of 1, named after the weight."""
    weight, dtype = value.name or "", value.dtype or ir.DataType.FLOAT
    stem = weight.removesuffix(".weight").removesuffix("/weight")
    name = b.unique(f"{stem}{'/' if weight.endswith('/weight') else '.'}multiplier")
    one = ir.tensor(np.ones((), dtype.numpy()), dtype=dtype, name=name)
    multiplier = ir.val(name, const_value=one, metadata_props={ROLE_MARK: "norm_scale"})
    b.graph.register_initializer(multiplier)
    return multiplier


def _normalized(b: Builder, value: ir.Value, axis: int, dtype: ir.DataType) -> ir.Value:
    """`v / sqrt(max(sum v^2, eps))` along an axis."""
    shape = known_shape(value)
    reduced = None if shape is None else list(shape)
    if reduced is not None:
        reduced[axis] = 1
    square = b.op("Mul", value, value, dtype=dtype, shape=shape)
    total = b.op("ReduceSum", square, b.ints(axis), keepdims=1, dtype=dtype, shape=reduced)
    clamped = b.op("Max", total, b.const(EPSILON, dtype), dtype=dtype, shape=reduced)
    length = b.op("Sqrt", clamped, dtype=dtype, shape=reduced)
    return b.op("Div", value, length, dtype=dtype, shape=shape)
