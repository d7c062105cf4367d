"""How optimizers are applied: at every step, to groups in turns, over windows of micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.roles import LineSearch
from ortboost.mindspore.core.arguments import NotInThisVersionError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.optimizer import Optimizer

__all__ = ["OptimizerWrapper", "Updates", "updates_of"]


@dataclass(frozen=True)
class Updates:
    """How a training step applies its optimizer.

    Args:
        optimizer: The optimizer: update rule, parameters and rates.
        accumulate: Micro-batches per update.
        freeze: The schedule of trained parameters; ``None`` to train all at each update.
        line_search: The boost that updates the parameters in place of the rule, if any.
        order: The trained parameters in the order that ``line_search`` expects.
    """

    optimizer: Optimizer
    accumulate: int = 1
    freeze: FreezeConfig | None = None
    line_search: LineSearch | None = None
    order: tuple[str, ...] = ()


class OptimizerWrapper(Cell):
    """Base class of wrappers of an optimizer or wrapper, which have its properties."""

    in_words: ClassVar[str] = Optimizer.in_words

    def __init__(self, optimizer: Optimizer | OptimizerWrapper) -> None:
        super().__init__()
        self.optimizer = optimizer

    def updates(self) -> Updates:
        """How a training step applies it."""
        return updates_of(self.optimizer)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Not supported: gradients are part of the step graph."""
        name = type(self).__name__
        raise NotInThisVersionError(
            f"{name} cannot be called with gradients.",
            where=name,
            fix="Give it to BoostTrainOneStepCell in place of the optimizer.",
        )

    @property
    def parameters(self) -> Any:
        """The parameters of the optimizer."""
        return self.optimizer.parameters

    @property
    def learning_rate(self) -> Any:
        """The learning rate as given; may be replaced."""
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.optimizer.learning_rate = value

    @property
    def global_step(self) -> Tensor:
        """Number of applied updates."""
        step: Tensor = self.optimizer.global_step
        return step

    def get_lr(self) -> Tensor | tuple[Tensor, ...]:
        """The learning rate of the next update; with groups one per parameter."""
        rate: Tensor | tuple[Tensor, ...] = self.optimizer.get_lr()
        return rate


def updates_of(optimizer: Optimizer | OptimizerWrapper) -> Updates:
    """How an optimizer or a wrapper is applied."""
    return optimizer.updates() if isinstance(optimizer, OptimizerWrapper) else Updates(optimizer)
