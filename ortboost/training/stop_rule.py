"""When to warn and when to stop: rules on the sequence of step results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    GroupedScaleConfig,
    NoScaleConfig,
    scale_text,
)
from ortboost.core.step_result import StepResult
from ortboost.training.config import TrainConfig

__all__ = ["StopRule"]


class StopRule:
    """Counts the overflows that a smaller scale cannot prevent, and how often the scale shrinks.

    A step is unrecoverable if it overflows although a dynamic scale is at its minimum (or infinite,
    which no overflow reduces), or although the scale is fixed. Without loss scaling a step is
    unrecoverable if it overflows or its loss is not finite. ``unrecoverable`` is the number of
    such steps in a row.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.unrecoverable = 0
        self._shrinkings: list[int] = []
        self._scale: float | None = None

    def observe(self, step: int, result: StepResult) -> str | None:
        """Record a step; a warning for the user, if any."""
        scale = self._config.loss_scale
        bad = result.overflow
        if isinstance(scale, DynamicScaleConfig):
            stuck = math.isinf(result.loss_scale)
            bad = bad and (stuck or result.loss_scale <= scale.min_scale)
        elif isinstance(scale, GroupedScaleConfig):
            # The step returns only one of the scales: count the overflows that bring any to its
            # minimum.
            bad = bad and result.consecutive_skips > _to_minimum(scale)
        elif isinstance(scale, NoScaleConfig):
            bad = bad or not math.isfinite(result.loss)
        self.unrecoverable = self.unrecoverable + 1 if bad else 0
        return self._shrinking(step, result)

    @property
    def dynamic(self) -> bool:
        """Whether the scale can change."""
        return isinstance(self._config.loss_scale, (DynamicScaleConfig, GroupedScaleConfig))

    @property
    def diverged(self) -> bool:
        """Whether the run should stop."""
        return self.unrecoverable >= self._config.max_skips_at_min

    def _shrinking(self, step: int, result: StepResult) -> str | None:
        before, self._scale = self._scale, float(result.loss_scale)
        if before is None or result.loss_scale >= before:
            return None
        window, limit = self._config.warn_window, self._config.warn_halvings
        self._shrinkings = [s for s in self._shrinkings if s > step - window] + [step]
        # The scale starts high on purpose and shrinks until it settles: nothing to warn of.
        if len(self._shrinkings) < limit or result.applied_steps == 0:
            return None
        # Begin anew: the same shrinkings are not reported twice.
        count, self._shrinkings = len(self._shrinkings), []
        return (
            f"step {step}: the loss scale shrank {count} times within {window} steps, "
            f"to {scale_text(result.loss_scale)}; training stops after "
            f"{self._config.max_skips_at_min} "
            "overflows at its minimum. A lower learning rate or gradient clipping may help."
        )

    def state_dict(self) -> dict[str, Any]:
        """The counters, as JSON data."""
        return {
            "hopeless": self.unrecoverable,
            "shrinkings": list(self._shrinkings),
            "scale": self._scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters of :meth:`state_dict`."""
        self.unrecoverable = int(state["hopeless"])
        self._shrinkings = [int(step) for step in state["shrinkings"]]
        self._scale = state["scale"]


def _to_minimum(policy: GroupedScaleConfig) -> int:
    """Consecutive overflows that take a group from the largest scale to the smallest."""
    largest = float(policy.starts().max()) if policy.max_scale is None else policy.max_scale
    smallest = policy.min_scale or 1.0
    # The smallest n with largest * shrink^n <= smallest.
    return math.ceil(math.log(max(largest / smallest, 1.0)) / -math.log(policy.shrink))
