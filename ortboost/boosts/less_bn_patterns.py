"""The blocks that LessBN knows, and how a chain of nodes is read as one.

A block is written as its steps from the input to the end: ``conv`` (any convolution but a depthwise
one), ``pointwise`` (one of size 1), ``depthwise``, ``bn``, ``act`` (one activation), ``pool``,
``shape`` (padding, slicing). Identity and Dropout are looked through. The table says nothing about a place in the network: where a chain
starts and ends is decided by :mod:`ortboost.boosts.less_bn`, from the tensors.
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
        name: What it is called in reports.
        steps: The main branch from the block's input to its end.
        removed: Which of its normalizations go, counted from the input, from 0.
        end: ``add``: a shortcut is added to it; ``concat``: it is joined to its own input;
            ``linear``: no activation follows, and there is no shortcut.
    """

    name: str
    steps: str
    removed: tuple[int, ...]
    end: str

    @property
    def norms(self) -> int:
        """How many normalizations the main branch has."""
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
"""The blocks; the first that fits counts."""

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
"""The second branch of a block that ends in an Add; its normalization, if it has one, goes too."""

_ACTIVATIONS = frozenset(
    "Celu Clip Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Sigmoid Softplus "  # noqa: SIM905
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
_GATES = {"Add", "Clip", "Div", "HardSigmoid", "Mul", "Sigmoid", "Softplus", "Tanh"}
_GATE_LENGTH = 4


@dataclass(frozen=True)
class Step:
    """One step of a chain.

    Args:
        kind: As in the table; empty for what is looked through.
        node: The node that makes its output.
        source: What it reads.
        inside: All nodes that belong to it, the gate of an activation like ``x * sigmoid(x)`` too.
    """

    kind: str
    node: ir.Node
    source: ir.Value
    inside: tuple[ir.Node, ...]


def chain(value: ir.Value) -> list[Step]:
    """The steps that lead to a value, the last one first, as far as each has one data input."""
    found = []
    while (step := _step(value)) is not None:
        found.append(step)
        value = step.source
    return found


def written(steps: list[Step]) -> str:
    """A chain in the words of the table, from its input to its end."""
    return " ".join(step.kind for step in reversed(steps) if step.kind)


def reads_as(steps: list[Step], text: str) -> bool:
    """Whether a chain is what a line of the table says; a pointwise convolution is a ``conv`` too."""
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
    """Which word of the table a convolution is."""
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
    for source, gate in ((left, right), (right, left)):
        inside = [node]
        for current in _back(gate):
            if current is source and source is not None and len(inside) > 1:
                return Step("act", node, source, tuple(inside))
            if (made_by := current.producer()) is not None:
                inside.append(made_by)
    return None


def _back(value: ir.Value | None) -> Iterator[ir.Value]:
    """A gate's values from its end to its beginning: one data input, the others constants."""
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
