"""Find the layers that THOR preconditions, with their inputs and outputs.

A weight belongs to such a layer if exactly one node of the main graph reads it, possibly through
Cast, Identity or Transpose:

    =====================  ==================  =========================================
    node                   weight              rows of `a` and `D`
    =====================  ==================  =========================================
    MatMul(x, w)           [in, out]           all axes of `x` but the last
    Gemm(x, w)             [in, out], or       rows of `x`
                           [out, in] (transB)
    Conv(x, w)             [out, in, k...]     samples and positions; `a` is a patch
    Gather(w, ids)         [entries, width]    the ids; `a` is the unit vector of an id
    LayerNormalization     scale and bias      all axes but the normalized ones
    =====================  ==================  =========================================

All other parameters get the plain update, and the report says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import onnx_ir as ir

from ortboost.boosts.grad_centralization import readers_of
from ortboost.graph.query import is_standard, known_shape, label
from ortboost.graph.reach import values_by_name
from ortboost.graph.weights.parameters import Parameter

__all__ = ["Layer", "NormLayer", "find_layers"]

Kind: TypeAlias = Literal["dense", "conv", "embedding"]


@dataclass(frozen=True)
class Layer:
    """A layer whose gradient is preconditioned from both sides.

    Args:
        weight: Name of the weight.
        shape: Its shape.
        kind: ``dense``, ``conv`` or ``embedding``.
        inputs: Length of `a`; for a convolution, per group.
        outputs: Length of `D`; for a convolution, per group.
        groups: Groups of a convolution.
        rows_in: Whether axis 0 of the weight is the input axis.
        source: Name of the input: activations, or the ids of an embedding.
        output: Name of the output, whose gradient is `D`.
        attributes: For a convolution: strides, pads, dilations, auto_pad.
        kernel: For a convolution: its kernel shape.
    """

    weight: str
    shape: tuple[int, ...]
    kind: Kind
    inputs: int
    outputs: int
    rows_in: bool
    source: str
    output: str
    groups: int = 1
    attributes: Mapping[str, ir.Attr] | None = None
    kernel: tuple[int, ...] = ()


@dataclass(frozen=True)
class NormLayer:
    """A scale or bias of a layer normalization, whose gradient is preconditioned elementwise.

    Args:
        weight: Name of the parameter.
        shape: Its shape, which is that of the normalized axes.
        scale: Whether it is the scale, not the bias.
        source: Name of the input.
        output: Name of the output.
        epsilon: The epsilon of the node.
    """

    weight: str
    shape: tuple[int, ...]
    scale: bool
    source: str
    output: str
    epsilon: float


def find_layers(
    model: ir.Model, trained: Sequence[Parameter]
) -> tuple[list[Layer | NormLayer], dict[str, str]]:
    """Find the layers of trained parameters in the training graph, before operators are decomposed.

    Returns:
        The layers in the order of the parameters; and other parameters with the reason why they
        are not preconditioned.
    """
    values = values_by_name(model.graph)
    found: list[Layer | NormLayer] = []
    plain: dict[str, str] = {}
    for parameter in trained:
        layer = _layer(parameter, values[parameter.name], model.graph)
        if isinstance(layer, str):
            plain[parameter.name] = layer
        else:
            found.append(layer)
    return found, plain


def _layer(parameter: Parameter, value: ir.Value, graph: ir.Graph) -> Layer | NormLayer | str:
    rank = len(parameter.shape)
    readers = list(readers_of(value, tuple(range(rank))))
    if len(readers) != 1:
        return f"{len(readers)} nodes read it" if readers else "no node reads it"
    node, index, perm = readers[0]  # perm: the weight's axis for each axis of the input
    # In a loop it has many inputs and gradients.
    if node.graph is not graph:
        return f"'{label(node)}' is in a branch or a loop"
    if value.is_graph_output():
        return "it is a graph output too"
    if is_standard(node, "LayerNormalization") and index in (1, 2):
        return _norm(parameter, node, index)
    if is_standard(node, "MatMul") and index == 1 and rank == 2:
        return _dense(parameter, node, inputs_axis=perm[0])
    if is_standard(node, "Gemm") and index == 1:
        if node.attributes.get_int("transA", 0) or node.attributes.get_float("alpha", 1.0) != 1.0:
            return f"'{label(node)}' has transA or alpha"
        axis = perm[1 if node.attributes.get_int("transB", 0) else 0]
        return _dense(parameter, node, inputs_axis=axis)
    if is_standard(node, "Conv") and index == 1 and perm == tuple(range(rank)):
        return _conv(parameter, node)
    is_table = is_standard(node, "Gather") and index == 0 and rank == 2 and perm == (0, 1)
    if is_table and node.attributes.get_int("axis", 0) == 0:
        entries, width = parameter.shape
        return _made(parameter, node, "embedding", inputs=entries, outputs=width, rows_in=True)
    return f"a {parameter.role or 'parameter'} of {node.op_type} '{label(node)}'"


def _made(parameter: Parameter, node: ir.Node, kind: Kind, **fields: Any) -> Layer:
    source = _name(node.inputs[1 if kind == "embedding" else 0])
    output = _name(node.outputs[0])
    return Layer(parameter.name, parameter.shape, kind, source=source, output=output, **fields)


def _dense(parameter: Parameter, node: ir.Node, inputs_axis: int) -> Layer | str:
    if known_shape(node.outputs[0]) is None:
        return f"the rank of the output of '{label(node)}' is unknown"
    inputs, outputs = parameter.shape[inputs_axis], parameter.shape[1 - inputs_axis]
    rows_in = inputs_axis == 0
    return _made(parameter, node, "dense", inputs=inputs, outputs=outputs, rows_in=rows_in)


def _conv(parameter: Parameter, node: ir.Node) -> Layer:
    groups = node.attributes.get_int("group", 1)
    out, inner, *kernel = parameter.shape
    kept = ("strides", "pads", "dilations", "auto_pad")
    return _made(
        parameter,
        node,
        "conv",
        inputs=inner * math.prod(kernel),
        outputs=out // groups,
        rows_in=False,
        groups=groups,
        attributes={key: node.attributes[key] for key in kept if key in node.attributes},
        kernel=tuple(kernel),
    )


def _norm(parameter: Parameter, node: ir.Node, index: int) -> NormLayer | str:
    shape = known_shape(node.outputs[0])
    axis = node.attributes.get_int("axis", -1)
    if shape is None or shape[axis:] != parameter.shape:
        return f"its shape differs from the normalized axes of '{label(node)}'"
    return NormLayer(
        parameter.name,
        parameter.shape,
        scale=index == 1,
        source=_name(node.inputs[0]),
        output=_name(node.outputs[0]),
        epsilon=node.attributes.get_float("epsilon", 1e-5),
    )


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""
