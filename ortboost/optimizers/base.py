"""The protocol of an update rule: its slots for each parameter, and the nodes of one update.

Users register rules of their own with :func:`ortboost.optimizers.register` (docs/own_boost.md).
To add an optimizer here, write a file beside this one with a frozen dataclass that has ``name``,
``slots`` and ``update``, and add it to :data:`ortboost.optimizers.OPTIMIZERS`; the section
"Where to add things" of ``docs/architecture.md`` lists the other places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, TypeAlias, runtime_checkable

import onnx_ir as ir

from ortboost.core.arguments import Configuration
from ortboost.core.field_types import Range
from ortboost.graph.build import Builder

__all__ = ["Decay", "NotNegative", "Optimizer", "Rule", "Update", "UpdateInputs", "regularized"]

Decay: TypeAlias = Annotated[float, Range(0, below=1)]
"""The decay factor of a running mean."""
NotNegative: TypeAlias = Annotated[float, Range(0, below=3.4e38)]
"""A finite float32, 0 or more."""


@dataclass(frozen=True)
class UpdateInputs:
    """The inputs of an update rule; all tensors are values of the graph.

    Args:
        weight: The parameter, any shape.
        grad: Its gradient, same shape; unscaled, clipped, finite.
        slots: Slot name to the slot's current value, same shape as the parameter.
        learning_rate: float32 scalar.
        step: float64 scalar, number of this update, 1 for the first.
        weight_decay: Coefficient for this parameter, 0 for none.
        adapt: Whether layer-wise adaptation (LARS) applies to this parameter.
        after_decay: Transforms the gradient after weight decay has been added to it; ``None`` to
            leave it unchanged.
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
    """The result of an update rule.

    Args:
        weight: The new parameter.
        slots: Slot name to its new value.
    """

    weight: ir.Value
    slots: Mapping[str, ir.Value]


class Rule(Configuration):
    """Base class of the update rules here; rules of users only need to follow the protocol."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("lr", "learning_rate"), "Give it to the program: ProgramConfig(learning_rate=1e-3)."
        ),
        "weight_decay": "Give it to the program: ProgramConfig(weight_decay=0.01).",
    }


@runtime_checkable
class Optimizer(Protocol):
    """An update rule as a graph fragment.

    A class attribute ``row_wise = True`` says that the rule treats each element, or each row along
    the first axis, by itself. It is then also used with some of the rows of a table
    (:mod:`ortboost.boosts.sparse_embedding`).

    Example:
        >>> from ortboost.optimizers import AdamW
        >>> AdamW().name, AdamW().slots
        ('adamw', ('exp_avg', 'exp_avg_sq'))
    """

    name: ClassVar[str]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the tensors kept for each parameter, of its shape and type, initially zeros."""

    def update(self, b: Builder, p: UpdateInputs) -> Update:
        """Append the nodes of one update of one parameter to ``b``."""


def regularized(b: Builder, p: UpdateInputs, *, decay: bool = True) -> ir.Value:
    """The gradient after weight decay, ``g <- g + wd w``, and the transformations of boosts.

    Rules that decay the weight directly pass ``decay=False``: then only boosts change the gradient.
    """
    grad = p.grad
    if decay and p.weight_decay:
        grad = b.op("Add", grad, b.op("Mul", p.weight, b.const(p.weight_decay)))
    return grad if p.after_decay is None else p.after_decay(grad)
