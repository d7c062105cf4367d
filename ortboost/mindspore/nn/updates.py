"""How an optimizer is applied: at every step, to groups in turns, over windows of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.roles import StepTaker
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.nn.optimizer import Optimizer

__all__ = ["OptimizerWrapper", "Updates", "updates_of"]


@dataclass(frozen=True)
class Updates:
    """What a training step makes of its optimizer.

    Args:
        optimizer: The update rule with its parameters and rates.
        accumulate: Micro-batches an update.
        freeze: Which parameters are trained at which update; ``None`` for all.
        taker: What moves the parameters in place of the rule, if anything does.
        order: The trained parameters as ``taker`` counts on them.
    """

    optimizer: Optimizer
    accumulate: int = 1
    freeze: FreezeConfig | None = None
    taker: StepTaker | None = None
    order: tuple[str, ...] = ()


class OptimizerWrapper(Cell):
    """Base of what stands around an optimizer: it answers like the optimizer inside.

    Args:
        optimizer: An optimizer, or another wrapper.
    """

    in_words: ClassVar[str] = Optimizer.in_words

    def __init__(self, optimizer: Optimizer | OptimizerWrapper) -> None:
        super().__init__()
        self.optimizer = optimizer

    def updates(self) -> Updates:
        """What a training step makes of it."""
        return updates_of(self.optimizer)

    @property
    def parameters(self) -> Any:
        """The parameters of the optimizer."""
        return self.optimizer.parameters

    @property
    def learning_rate(self) -> Any:
        """The rate as it was given; can be replaced."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = value

    @property
    def global_step(self) -> int:
        """Updates applied so far."""
        step: int = self.optimizer.global_step
        return step

    def get_lr(self) -> float | tuple[float, ...]:
        """The rate of the next update; with groups one for each parameter."""
        rate: float | tuple[float, ...] = self.optimizer.get_lr()
        return rate


def updates_of(optimizer: Optimizer | OptimizerWrapper) -> Updates:
    """How an optimizer, or what stands around one, is applied."""
    return optimizer.updates() if isinstance(optimizer, OptimizerWrapper) else Updates(optimizer)
