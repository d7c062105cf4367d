r"""The computational cost of a graph: multiply-accumulates of matrix products and convolutions.

Counted, in multiply-accumulates (MAC; a MAC is two floating-point operations):

===================  ==============================================================================
operator             MACs
===================  ==============================================================================
Attention            keys * (elements of the queries + elements of the output)
Conv, DeformConv     elements of the output * (channels in / groups) * elements of the kernel
ConvTranspose        elements of the input * (channels out / groups) * elements of the kernel
Gemm, MatMul         elements of the output * length of the dimension that is summed over
Einsum               product of the lengths of all its indices
RNN, GRU, LSTM       sequence * batch * directions * gates * hidden * (inputs + hidden)
===================  ==============================================================================

with 1, 3 and 4 gates, and their quantized and fused variants (ConvInteger, QLinearConv,
MatMulInteger, QLinearMatMul, FusedConv, FusedGemm, FusedMatMul). As usual for such figures, bias,
activation, pooling, normalization and softmax are not counted. Of an If, the more expensive branch
is counted. The body of a Loop or Scan is reported as not counted, since the graph does not say how
often it runs, and so is a node with unknown shapes.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.graph.opsets.convert_opset import quiet
from ortboost.graph.query import (
    all_tensors,
    input_at,
    is_standard,
    known_shape,
    label,
    static_shape,
    subgraphs,
)
from ortboost.graph.shapes.input_config import fit_dims
from ortboost.graph.shapes.shape_inference import check_lengths, infer_shapes

__all__ = ["Cost", "count_cost", "with_lengths"]

_log = logging.getLogger(__name__)
_SHAPES = 64  # elements: shapes are folded, weights are not
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Cost:
    """The cost of a graph.

    Args:
        macs: Operator to multiply-accumulates, the most expensive first.
        nodes: Node to multiply-accumulates.
        uncounted: Node of a counted operator to the reason why it was not counted.
        shapes: Input to the shape that the figures apply to.
    """

    macs: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    uncounted: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Total number of counted multiply-accumulates."""
        return sum(self.macs.values())

    @property
    def known(self) -> int | None:
        """The total; ``None`` if there is work, but none of it could be counted."""
        return None if self.uncounted and not self.total else self.total

    @property
    def flops(self) -> int:
        """Floating-point operations: two for each multiply-accumulate."""
        return 2 * self.total


def count_cost(model: ir.Model, dims: Mapping[str, int] | None = None, *, batch: int = 1) -> Cost:
    """Count the multiply-accumulates of a model, which is not changed.

    See :func:`with_lengths` for the other arguments, and the errors.

    Example:
        >>> text = '''<ir_version: 8, opset_import: ["" : 18]>
        ... net (float[n,4] x, float[4,3] w) => (float[n,3] y) { y = MatMul(x, w) }'''
        >>> count_cost(ir.from_onnx_text(text), batch=2).total
        24
    """
    settled = with_lengths(model, dims or {}, batch=batch)
    nodes, uncounted = Counter[str](), dict[str, str]()
    macs = _graph(settled.graph, nodes, uncounted)
    weights = {value.name for value, _ in all_tensors(settled)}
    inputs = [value for value in settled.graph.inputs if value.name not in weights]
    shapes = {value.name or "": known_shape(value) or () for value in inputs}
    return Cost(dict(macs.most_common()), nodes, uncounted, shapes)


def with_lengths(model: ir.Model, dims: Mapping[str, int], *, batch: int = 1) -> ir.Model:
    """A copy with functions inlined, open dimensions of the inputs fixed, and shapes re-inferred.

    ``dims`` are lengths of open dimensions, as in ``InputConfig.dims``, ``batch`` is that of open
    first dimensions that are not among them. Dimensions with the same name get the same length in
    every input.

    Raises:
        UsageError: A dimension is unknown, or has another fixed length.
        ModelError: The inputs are too short for a layer.
    """
    copy = model.clone()
    common.InlinePass()(copy)
    weights = {value.name for value, _ in all_tensors(copy)}
    inputs = {v.name or "": v for v in copy.graph.inputs if v.name not in weights}
    known = {name: shape for name, v in inputs.items() if (shape := known_shape(v)) is not None}
    shapes = fit_dims(known, dims)
    # The name of a first dimension means the batch wherever it occurs.
    samples = {shape[0] for shape in shapes.values() if shape and isinstance(shape[0], str)}
    for name, shape in shapes.items():
        fixed = [batch if dim in samples else dim for dim in shape]
        if fixed and fixed[0] is None:
            fixed[0] = batch
        inputs[name].shape = ir.Shape(fixed)
    for graph in copy.graphs():  # exported shapes are for other lengths
        for node in graph:
            for output in node.outputs:
                if is_standard(node):
                    output.shape = None
    infer_shapes(copy)
    check_lengths(copy)
    # Shapes computed in the graph (Shape, Gather, Concat, Reshape) are constants now.
    from onnxscript import optimizer  # importing it takes a tenth of the start-up time of a run

    try:
        with quiet("onnxscript"), np.errstate(all="ignore"):
            optimizer.fold_constants(
                copy,
                input_size_limit=_SHAPES,
                output_size_limit=_SHAPES,
                # Never what is counted; None leaves the decision to the optimizer.
                should_fold=lambda node: False if node.op_type in _RULES else None,
            )
    except Exception as error:  # unknown shapes are reported as not counted
        _log.info("constant folding gave up: %s", error)
    infer_shapes(copy)
    check_lengths(copy)
    return copy


def _graph(graph: ir.Graph, nodes: Counter[str], uncounted: dict[str, str]) -> Counter[str]:
    macs = Counter[str]()
    for node in graph:
        name = label(node)
        if node.op_type == "If":
            branches = [_graph(body, nodes, uncounted) for body in subgraphs(node)]
            macs.update(max(branches, key=lambda macs: sum(macs.values()), default=Counter()))
            continue
        if node.op_type in ("Loop", "Scan"):  # mentioned only if its body has such operators
            inner: dict[str, str] = {}
            if any(_graph(body, Counter(), inner) for body in subgraphs(node)) or inner:
                uncounted[name] = f"the number of iterations of the {node.op_type} is not known"
            continue
        rule = _RULES.get(node.op_type)
        if rule is None:
            continue
        found = rule(node)
        if found is None:
            uncounted[name] = "a shape is unknown; give the lengths of open dimensions"
            continue
        nodes[name] += found
        macs[node.op_type] += found
    return macs


def _shape(node: ir.Node, index: int, rank: int | None = None) -> tuple[int, ...] | None:
    """The static shape of an input, if it is known and has this rank: a node may be invalid."""
    shape = static_shape(input_at(node, index))
    return shape if shape is None or rank in (None, len(shape)) else None


def _convolution(node: ir.Node) -> int | None:
    # The kernel is [channels out, channels in / groups, ...], of a ConvTranspose the reverse.
    transposed = node.op_type == "ConvTranspose"
    each = _shape(node, 0) if transposed else static_shape(node.outputs[0])
    kernel = _shape(node, 3 if node.op_type == "QLinearConv" else 1)
    return None if each is None or kernel is None else math.prod(each) * math.prod(kernel[1:])


def _matmul(node: ir.Node) -> int | None:
    rank = 2 if node.op_type in ("Gemm", "FusedGemm") else None
    a, out = _shape(node, 0, rank), static_shape(node.outputs[0])
    if not a or out is None:
        return None
    # Gemm and FusedMatMul may transpose their left factor; a vector stays as it is.
    swapped = node.attributes.get_int("transA", 0) and len(a) > 1
    return math.prod(out) * a[-2 if swapped else -1]


def _einsum(node: ir.Node) -> int | None:
    equation = node.attributes.get_string("equation", "") or ""
    lengths: dict[str, int] = {}
    for index, term in enumerate(equation.replace(" ", "").split("->")[0].split(",")):
        shape = _shape(node, index)
        if shape is None:
            return None
        letters, dots, rest = term.partition("...")
        # The axes of an ellipsis, counted from its end, as they are broadcast.
        extra = [f".{k}" for k in range(len(shape) - len(letters + rest), 0, -1)] if dots else []
        indices = [*letters, *extra, *rest]
        if len(indices) != len(shape):  # the node is invalid
            return None
        for letter, length in zip(indices, shape, strict=True):
            lengths[letter] = max(lengths.get(letter, 1), length)  # length 1 is broadcast
    return math.prod(lengths.values())


def _recurrent(node: ir.Node) -> int | None:
    x, w = _shape(node, 0, 3), _shape(node, 1, 3)
    if x is None or w is None:
        return None
    # x is [sequence, batch, inputs] (or batch first), w is [directions, gates * hidden, inputs].
    hidden = w[1] // _GATES[node.op_type]
    return x[0] * x[1] * w[0] * w[1] * (w[2] + hidden)


def _attention(node: ir.Node) -> int | None:
    queries, keys, out = _shape(node, 0), _shape(node, 1), static_shape(node.outputs[0])
    cached = input_at(node, 4) is not None  # past keys: their number adds to that of the keys
    if not queries or not keys or out is None or cached or not is_standard(node):
        return None
    # [batch, heads, sequence, size] or [batch, sequence, heads * size]
    return keys[-2] * (math.prod(queries) + math.prod(out))


_RULES: Mapping[str, Callable[[ir.Node], int | None]] = {
    "Attention": _attention,
    **dict.fromkeys(
        "Conv ConvInteger ConvTranspose DeformConv FusedConv QLinearConv".split(), _convolution
    ),
    **dict.fromkeys(
        "FusedGemm FusedMatMul Gemm MatMul MatMulInteger QLinearMatMul".split(), _matmul
    ),
    "Einsum": _einsum,
    **dict.fromkeys(_GATES, _recurrent),
}
