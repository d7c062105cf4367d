"""The configuration of a training run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, require_known
from ortboost.core.field_types import Range, check_kinds, write_config
from ortboost.core.loss_scale import DynamicScaleConfig, ScaleConfig
from ortboost.training.metrics import Metric
from ortboost.training.schedules import Constant, Schedule

__all__ = ["LEARNING_RATE", "TrainConfig"]

LEARNING_RATE: Final = "learning_rate"
"""Name of the learning-rate input; further groups are ``learning_rate/<group>``."""

_Count: TypeAlias = Annotated[int, Range(0)]
_Positive: TypeAlias = Annotated[int, Range(1)]


@dataclass(frozen=True)
class TrainConfig(Configuration):
    """Settings of a :class:`~ortboost.training.trainer.Trainer`.

    Args:
        epochs: Passes over the data.
        max_steps: Stop after this many steps (batches, including skipped ones); None for no limit.
        learning_rate: One schedule for all groups, or a mapping from learning-rate input
            (``learning_rate``, ``learning_rate/head``) to schedule; a group without an entry uses
            that of ``learning_rate``. Schedules count applied updates. None for the constant 0.01,
            or in :func:`ortboost.train` for that of the program.
        seed: Seed of the run; the seeds of the steps (dropout) are derived from it.
        prefetch: Number of batches to read ahead in threads; 0 disables prefetching.
        workers: Number of reader threads; by default one, or one per core where images are
            decoded. The batches do not depend on it.
        metrics: Validation metrics besides the loss: names (``accuracy``, ``f1``, ...; see
            :data:`ortboost.training.metrics.METRICS`) or metrics of your own.
        labels: The input with the labels, for the metrics.
        output: The output with the class scores; None for the first output of the model.
        validate_every: Also validate every N steps; 0 validates at the end of epochs only.
        checkpoint_every: Also save every N steps; 0 saves at the end of epochs only.
        log_every: Log every N-th step; skipped steps are always logged.
        loss_scale: The loss scaling of the step, for the stop rule and the warnings.
        max_skips_at_min: Stop after this many consecutive steps that overflow while the scale
            cannot shrink any further (or that have a non-finite loss, without loss scaling).
        warn_halvings: Warn when the scale shrinks this many times within ``warn_window`` steps.
        warn_window: The number of steps for ``warn_halvings``.
        flush: At the end of an epoch, apply an incomplete window of gradient accumulation, as the
            mean over its micro-batches. If False, the window continues in the next epoch.
        debug_overflow: Diagnose at most this many skipped steps (the 1st, 2nd, 4th, 8th ... of the
            run): which tensors became non-finite first, and from which inputs; 0 disables it.
        overwrite: Start over in a folder that has checkpoints, and remove them.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> TrainConfig(epochs=10, validate_every=100, metrics=("accuracy", "top5")).prefetch
        2
    """

    epochs: _Positive = 1
    max_steps: _Positive | None = None
    learning_rate: Schedule | Mapping[str, Schedule] | None = None
    seed: _Count = 0
    prefetch: _Count = 2
    workers: _Positive | None = None
    metrics: Sequence[str | Metric] = ("accuracy",)
    labels: str = "labels"
    output: str | None = None
    validate_every: _Count = 0
    checkpoint_every: _Count = 0
    log_every: _Positive = 1
    loss_scale: ScaleConfig = field(default_factory=DynamicScaleConfig)
    max_skips_at_min: _Positive = 50
    warn_halvings: _Positive = 8
    warn_window: _Positive = 100
    debug_overflow: _Count = 0
    flush: bool = True
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_kinds(self, "")

    def with_settings(self, settings: Mapping[str, Any]) -> TrainConfig:
        """A copy with some fields replaced.

        Raises:
            ConfigError: A field is unknown, or its value is invalid.

        Example:
            >>> TrainConfig().with_settings({"epochs": 3}).epochs
            3
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            require_known(name, known, f"Unknown setting '{name}'.", "training", ConfigError)
        return dataclasses.replace(self, **settings)

    def schedules(self, groups: Sequence[str]) -> dict[str, Schedule]:
        """The schedule of each learning-rate input, see ``Stepper.groups``.

        Raises:
            ConfigError: A schedule belongs to no group, or a group has no schedule.
        """
        if not isinstance(self.learning_rate, Mapping):
            return dict.fromkeys(groups, self.learning_rate or Constant(0.01))
        for name in self.learning_rate:
            require_known(
                name, groups, f"Unknown learning-rate group '{name}'.", "learning_rate", ConfigError
            )
        chosen: dict[str, Schedule] = {}
        for name in groups:
            schedule = self.learning_rate.get(name, self.learning_rate.get(LEARNING_RATE))
            if schedule is None:
                raise ConfigError(
                    f"The learning-rate group '{name}' has no schedule.",
                    where="learning_rate",
                    fix=f"Add one for '{name}', or one for '{LEARNING_RATE}' as the default.",
                )
            chosen[name] = schedule
        return chosen

    def describe(self, groups: Sequence[str]) -> dict[str, Any]:
        """The part of the configuration that checkpoints store, as JSON data."""
        schedules = self.schedules(groups)
        return {
            "seed": self.seed,
            "schedules": {name: write_config(schedules[name]) for name in groups},
        }
