r"""Stochastic gradient descent, with momentum, dampening and Nesterov.

With weight `w`, gradient `g`, learning rate `lr`, decay `wd`, momentum `mu`, dampening `d`:

    g  <- g + wd w
    v  <- g                       on the first update, and
    v  <- mu v + (1 - d) g        after it
    g  <- g + mu v  (Nesterov)    or  g <- v
    w  <- w - lr g

Sources: `torch.optim.SGD` documentation; Sutskever et al., "On the importance of initialization and
momentum in deep learning", 2013. MindSpore's `nn.SGD` and `nn.Momentum` follow the same formulas
(checked against MindSpore 2.10, see tests/golden/mindspore).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import onnx_ir as ir

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds
from ortboost.graph.build import Builder
from ortboost.optimizers.base import NotNegative, Rule, Update, UpdateInputs, regularized

__all__ = ["Momentum", "Sgd"]


@dataclass(frozen=True)
class Sgd(Rule):
    """Stochastic gradient descent.

    Args:
        momentum: `mu`, 0 or more; 0 needs no slot.
        dampening: `d`, 0 to 1.
        nesterov: Use Nesterov momentum; requires a momentum and no dampening.

    Raises:
        ConfigError: A value out of range, or Nesterov without momentum or with dampening.

    Example:
        >>> Sgd(momentum=0.9).slots
        ('momentum',)
    """

    name: ClassVar[str] = "sgd"
    row_wise: ClassVar[bool] = True
    momentum: NotNegative = 0.0
    dampening: Annotated[float, Range(0, 1)] = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, f"optimizer '{self.name}'")
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ConfigError(
                "Nesterov needs a momentum above 0 and a dampening of 0.",
                where=f"optimizer '{self.name}', nesterov",
                fix="Set momentum, for example 0.9, and leave dampening out.",
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """One momentum buffer if the momentum is not 0."""
        return ("momentum",) if self.momentum else ()

    def update(self, b: Builder, p: UpdateInputs) -> Update:
        """Append the nodes of one update; see the module's formulas."""
        grad = regularized(b, p)
        slots = {}
        if self.momentum:
            mu = b.const(self.momentum)
            decayed = b.op("Mul", p.slots["momentum"], mu)  # zeros on the first update
            added = grad
            if self.dampening:  # except on the first update
                double, dtype = ir.DataType.DOUBLE, ir.DataType.FLOAT
                first = b.op("Equal", p.step, b.const(1.0, double), dtype=ir.DataType.BOOL)
                one, damped = b.const(1.0), b.const(1.0 - self.dampening)
                factor = b.op("Where", first, one, damped, dtype=dtype)
                added = b.op("Mul", grad, factor)
            velocity = b.op("Add", decayed, added)
            slots["momentum"] = velocity
            grad = b.op("Add", grad, b.op("Mul", velocity, mu)) if self.nesterov else velocity
        return Update(b.op("Sub", p.weight, b.op("Mul", grad, p.learning_rate)), slots)


@dataclass(frozen=True)
class Momentum(Sgd):
    """Momentum, as :class:`Sgd` with a momentum of 0.9 unless given.

    Example:
        >>> Momentum().momentum
        0.9
    """

    name: ClassVar[str] = "momentum"
    momentum: NotNegative = 0.9
