"""The nodes that the native builder differentiates correctly once they are prepared.

The tables come from ``tools/probe_gradients.py``, which compares every operator in many forms with
central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from ortboost.autodiff.conditions import (
    column_major,
    empty_axes,
    refusal_of,
    unknown_axes,
    unknown_rank,
)
from ortboost.autodiff.padding import same_pads
from ortboost.autodiff.refused import REFUSED
from ortboost.graph.query import input_at, is_standard, known_shape, source_before
from ortboost.graph.reach import STOPS

__all__ = ["CONDITIONS", "NATIVE", "NATIVE_MICROSOFT", "gradient_support"]

NATIVE = frozenset(
    "Abs Add AveragePool BatchNormalization Cast CastLike Clip Concat Conv Cos Div Dropout Erf Exp "
    "Expand Flatten Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Identity "
    "LayerNormalization LeakyRelu Log LogSoftmax MatMul Max MaxPool Min Mul Neg Pad Pow Reciprocal "
    "ReduceL2 ReduceLogSumExp ReduceMean ReduceSum Relu Reshape ScatterElements ScatterND Sigmoid "
    "Sin Slice Softmax SoftmaxCrossEntropyLoss Split Sqrt Squeeze Sub Tanh Tile TopK Transpose "
    "Trilu Unsqueeze Where".split()
)
"""Standard operators with a correct gradient on CPU and CUDA, possibly after ``prepare``."""

NATIVE_MICROSOFT = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})
"""Operators of com.microsoft with a gradient."""


def _scatter(node: ir.Node) -> str | None:
    reduction = node.attributes.get_string("reduction", "none")
    if reduction in ("none", "add"):
        return None
    return f"with reduction='{reduction}' its gradient is wrong; use --engine portable"


def _padding(node: ir.Node) -> str | None:
    if node.attributes.get_string("auto_pad", "NOTSET") == "NOTSET":
        return None
    return refusal_of(same_pads, node)


def _conv(node: ir.Node) -> str | None:
    shape = None if node.inputs[0] is None else known_shape(node.inputs[0])  # [N, C, ...]
    if node.attributes.get_int("group", 1) > 1 and (shape is None or len(shape) > 4):
        return "in groups over three axes its gradient writes out of bounds; use --engine portable"
    return _padding(node)


def _average_pool(node: ir.Node) -> str | None:
    shape = None if node.inputs[0] is None else known_shape(node.inputs[0])
    sizes = () if shape is None else shape[2:]
    unknown = not sizes or not all(isinstance(size, int) for size in sizes)
    if node.attributes.get_int("ceil_mode", 0) == 1 and unknown:
        return "with ceil_mode=1 its gradient needs images of a known size; export with ceil_mode=0"
    return _padding(node)


def _pad(node: ir.Node) -> str | None:
    mode = node.attributes.get_string("mode", "constant")
    if mode != "constant":
        return f"mode '{mode}' has no gradient"
    return unknown_axes(node, 3)


def _gemm(node: ir.Node) -> str | None:
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    if alpha and (beta or input_at(node, 2) is None):
        return None
    return "alpha or beta is 0, so some of its inputs have no effect; remove them"


def _axes(node: ir.Node) -> str | None:
    return unknown_axes(node) or empty_axes(node)


CONDITIONS: dict[str, tuple[Callable[[ir.Node], str | None], str]] = {
    "AveragePool": (_average_pool, "ceil_mode=1, and SAME with stride, require fixed sizes"),
    "BatchNormalization": (unknown_rank, "requires a known rank"),
    "Conv": (_conv, "SAME with stride requires fixed sizes; not 3-d in groups"),
    "Gemm": (_gemm, "alpha and beta must not be 0"),
    "LayerNormalization": (unknown_rank, "requires a known rank"),
    "MatMul": (unknown_rank, "requires a known rank"),
    "MaxPool": (
        lambda node: column_major(node) or _padding(node),
        "requires row-major indices; SAME with stride requires fixed sizes",
    ),
    "Pad": (_pad, "other modes than constant are decomposed"),
    "ReduceL2": (_axes, "requires constant axes"),
    "ReduceLogSumExp": (_axes, "requires constant axes"),
    "ScatterElements": (_scatter, "only reduction none or add"),
    "ScatterND": (_scatter, "only reduction none or add"),
}
"""Operator to the check of its form, and the condition in words."""


def _chosen_by(node: ir.Node) -> str | None:
    """The graph input that is the condition of an If."""
    value = source_before(node.inputs[0], "Cast", "Identity", "Not", "Reshape", "Squeeze")
    return value.name if value is not None and value.is_graph_input() else None


_NO_GRADIENT: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "BatchNormalization": ((), (1, 2), "its running statistics have no gradient"),
    "Clip": ((1, 2), (), "its bounds have no gradient; make them constant"),
    "Pad": ((2,), (), "its padding value has no gradient; make it constant"),
    "Pow": ((1,), (), "the exponent has no gradient; use a constant one"),
    "SoftmaxCrossEntropyLoss": ((2,), (), "the class weights have no gradient; make them constant"),
}
"""Operator to the inputs and outputs that cannot carry a gradient, and the reason."""


def gradient_support(node: ir.Node, active: Collection[str] = frozenset()) -> str | None:
    """``None`` if the gradient of this node is correct, else one sentence: reason and fix.

    ``active`` are the names of the values that need a gradient.
    """
    # Every reason is "why; fix": check.py cuts it there.
    if not is_standard(node):
        if node.domain == "com.microsoft":
            if node.op_type in NATIVE_MICROSOFT:
                return None
            return (
                f"com.microsoft::{node.op_type} is for inference only; "
                "start from the unoptimized export"
            )
        if node.domain == "ai.onnx.ml":
            return (
                f"{node.op_type} of classic machine learning (ai.onnx.ml) has no gradient; "
                "train the layers after it, or replace it by a neural network"
            )
        return (
            f"{node.domain}::{node.op_type} is not a standard operator; "
            "export without custom operators"
        )
    if node.op_type in STOPS:
        return "no gradient flows through it"
    inputs, outputs, reason = _NO_GRADIENT.get(node.op_type, ((), (), ""))
    touched = [input_at(node, i) for i in inputs]
    touched += [node.outputs[i] for i in outputs if i < len(node.outputs)]
    if any(value is not None and value.name in active for value in touched):
        return reason
    if node.op_type in CONDITIONS:
        return CONDITIONS[node.op_type][0](node)
    if node.op_type in NATIVE:
        return None
    if node.op_type == "If" and (source := _chosen_by(node)) is not None:
        # optimum merges the decoder with a cache and the decoder for the first token into one file.
        return (
            f"the input '{source}' chooses its branch; choose it with --input {source}=0 or 1, or "
            "use --engine portable"
        )
    return REFUSED.get(node.op_type, "it has no gradient in onnxruntime-training")
