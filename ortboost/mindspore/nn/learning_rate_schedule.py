r"""Learning rates as a function of the number of applied updates, `t` from 0.

With `r = t / decay_steps`, floored with ``is_stair``:

- exponential: `lr d^r`;  inverse: `lr / (1 + d r)`;
- natural exponential: `lr exp(-d t)`, with ``is_stair`` `t` floored to a multiple of `decay_steps`:
  what MindSpore 2.10 computes, though its page writes `exp(-d t / decay_steps)`;
- polynomial, cosine, warm-up: as in :mod:`ortboost.mindspore.nn.dynamic_lr`, in steps instead of epochs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ortboost.mindspore.core.arguments import check_range, check_type
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.tensor import Tensor

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


class _Decay(LearningRateSchedule):
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

    def __init__(
        self, learning_rate: float, decay_rate: float, decay_steps: int, is_stair: bool = False
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        _check_positive(owner, "learning_rate", learning_rate, float)
        _check_positive(owner, "decay_rate", decay_rate, float)
        _check_positive(owner, "decay_steps", decay_steps, int)
        check_type(owner, "is_stair", is_stair, bool)
        self.learning_rate, self.decay_rate = learning_rate, decay_rate
        self.decay_steps, self.is_stair = decay_steps, is_stair

    def _ratio(self, step: int) -> float:
        return step // self.decay_steps if self.is_stair else step / self.decay_steps


class ExponentialDecayLR(_Decay):
    """Exponential decay; see the module for the formula.

    Example:
        >>> float(ExponentialDecayLR(1.0, 0.5, 2)(4))
        0.25
    """

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        return float(self.learning_rate * self.decay_rate ** self._ratio(global_step))


class NaturalExpDecayLR(_Decay):
    """Natural exponential decay; see the module for the formula and its quirk."""

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        step = global_step // self.decay_steps * self.decay_steps if self.is_stair else global_step
        return self.learning_rate * math.exp(-self.decay_rate * step)


class InverseDecayLR(_Decay):
    """Inverse-time decay; see the module for the formula."""

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        return self.learning_rate / (1 + self.decay_rate * self._ratio(global_step))


class PolynomialDecayLR(LearningRateSchedule):
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
        owner = type(self).__name__
        _check_positive(owner, "learning_rate", learning_rate, float)
        check_type(owner, "end_learning_rate", end_learning_rate, float)
        check_range(owner, "end_learning_rate", end_learning_rate, 0)
        _check_positive(owner, "decay_steps", decay_steps, int)
        _check_positive(owner, "power", power, float)
        check_type(owner, "update_decay_steps", update_decay_steps, bool)
        self.learning_rate, self.end_learning_rate = learning_rate, end_learning_rate
        self.decay_steps, self.power = decay_steps, power
        self.update_decay_steps = update_decay_steps

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        span = self.decay_steps
        if self.update_decay_steps:
            span *= max(1, math.ceil(global_step / span))
        share = 1 - min(global_step, span) / span
        drop = self.learning_rate - self.end_learning_rate
        return float(drop * share**self.power + self.end_learning_rate)


class CosineDecayLR(LearningRateSchedule):
    """Cosine decay from ``max_lr`` to ``min_lr`` in ``decay_steps`` steps.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range, or ``min_lr`` is not below ``max_lr``.
    """

    def __init__(self, min_lr: float, max_lr: float, decay_steps: int) -> None:
        super().__init__()
        owner = type(self).__name__
        check_type(owner, "min_lr", min_lr, float)
        check_range(owner, "min_lr", min_lr, 0)
        check_type(owner, "max_lr", max_lr, float)
        check_range(owner, "max_lr", max_lr, min_lr, open_low=True)
        _check_positive(owner, "decay_steps", decay_steps, int)
        self.min_lr, self.max_lr, self.decay_steps = min_lr, max_lr, decay_steps

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        share = min(global_step, self.decay_steps) / self.decay_steps
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1 + math.cos(math.pi * share))


class WarmUpLR(LearningRateSchedule):
    """Linear warm-up from 0 to ``learning_rate`` in ``warmup_steps`` steps.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range.
    """

    def __init__(self, learning_rate: float, warmup_steps: int) -> None:
        super().__init__()
        owner = type(self).__name__
        check_type(owner, "learning_rate", learning_rate, float)
        check_range(owner, "learning_rate", learning_rate, 0)
        _check_positive(owner, "warmup_steps", warmup_steps, int)
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps

    def construct(self, global_step: int) -> float:
        """The rate of one step."""
        return self.learning_rate * min(global_step, self.warmup_steps) / self.warmup_steps


def _check_positive(owner: str, name: str, value: float, kind: type) -> None:
    check_type(owner, name, value, kind)
    check_range(owner, name, value, 0, open_low=True)
