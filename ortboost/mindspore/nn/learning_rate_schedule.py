"""Learning rates as a function of the number of applied updates, from 0; formulas in ``training.decay``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.decay import Rate, cosine, falling, polynomial, warmup
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
    """Base of the schedules. Subclasses define ``construct(global_step)``.

    ``global_step`` is an int here; the answer may be a float or a 0-d array.
    """

    def __call__(self, global_step: Any) -> Any:
        """The rate of a step as a float32 Tensor."""
        return Tensor(np.float32(self.construct(int(np.asarray(global_step).item()))))


class _Formula(LearningRateSchedule):
    """A schedule whose rate is one of the formulas."""

    _rate: Rate

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        return self._rate(global_step)


class _Decay(_Formula):
    """What three of the schedules share.

    Args:
        learning_rate: First rate, above 0.
        decay_rate: Strength of the decay, above 0.
        decay_steps: Steps of one decay.
        is_stair: Fall in jumps.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is not above 0.
    """

    _formula: ClassVar[Callable[..., float]]

    def __init__(
        self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False
    ) -> None:
        super().__init__()
        owner, formula = type(self).__name__, type(self)._formula
        self._rate = falling(
            owner, formula, learning_rate, decay_rate, decay_steps, is_stair, "steps"
        )
        self.learning_rate, self.decay_rate = learning_rate, decay_rate
        self.decay_steps, self.is_stair = decay_steps, is_stair


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


class PolynomialDecayLR(_Formula):
    """Polynomial decay from one rate to another.

    Args:
        learning_rate: First rate, above 0.
        end_learning_rate: Last rate, 0 or more.
        decay_steps: Steps until the last rate.
        power: Exponent, above 0.
        update_decay_steps: Stretch the span to a multiple of ``decay_steps`` when it is passed.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range.
    """

    def __init__(
        self,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float,
        update_decay_steps: bool = False,
    ) -> None:
        super().__init__()
        self._rate = polynomial(
            type(self).__name__,
            learning_rate,
            end_learning_rate,
            decay_steps,
            power,
            update_decay_steps,
            "steps",
        )
        self.learning_rate, self.end_learning_rate = learning_rate, end_learning_rate
        self.decay_steps, self.power = decay_steps, power
        self.update_decay_steps = update_decay_steps


class CosineDecayLR(_Formula):
    """Cosine decay from ``max_lr`` to ``min_lr`` in ``decay_steps`` steps.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range, or ``min_lr`` is not below ``max_lr``.
    """

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        self._rate = cosine(type(self).__name__, min_lr, max_lr, decay_steps, "steps")
        self.min_lr, self.max_lr, self.decay_steps = min_lr, max_lr, decay_steps


class WarmUpLR(_Formula):
    """Linear warm-up from 0 to ``learning_rate`` in ``warmup_steps`` steps.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range.
    """

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()
        self._rate = warmup(type(self).__name__, learning_rate, warmup_steps, "steps", zero=True)
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
