"""The learning rate as a function of the number of *applied* updates.

A schedule is called with that number and returns the rate of the next update. A step that is
skipped because of an overflow does not advance a schedule. The formulas shared with the schedules
of the MindSpore API are in :mod:`ortboost.training.decay`.

References:
    Cosine: Loshchilov & Hutter, SGDR, ICLR 2017, eq. 5 without restarts (arXiv:1608.03983).
    Warm-up: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.2 (arXiv:1706.02677).
    StepDecay, MultiStep, Polynomial, LinearWarmup agree with torch.optim.lr_scheduler StepLR,
    MultiStepLR, PolynomialLR and LinearLR, with one ``scheduler.step()`` per update
    (https://docs.pytorch.org/docs/stable/optim.html).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds, describe_family
from ortboost.training import decay

__all__ = [
    "Constant",
    "Cosine",
    "LinearWarmup",
    "MultiStep",
    "PerStep",
    "Polynomial",
    "Schedule",
    "StepDecay",
]

_WHERE: Final = "learning rate schedule"
_Rate: TypeAlias = Annotated[float, Range(0)]


class _Checked(Configuration):
    """Base of the schedules: checks types and ranges of the fields."""

    def __post_init__(self) -> None:
        check_kinds(self, _WHERE)


@dataclass(frozen=True)
class Constant(_Checked):
    """A constant rate.

    Example:
        >>> Constant(0.1)(1000)
        0.1
    """

    lr: _Rate

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return self.lr


@dataclass(frozen=True)
class PerStep(_Checked):
    """A list of rates, one per applied update; the last one is kept after the end of the list.

    Example:
        >>> [PerStep((0.3, 0.2))(step) for step in (0, 1, 2)]
        [0.3, 0.2, 0.2]
    """

    values: tuple[_Rate, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise ConfigError(
                "The list of rates is empty.", where=f"{_WHERE}, values", fix="Pass at least one."
            )

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return self.values[min(step, len(self.values) - 1)]


@dataclass(frozen=True)
class StepDecay(_Checked):
    """``lr * gamma ** (step // every)``.

    Example:
        >>> StepDecay(0.5, every=10, gamma=0.5)(20)
        0.125
    """

    lr: _Rate
    every: Annotated[int, Range(1)]
    gamma: _Rate = 0.1

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return decay.exponential(step, self.lr, self.gamma, self.every, stair=True)


@dataclass(frozen=True)
class MultiStep(_Checked):
    """``lr * gamma ** (number of milestones <= step)``.

    Example:
        >>> [MultiStep(1.0, milestones=(2, 4), gamma=0.5)(step) for step in (1, 2, 4)]
        [1.0, 0.5, 0.25]
    """

    lr: _Rate
    milestones: tuple[int, ...]
    gamma: _Rate = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "milestones", tuple(self.milestones))
        rising = all(a < b for a, b in itertools.pairwise((0, *self.milestones)))
        if not self.milestones or not rising:
            raise ConfigError(
                f"The milestones {list(self.milestones)} are not increasing from 1.",
                where=f"{_WHERE}, milestones",
                fix="List step numbers in increasing order.",
            )

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return float(self.lr * self.gamma ** bisect.bisect_right(self.milestones, step))


@dataclass(frozen=True)
class _Falling(_Checked):
    """Base of the schedules from ``lr`` at step 0 to ``min_lr`` at ``total_steps``."""

    lr: _Rate
    total_steps: Annotated[int, Range(1)]
    min_lr: _Rate = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_lr > self.lr:
            raise ConfigError(
                "'min_lr' is above 'lr'.", where=f"{_WHERE}, min_lr", fix="Use min_lr <= lr."
            )


@dataclass(frozen=True)
class Cosine(_Falling):
    """Half a cosine from ``lr`` at step 0 down to ``min_lr`` at ``total_steps``, then constant.

    ``min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2`` (SGDR, eq. 5).

    Example:
        >>> [round(Cosine(1.0, total_steps=10)(step), 6) for step in (0, 5, 10, 11)]
        [1.0, 0.5, 0.0, 0.0]
    """

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return decay.cosine(step, self.min_lr, self.lr, self.total_steps)


@dataclass(frozen=True)
class Polynomial(_Falling):
    """A power of the remaining steps, by default a straight line, then constant.

    ``min_lr + (lr - min_lr) * (1 - t / T) ** power``, as torch's PolynomialLR for ``min_lr = 0``.

    Example:
        >>> [Polynomial(1.0, total_steps=10)(step) for step in (0, 5, 10, 11)]
        [1.0, 0.5, 0.0, 0.0]
    """

    power: Annotated[float, Range(above=0)] = 1.0

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return decay.polynomial(step, self.lr, self.min_lr, self.total_steps, self.power)


@dataclass(frozen=True)
class LinearWarmup(_Checked):
    """Rise linearly to the schedule ``after`` in ``steps`` updates, then follow it from its start.

    Step s < steps gives ``after(0) * (f + (1 - f) * s / steps)`` with ``f = start_factor``; later
    steps give ``after(s - steps)``.

    Example:
        >>> warm = LinearWarmup(Constant(1.0), steps=4, start_factor=0.0)
        >>> [warm(step) for step in (0, 1, 4, 5)]
        [0.0, 0.25, 1.0, 1.0]
    """

    after: Schedule
    steps: Annotated[int, Range(0)]
    start_factor: Annotated[float, Range(0, 1)] = 0.1

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        if step >= self.steps:
            return self.after(step - self.steps)
        return decay.linear_warmup(step, self.after(0), self.steps, self.start_factor)


Schedule: TypeAlias = (
    Constant | PerStep | StepDecay | MultiStep | Cosine | Polynomial | LinearWarmup
)
"""Any of the schedules; each is frozen and maps applied updates to a rate."""

KINDS: Final[Mapping[str, type[Any]]] = {
    "constant": Constant,
    "per_step": PerStep,
    "step": StepDecay,
    "multi_step": MultiStep,
    "cosine": Cosine,
    "polynomial": Polynomial,
    "warmup": LinearWarmup,
}
"""Kind, as written in checkpoints, to class."""

describe_family(Schedule, "kind", KINDS, words="a schedule")
