"""The blocks that LessBN supports, and the matching of a chain of nodes with them.

A block is described by its steps from the input to the end: ``conv`` (any convolution but a
depthwise one), ``pointwise`` (kernel size 1), ``depthwise``, ``bn``, ``act`` (one activation),
``pool``, ``shape`` (padding, slicing). Identity and Dropout are ignored. The table does not say
where in the network a chain starts and ends: :mod:`ortboost.boosts.less_bn` finds that from the
tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import onnx_ir as ir

from ortboost.graph.query import static_shape

__all__ = ["BLOCKS", "SHORTCUTS", "Block", "Step", "chain", "reads_as", "written"]


@dataclass(frozen=True)
class Block:
    """One kind of block.

    Args:
        name: Its name in reports.
        steps: The main branch from the block's input to its end.
        removed: Indices of the removed normalizations, counted from the input.
        end: ``add``: a shortcut is added to it; ``concat``: it is concatenated with its own input;
            ``linear``: no activation follows, and there is no shortcut.
    """

    name: str
    steps: str
    removed: tuple[int, ...]
    end: str

    @property
    def norms(self) -> int:
        """The number of normalizations in the main branch."""
        return self.steps.split().count("bn")


BLOCKS: Final = (
    Block("bottleneck", "conv bn act conv bn act conv bn", (0, 1), "add"),
    Block("basic block", "conv bn act conv bn", (0,), "add"),
    Block("inverted residual", "pointwise bn act depthwise bn act pointwise bn", (1,), "add"),
    Block("inverted residual", "pointwise bn act depthwise bn act pointwise bn", (1,), "linear"),
    Block("dense block", "bn act conv bn act conv", (0,), "concat"),
    Block("dense block", "conv bn act conv bn act", (0,), "concat"),
    Block("dense block", "conv act bn conv act bn", (0,), "concat"),
)
"""The blocks; the first match wins."""

SHORTCUTS: Final = {
    "": "identity",
    "conv": "projection",
    "conv bn": "projection",
    "pool": "pool",
    "pool conv": "pool and projection",
    "pool conv bn": "pool and projection",
    "shape": "padding",
    "shape shape": "padding",
    "pool shape": "padding",
}
"""Second branches of blocks that end in an Add; their normalization, if any, is removed too."""

_ACTIVATIONS = frozenset(
    "Celu Clip Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Sigmoid Softplus "
    "Softsign Swish Tanh ThresholdedRelu".split()
)
_OTHERS = {
    "BatchNormalization": "bn",
    "AveragePool": "pool",
    "MaxPool": "pool",
    "Pad": "shape",
    "Slice": "shape",
    "Identity": "",
    "Dropout": "",
}
# Operators of gates such as clip(x + 3, 0, 6) / 6 and tanh(softplus(x)), and how many at most.
_GATES = {"Add", "Clip", "Div", "HardSigmoid", "Mul", "Sigmoid", "Softplus", "Tanh"}
_GATE_LENGTH = 4


@dataclass(frozen=True)
class Step:
    """One step of a chain.

    Args:
        kind: As in the table; empty if the step is ignored.
        node: The node that computes its output.
        source: Its input.
        inside: All its nodes, including the gate of an activation like ``x * sigmoid(x)``.
    """

    kind: str
    node: ir.Node
    source: ir.Value
    inside: tuple[ir.Node, ...]


def chain(value: ir.Value) -> list[Step]:
    """The steps that lead to a value, the last one first, while each has one data input."""
    found = []
    while (step := _step(value)) is not None:
        found.append(step)
        value = step.source
    return found


def written(steps: list[Step]) -> str:
    """A chain in the notation of the table, from its input to its end."""
    return " ".join(step.kind for step in reversed(steps) if step.kind)


def reads_as(steps: list[Step], text: str) -> bool:
    """Whether a chain matches a line of the table; ``pointwise`` also matches ``conv``."""
    kinds, wanted = written(steps).split(), text.split()
    return len(kinds) == len(wanted) and all(
        kind == want or (kind, want) == ("pointwise", "conv")
        for kind, want in zip(kinds, wanted, strict=True)
    )


def _step(value: ir.Value) -> Step | None:
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or not node.inputs:
        return None
    source = node.inputs[0]
    # The mask of a Dropout is not a step of the chain.
    if source is None or node.outputs[0] is not value:
        return None
    if node.op_type == "Conv":
        return Step(_convolution(node), node, source, (node,))
    if node.op_type in _ACTIVATIONS:
        return Step("act", node, source, (node,))
    if node.op_type in _OTHERS:
        return Step(_OTHERS[node.op_type], node, source, (node,))
    if node.op_type == "Mul":
        return _gated(node)
    return None


def _convolution(node: ir.Node) -> str:
    """The word of the table for a convolution."""
    weight = node.inputs[1]
    shape = None if weight is None else static_shape(weight)
    if shape is None or len(shape) < 3:
        return "conv"
    if node.attributes.get_int("group", 1) > 1:
        return "depthwise" if shape[1] == 1 else "conv"
    return "pointwise" if all(size == 1 for size in shape[2:]) else "conv"


def _gated(node: ir.Node) -> Step | None:
    """`x * f(x)`: SiLU, and the decomposed HardSwish of older exporters."""
    left, right = node.inputs
    # Which operand is `x` shows only by following the other one back to it.
    for source, gate in ((left, right), (right, left)):
        inside = [node]
        for current in _back(gate):
            if current is source and source is not None and len(inside) > 1:
                return Step("act", node, source, tuple(inside))
            if (made_by := current.producer()) is not None:
                inside.append(made_by)
    return None


def _back(value: ir.Value | None) -> Iterator[ir.Value]:
    """The values of a gate from its end to its start, while nodes have one non-constant input."""
    for _ in range(_GATE_LENGTH + 1):
        if value is None:
            return
        yield value
        node = value.producer()
        if node is None or node.op_type not in _GATES:
            return
        data = [v for v in node.inputs if v is not None and v.const_value is None]
        if len(data) != 1:
            return
        value = data[0]
