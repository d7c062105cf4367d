"""What a run makes of skipped steps: events of the scale, a history, diagnoses."""

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

_CALM = 20  # applied steps in a row that end the warm-up of the scale
_FEW = 0.01  # a share of skips that needs no words
_KEPT = 64  # steps of skips that are remembered


class Diagnosis(Protocol):
    """What a stepper found out about an overflow; as text, one line."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""


@runtime_checkable
class Diagnosable(Protocol):
    """A stepper that can tell where a step overflowed."""

    def watch(self) -> None:
        """Remember from now on what a diagnosis needs."""

    def diagnose(
        self, feeds: Mapping[str, Array], hyper: Mapping[str, float], *, seed: int
    ) -> Diagnosis:
        """Find where the last step, which had these arguments, overflowed."""


def first_scale(config: ScaleConfig) -> float:
    """The scale of the first step, in the float32 of the graph; of the first group, if there are."""
    if isinstance(config, GroupedScaleConfig):
        return float(config.starts()[0])
    return float(initial_state(config).scale)


def scale_change(before: float, after: float, overflow: bool, config: ScaleConfig) -> str | None:
    """What the state machine of the scale did in a step, in one word.

    Args:
        before: The scale of the step.
        after: The scale after it.
        overflow: Whether the step was skipped.
        config: How the loss is scaled.

    Returns:
        ``shrink``, ``grow``, ``minimum`` (an overflow, and the scale cannot shrink), ``held`` (an
        overflow that hysteresis forgives), or None. A grouped scale grows at every step; that is no
        news.

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
    """Whether the ``skips``-th skipped step of a run is to be diagnosed.

    The 1st, 2nd, 4th, 8th and so on, at most ``limit`` of them: while the scale finds its place
    there are many, and they are all alike.

    Example:
        >>> [n for n in range(1, 40) if diagnosis_due(n, 4)]
        [1, 2, 4, 8]
    """
    return skips > 0 and skips & (skips - 1) == 0 and skips.bit_length() <= limit


@dataclass
class SkipHistory:
    """When steps were skipped, as much as is needed to judge it.

    The warm-up of the scale, which starts high on purpose, ends with the first 20 applied steps in
    a row.

    Args:
        warm_skips: Steps skipped in the warm-up.
        warm_steps: Steps up to the last skip of the warm-up.
        warm: Whether the warm-up is still on.
        calm: Steps applied in a row up to now.
        later: Steps skipped after the warm-up.
        recent: Steps of the newest skips after the warm-up, at most 64.
    """

    warm_skips: int = 0
    warm_steps: int = 0
    warm: bool = True
    calm: int = 0
    later: int = 0
    recent: list[int] = field(default_factory=list)

    def add(self, step: int, overflow: bool) -> None:
        """Take note of a step."""
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
        """Whether skips are far more frequent of late than they were after the warm-up.

        The time since the warm-up is cut in the middle, or where memory ends. Growing is a share
        above 1 % in the newer part that is twice that of the older one and five skips.

        Args:
            step: Steps done.
        """
        forgotten = self.later - len(self.recent)
        cut = self.recent[0] - 1 if forgotten else (self.warm_steps + step) // 2
        newer = sum(at > cut for at in self.recent)
        before, after = cut - self.warm_steps, step - cut
        if before <= 0 or newer <= _FEW * after:
            return False
        return newer >= 2 * (self.later - newer) * after / before + 5
