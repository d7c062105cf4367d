r"""Gradient centralization: selection of the parameters, and the centralization itself.

    g <- g - mean(g, all axes but that of the outputs)        for each output channel separately

It keeps the weights of an output on a hyperplane of constant sum, which regularizes them and
smooths the loss. It applies to the weights of convolutions and fully connected layers, after the
weight decay and before the optimizer's algebra (:func:`ortboost.optimizers.base.regularized`).

The output axis depends on the operator, and is traced through transpositions:

    ========================  =================  ===============
    weight of                 shape              mean over axes
    ========================  =================  ===============
    Conv                      [out, in, k...]    1, 2, ...
    ConvTranspose             [in, out, k...]    0, 2, ...
    MatMul, Gemm              [in, out]          0
    Gemm with ``transB``      [out, in]          1
    LSTM, GRU, RNN            [dirs, out, in]    2
    Gather (an embedding)     [entries, ...]     1, 2, ...
    ========================  =================  ===============

A stacked weight of a MatMul, ``[..., in, out]``, counts as several layers. A weight that is used in
another way, or inconsistently, is not centralized.

Sources: Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural
Networks", ECCV 2020; the excluded layers and the rule of 16 are those of MindSpore Boost 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Key, Stage, UpdateContext
from ortboost.core.field_types import Range
from ortboost.core.report import Report
from ortboost.graph.reach import values_by_name
from ortboost.graph.weights.parameters import Parameter, named_parameters

__all__ = ["HEAD_MARK", "CentralizeConfig", "GradCentralization", "centralize", "readers_of"]

HEAD_MARK = "ortboost.full_norm"
"""Metadata key that marks the weight of a full-normalization head, which is not centralized."""
_AXES = Key[dict[str, tuple[int, ...]]]("axes of the mean, by parameter")


@dataclass(frozen=True)
class GradCentralization(Boost):
    """Gradient centralization.

    Args:
        patterns: Shell-style patterns of parameter names; ``None`` for all suitable ones.
        multiple_of: Centralize only weights of layers whose number of inputs is a multiple of this
            (input channels of a convolution, inputs of a linear layer). MindSpore's optimizers use
            16 without documenting it; 1 selects every weight.

    Raises:
        ConfigError: ``multiple_of`` is below 1, or a value has the wrong type.

    Example:
        >>> GradCentralization(("conv*",), multiple_of=1).to_dict()
        {'name': 'grad-centralization', 'patterns': ('conv*',), 'multiple_of': 1}
    """

    patterns: tuple[str, ...] | None = None
    multiple_of: Annotated[int, Range(1)] = 16

    name: ClassVar[str] = "grad-centralization"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str] = "grad-centralization"
    row_wise: ClassVar[bool] = True

    def rewrite_forward(self, graph: GraphContext) -> Report:
        """Select the parameters, while layers are not yet decomposed."""
        graph.memory[_AXES], report = centralize(graph.model, graph.trained, self)
        return report

    def after_decay(
        self, update: UpdateContext, parameter: Parameter, gradient: ir.Value
    ) -> ir.Value:
        """Subtract the mean."""
        axes = update.memory[_AXES].get(parameter.name, ())
        if not axes:
            return gradient
        b = update.b
        mean = b.op("ReduceMean", gradient, b.ints(*axes), keepdims=1)
        return b.op("Sub", gradient, mean)


CentralizeConfig: TypeAlias = GradCentralization
"""The former name of :class:`GradCentralization`."""


def centralize(
    model: ir.Model, trained: Sequence[Parameter], config: CentralizeConfig
) -> tuple[dict[str, tuple[int, ...]], Report]:
    """Select the parameters whose gradients are centralized, before layers are decomposed.

    The results are the axes of the mean for each of them, and a report with the reason for each
    trained parameter.

    Raises:
        ConfigError: A pattern matches nothing.
    """
    report = Report("grad_centralization")
    values = values_by_name(model.graph)
    asked = None
    if config.patterns is not None:
        asked = named_parameters(trained, config.patterns, "centralize, patterns")
    chosen: dict[str, tuple[int, ...]] = {}
    for parameter in trained:
        found = _suited(parameter, values[parameter.name], config.multiple_of)
        if asked is not None and parameter.name not in asked:
            found = "no pattern matches it"
        if isinstance(found, str):
            report.kept[parameter.name] = found
            continue
        chosen[parameter.name] = found
        axes = ", ".join(str(axis) for axis in found)
        report.changed[parameter.name] = f"mean over axis {axes} is subtracted from its gradient"
    return chosen, report


def _suited(parameter: Parameter, value: ir.Value, multiple: int) -> tuple[int, ...] | str:
    """The axes of the mean, or the reason why there is none."""
    rank = len(parameter.shape)
    if parameter.role != "weight":
        return f"it is a {parameter.role}, not a weight"
    if rank < 2:
        return "it has only one axis"
    if HEAD_MARK in value.metadata_props:
        return "it is the weight of a full-normalization head"
    # All nodes that read the weight must agree on the axes; one of them is named if not.
    found: dict[tuple[int, ...], ir.Node] = {}
    for node, index, perm in readers_of(value, tuple(range(rank))):
        if node.op_type in ("Conv", "ConvTranspose") and node.attributes.get_int("group", 1) > 1:
            return f"'{node.name}' is a grouped convolution"
        axes = _input_axes(node, index, rank)
        if axes is None:
            return f"{node.op_type} '{node.name}' reads it: its output axis is unknown"
        found[tuple(sorted(perm[axis] for axis in axes))] = node  # as axes of the weight
    if len(found) != 1:
        nodes = " and ".join(f"'{node.name}'" for node in found.values())
        return f"its output axis differs between {nodes}" if found else "no layer reads it"
    (axes,) = found
    # The first is the input axis, the others are those of the kernel.
    inputs = parameter.shape[axes[0]]
    return (
        axes if inputs % multiple == 0 else f"it has {inputs} inputs, not a multiple of {multiple}"
    )


def readers_of(
    value: ir.Value, perm: tuple[int, ...]
) -> Iterator[tuple[ir.Node, int, tuple[int, ...]]]:
    """Iterate over the nodes that read a weight, through casts and transpositions.

    Yields:
        The node, the index of its input, and for each axis of that input the axis of the weight.
    """
    for usage in value.uses():
        node = usage.node
        if usage.idx == 0 and node.op_type in ("Cast", "Identity"):
            yield from readers_of(node.outputs[0], perm)
        elif node.op_type == "Transpose":
            turn = node.attributes.get_ints("perm", range(len(perm))[::-1])
            yield from readers_of(node.outputs[0], tuple(perm[axis] for axis in turn))
        else:
            yield node, usage.idx, perm


def _input_axes(node: ir.Node, index: int, rank: int) -> tuple[int, ...] | None:
    """The contracted axes of a layer's weight; ``None`` if the node is not a layer."""
    kind = node.op_type
    if kind == "Conv" and index == 1:
        return tuple(range(1, rank))
    if kind == "ConvTranspose" and index == 1:
        return (0, *range(2, rank))
    if kind == "Gemm" and index < 2:
        # The left operand is [rows, in], the right one [in, out]; either may be transposed.
        turned = node.attributes.get_int("transB" if index else "transA", 0)
        return (int(bool(index) == bool(turned)),)
    if kind == "MatMul":
        return (rank - 2 if index else rank - 1,)  # [..., in, out] on the right
    # W and R: [directions, gates * hidden, inputs].
    if kind in ("LSTM", "GRU", "RNN") and index in (1, 2):
        return (rank - 1,)
    if kind == "Gather" and index == 0:
        return tuple(range(1, rank))
    return None
