"""Skipped steps of a run: events of the loss scale, history and diagnoses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    GroupedScaleConfig,
    ScaleConfig,
    initial_state,
)
from ortboost.training.protocols import Array

__all__ = [
    "Diagnosable",
    "Diagnosis",
    "SkipHistory",
    "diagnosis_due",
    "first_scale",
    "scale_change",
]

_CALM = 20  # consecutive applied steps that end the warm-up of the scale
_NEGLIGIBLE = 0.01  # a share of skips that is not worth reporting
_KEPT = 64  # number of recent skips whose steps are kept


class Diagnosis(Protocol):
    """Where and why a step overflowed; ``str()`` gives one line."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""


@runtime_checkable
class Diagnosable(Protocol):
    """A stepper that can find where a step overflowed."""

    def watch(self) -> None:
        """Start to record what a diagnosis needs."""

    def diagnose(
        self, feeds: Mapping[str, Array], hyper: Mapping[str, float], *, seed: int
    ) -> Diagnosis:
        """Find where the last step, run with these arguments, overflowed."""


def first_scale(config: ScaleConfig) -> float:
    """The scale of the first step (of the first group, if grouped), rounded to float32."""
    if isinstance(config, GroupedScaleConfig):
        return float(config.starts()[0])
    return float(initial_state(config).scale)


def scale_change(before: float, after: float, overflow: bool, config: ScaleConfig) -> str | None:
    """How the loss scale changed in a step, in one word.

    Returns:
        ``shrink``, ``grow``, ``minimum`` (an overflow, but the scale cannot shrink), ``held`` (an
        overflow that the hysteresis tolerates), or None. Growing is not reported for a grouped
        scale, which grows at every step.

    Example:
        >>> scale_change(4.0, 2.0, True, DynamicScaleConfig())
        'shrink'
    """
    if after < before:
        return "shrink"
    if after > before:
        return None if isinstance(config, GroupedScaleConfig) else "grow"
    if not (overflow and isinstance(config, DynamicScaleConfig)):
        return None
    return "held" if after > config.min_scale else "minimum"


def diagnosis_due(skips: int, limit: int) -> bool:
    """Whether to diagnose the ``skips``-th skipped step of a run, at most ``limit`` times.

    True for the 1st, 2nd, 4th, 8th and so on: while the scale settles, many steps are skipped, all
    for the same reason.

    Example:
        >>> [n for n in range(1, 40) if diagnosis_due(n, 4)]
        [1, 2, 4, 8]
    """
    # A power of two has a single bit.
    return skips > 0 and skips & (skips - 1) == 0 and skips.bit_length() <= limit


@dataclass
class SkipHistory:
    """A bounded record of when steps were skipped.

    The scale starts high on purpose; its warm-up ends after the first 20 consecutive applied steps.

    Args:
        warm_skips: Steps skipped during the warm-up.
        warm_steps: Steps up to the last skip of the warm-up.
        warm: Whether the warm-up has not ended.
        calm: Consecutive applied steps up to now.
        later: Steps skipped after the warm-up.
        recent: Step numbers of the newest skips after the warm-up, at most 64.
    """

    warm_skips: int = 0
    warm_steps: int = 0
    warm: bool = True
    calm: int = 0
    later: int = 0
    recent: list[int] = field(default_factory=list)

    def add(self, step: int, overflow: bool) -> None:
        """Record a step."""
        if not overflow:
            self.calm += 1
            self.warm = self.warm and self.calm < _CALM
            return
        self.calm = 0
        if self.warm:
            self.warm_skips, self.warm_steps = self.warm_skips + 1, step
        else:
            self.later += 1
            self.recent = [*self.recent, step][-_KEPT:]

    @property
    def total(self) -> int:
        """All skipped steps."""
        return self.warm_skips + self.later

    def growing(self, step: int) -> bool:
        """Whether skips have become far more frequent recently.

        The steps since the warm-up are split in the middle, or at the oldest recorded skip. Skips
        are growing if the newer part has more than 1 % of them, and at least twice the rate of the
        older part plus five skips.
        """
        forgotten = self.later - len(self.recent)  # skips whose steps are no longer known
        cut = self.recent[0] - 1 if forgotten else (self.warm_steps + step) // 2
        newer = sum(at > cut for at in self.recent)
        before, after = cut - self.warm_steps, step - cut
        if before <= 0 or newer <= _NEGLIGIBLE * after:
            return False
        return newer >= 2 * (self.later - newer) * after / before + 5
