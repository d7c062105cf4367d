"""What an update rule is: slots it keeps for each parameter, and the nodes of one update.

To add an optimizer: one file beside this one with a frozen dataclass that has ``name``,
``slots`` and ``update``; enter it in :data:`ortboost.optimizers.OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, TypeAlias, runtime_checkable

import onnx_ir as ir

from ortboost.core.field_types import Range
from ortboost.graph.build import Builder

__all__ = ["Decay", "NotNegative", "Optimizer", "Update", "UpdateInputs", "regularized"]

Decay: TypeAlias = Annotated[float, Range(0, below=1)]
"""How much of a running mean is kept."""
NotNegative: TypeAlias = Annotated[float, Range(0, below=3.4e38)]
"""A finite float32, 0 or more."""


@dataclass(frozen=True)
class UpdateInputs:
    """What an update rule may read; all tensors live in the graph.

    Args:
        weight: The parameter, any shape.
        grad: Its gradient, same shape; un-scaled, clipped, finite.
        slots: Slot name to the slot's current value, same shape as the parameter.
        learning_rate: float32 scalar.
        step: float64 scalar, number of this update, 1 for the first.
        weight_decay: Coefficient for this parameter, 0 for none.
        adapt: Whether layer-wise adaptation (LARS) is wanted for this parameter.
        after_decay: What becomes of the gradient after the weight decay has been added to it; ``None``
            to leave it.
    """

    weight: ir.Value
    grad: ir.Value
    slots: Mapping[str, ir.Value]
    learning_rate: ir.Value
    step: ir.Value
    weight_decay: float = 0.0
    adapt: bool = True
    after_decay: Callable[[ir.Value], ir.Value] | None = None


@dataclass(frozen=True)
class Update:
    """What an update rule made.

    Args:
        weight: The new parameter.
        slots: Slot name to its new value.
    """

    weight: ir.Value
    slots: Mapping[str, ir.Value]


@runtime_checkable
class Optimizer(Protocol):
    """An update rule as a graph fragment."""

    name: ClassVar[str]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter; all start as zeros."""

    def update(self, b: Builder, p: UpdateInputs) -> Update:
        """Append the nodes of one update of one parameter to ``b``."""


def regularized(b: Builder, p: UpdateInputs, *, decay: bool = True) -> ir.Value:
    """The gradient with weight decay, and what boosts make of it.

        g <- g + wd w
        g <- after_decay(g)

    Args:
        b: Gets the nodes.
        p: The parameter.
        decay: False for rules that decay the weight itself.
    """
    grad = p.grad
    if decay and p.weight_decay:
        grad = b.op("Add", grad, b.op("Mul", p.weight, b.const(p.weight_decay)))
    return grad if p.after_decay is None else p.after_decay(grad)
