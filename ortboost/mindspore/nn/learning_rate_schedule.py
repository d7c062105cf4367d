"""Learning-rate schedules: functions of the number of applied updates, from 0.

:mod:`ortboost.training.decay` has the formulas. All raise ``ArgumentTypeError`` for a wrong type
(numbers of steps are int, rates float) and ``ArgumentValueError`` for a number out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import (
    ArgumentValueError,
    Count,
    NotNegativeFloat,
    PositiveFloat,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.tensor import Tensor
from ortboost.training import decay

__all__ = [
    "CosineDecayLR",
    "ExponentialDecayLR",
    "InverseDecayLR",
    "LearningRateSchedule",
    "NaturalExpDecayLR",
    "PolynomialDecayLR",
    "WarmUpLR",
]


class LearningRateSchedule(Cell):
    """Base class of the schedules. Subclasses define ``construct(global_step)``.

    ``global_step`` is an int here; the result may be a float or a 0-d array.
    """

    def __call__(self, global_step: Any) -> Any:
        """The learning rate of a step as a float32 Tensor."""
        return Tensor(np.float32(self.construct(int(np.asarray(global_step).item()))))


class _Decay(LearningRateSchedule):
    """Decay by ``decay_rate`` per ``decay_steps``; with ``is_stair`` in discrete steps."""

    _formula: ClassVar[Callable[..., float]]

    @checked
    def __init__(
        self,
        learning_rate: PositiveFloat,
        decay_rate: PositiveFloat,
        decay_steps: Count,
        is_stair: bool = False,
    ) -> None:
        super().__init__()
        self.learning_rate, self.decay_rate = learning_rate, decay_rate
        self.decay_steps, self.is_stair = decay_steps, is_stair

    def construct(self, global_step: int) -> float:
        """The learning rate of one step."""
        settings = self.learning_rate, self.decay_rate, self.decay_steps, self.is_stair
        return self._formula(global_step, *settings)


class ExponentialDecayLR(_Decay):
    """Exponential decay.

    Example:
        >>> float(ExponentialDecayLR(1.0, 0.5, 2)(4))
        0.25
    """

    _formula = staticmethod(decay.exponential)


class NaturalExpDecayLR(_Decay):
    """Natural exponential decay; see :mod:`ortboost.training.decay` for its quirk."""

    _formula = staticmethod(decay.natural_exponential)


class InverseDecayLR(_Decay):
    """Inverse-time decay."""

    _formula = staticmethod(decay.inverse)


class PolynomialDecayLR(LearningRateSchedule):
    """Polynomial decay from one rate to another.

    Args:
        learning_rate: Initial rate, above 0.
        end_learning_rate: Final rate, 0 or more.
        decay_steps: Steps until the final rate.
        power: Exponent, above 0.
        update_decay_steps: Extend the decay to the next multiple of ``decay_steps`` once it is
            over.
    """

    @checked
    def __init__(
        self,
        learning_rate: PositiveFloat,
        end_learning_rate: NotNegativeFloat,
        decay_steps: Count,
        power: PositiveFloat,
        update_decay_steps: bool = False,
    ) -> None:
        super().__init__()
        self.learning_rate, self.end_learning_rate = learning_rate, end_learning_rate
        self.decay_steps, self.power = decay_steps, power
        self.update_decay_steps = update_decay_steps

    def construct(self, global_step: int) -> float:
        """The learning rate of one step."""
        ends, span = (self.learning_rate, self.end_learning_rate), self.decay_steps
        return decay.polynomial(global_step, *ends, span, self.power, self.update_decay_steps)


class CosineDecayLR(LearningRateSchedule):
    """Cosine decay from ``max_lr`` to a lower ``min_lr`` in ``decay_steps`` steps."""

    @checked
    def __init__(self, min_lr: NotNegativeFloat, max_lr: PositiveFloat, decay_steps: Count) -> None:
        super().__init__()
        if min_lr >= max_lr:
            raise ArgumentValueError(
                f"'min_lr' is {min_lr}, but 'max_lr' is {max_lr}.",
                where="cosine decay, min_lr",
                fix="Use min_lr < max_lr.",
            )
        self.min_lr, self.max_lr, self.decay_steps = min_lr, max_lr, decay_steps

    def construct(self, global_step: int) -> float:
        """The learning rate of one step."""
        return decay.cosine(global_step, self.min_lr, self.max_lr, self.decay_steps)


class WarmUpLR(LearningRateSchedule):
    """Linear warm-up from 0 to ``learning_rate`` in ``warmup_steps`` steps."""

    @checked
    def __init__(self, learning_rate: NotNegativeFloat, warmup_steps: Count) -> None:
        super().__init__()
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps

    def construct(self, global_step: int) -> float:
        """The learning rate of one step."""
        return decay.linear_warmup(global_step, self.learning_rate, self.warmup_steps)
