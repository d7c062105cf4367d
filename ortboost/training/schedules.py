"""Learning rate as a function of the number of *applied* updates.

A step that the loss scale skips applies no update, so it does not advance a schedule. The formulas that are
shared with MindSpore's names are in :mod:`ortboost.training.decay`.

References:
    Cosine: Loshchilov & Hutter, SGDR, ICLR 2017, eq. 5 without restarts (arXiv:1608.03983).
    Warm-up: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.2 (arXiv:1706.02677).
    StepDecay, MultiStep, LinearWarmup agree with torch.optim.lr_scheduler StepLR, MultiStepLR and
    LinearLR (https://docs.pytorch.org/docs/stable/optim.html), one ``scheduler.step()`` an update.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from ortboost.core.errors import ConfigError, nearest
from ortboost.training import decay

__all__ = [
    "Constant",
    "Cosine",
    "LinearWarmup",
    "MultiStep",
    "PerStep",
    "Schedule",
    "StepDecay",
    "schedule_from_dict",
    "schedule_to_dict",
]


def _require(good: bool, what: str, where: str, fix: str) -> None:
    if not good:
        raise ConfigError(what, where=f"learning rate schedule: {where}", fix=fix)


def _check_rate(rate: float, where: str) -> None:
    _require(
        math.isfinite(rate) and rate >= 0,
        f"A learning rate is {rate}.",
        where,
        "Use a finite number, 0 or more.",
    )


def _check_count(count: int, where: str, least: int = 1) -> None:
    _require(count >= least, f"'{where}' is {count}.", where, f"Use {least} or more.")


@dataclass(frozen=True)
class Constant:
    """The same rate always.

    Example:
        >>> Constant(0.1)(1000)
        0.1
    """

    lr: float

    def __post_init__(self) -> None:
        _check_rate(self.lr, "lr")

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return self.lr


@dataclass(frozen=True)
class PerStep:
    """A list of rates, one an applied update; the last value holds after its end.

    Example:
        >>> [PerStep((0.3, 0.2))(step) for step in (0, 1, 2)]
        [0.3, 0.2, 0.2]
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        _require(bool(self.values), "The list of rates is empty.", "values", "Give one or more.")
        for index, value in enumerate(self.values):
            _check_rate(value, f"values[{index}]")

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return self.values[min(step, len(self.values) - 1)]


@dataclass(frozen=True)
class StepDecay:
    """``lr * gamma ** (step // every)``.

    Example:
        >>> StepDecay(0.5, every=10, gamma=0.5)(20)
        0.125
    """

    lr: float
    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _check_rate(self.lr, "lr")
        _check_rate(self.gamma, "gamma")
        _check_count(self.every, "every")

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return decay.exponential(step, self.lr, self.gamma, self.every, stair=True)


@dataclass(frozen=True)
class MultiStep:
    """``lr * gamma ** (number of milestones <= step)``.

    Example:
        >>> [MultiStep(1.0, milestones=(2, 4), gamma=0.5)(step) for step in (1, 2, 4)]
        [1.0, 0.5, 0.25]
    """

    lr: float
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(int(m) for m in self.milestones))
        _check_rate(self.lr, "lr")
        _check_rate(self.gamma, "gamma")
        rising = all(a < b for a, b in zip(self.milestones, self.milestones[1:], strict=False))
        _require(
            bool(self.milestones) and rising and self.milestones[0] > 0,
            f"The milestones {list(self.milestones)} do not rise from 1 on.",
            "milestones",
            "List step numbers in rising order.",
        )

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return float(self.lr * self.gamma ** bisect.bisect_right(self.milestones, step))


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from ``lr`` at step 0 down to ``min_lr`` at ``total_steps``, held after that.

    ``min_lr + (lr - min_lr) * (1 + cos(pi * t / T)) / 2`` (SGDR, eq. 5).

    Example:
        >>> [round(Cosine(1.0, total_steps=10)(step), 6) for step in (0, 5, 10, 11)]
        [1.0, 0.5, 0.0, 0.0]
    """

    lr: float
    total_steps: int
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.lr, "lr")
        _check_rate(self.min_lr, "min_lr")
        _check_count(self.total_steps, "total_steps")
        _require(self.min_lr <= self.lr, "'min_lr' is above 'lr'.", "min_lr", "Use min_lr <= lr.")

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        return decay.cosine(step, self.min_lr, self.lr, self.total_steps)


@dataclass(frozen=True)
class LinearWarmup:
    """Rise linearly to the schedule ``after`` in ``steps`` updates, then follow it from its start.

    Step s < steps gives ``after(0) * (f + (1 - f) * s / steps)`` with ``f = start_factor``; later
    steps give ``after(s - steps)``.

    Example:
        >>> warm = LinearWarmup(Constant(1.0), steps=4, start_factor=0.0)
        >>> [warm(step) for step in (0, 1, 4, 5)]
        [0.0, 0.25, 1.0, 1.0]
    """

    after: Schedule
    steps: int
    start_factor: float = 0.1

    def __post_init__(self) -> None:
        _check_count(self.steps, "steps", least=0)
        _require(
            0.0 <= self.start_factor <= 1.0,
            f"'start_factor' is {self.start_factor}.",
            "start_factor",
            "Use a number from 0 to 1.",
        )

    def __call__(self, step: int) -> float:
        """The rate after ``step`` applied updates."""
        if step >= self.steps:
            return self.after(step - self.steps)
        return decay.linear_warmup(step, self.after(0), self.steps, self.start_factor)


Schedule: TypeAlias = Constant | PerStep | StepDecay | MultiStep | Cosine | LinearWarmup
"""Any of the schedules; each is frozen and maps applied updates to a rate."""

_KINDS: dict[str, type[Any]] = {
    "constant": Constant,
    "per_step": PerStep,
    "step": StepDecay,
    "multi_step": MultiStep,
    "cosine": Cosine,
    "warmup": LinearWarmup,
}


def schedule_to_dict(schedule: Schedule) -> dict[str, Any]:
    """A schedule as plain JSON data.

    Example:
        >>> schedule_to_dict(Constant(0.1))
        {'kind': 'constant', 'lr': 0.1}
    """
    kind = next(kind for kind, cls in _KINDS.items() if cls is type(schedule))
    data: dict[str, Any] = {"kind": kind}
    for field in dataclasses.fields(schedule):
        value = getattr(schedule, field.name)
        if field.name == "after":
            value = schedule_to_dict(value)
        data[field.name] = list(value) if isinstance(value, tuple) else value
    return data


def schedule_from_dict(data: dict[str, Any]) -> Schedule:
    """Rebuild a schedule from :func:`schedule_to_dict`.

    Raises:
        ConfigError: The kind or a key is unknown, or a value is out of range.
    """
    values = dict(data)
    kind = str(values.pop("kind", ""))
    if kind not in _KINDS:
        raise ConfigError(
            f"There is no schedule '{kind}'.", where="learning rate", fix=nearest(kind, _KINDS)
        )
    known = [field.name for field in dataclasses.fields(_KINDS[kind])]
    for name in values:
        if name not in known:
            raise ConfigError(
                f"A '{kind}' schedule has no '{name}'.",
                where="learning rate",
                fix=nearest(name, known),
            )
    if isinstance(values.get("after"), dict):
        values["after"] = schedule_from_dict(values["after"])
    try:
        schedule: Schedule = _KINDS[kind](**values)
    except TypeError as error:
        raise ConfigError(
            f"A '{kind}' schedule is incomplete.",
            where=f"learning rate: {error}",
            fix=f"It takes {', '.join(known)}.",
        ) from error
    return schedule
