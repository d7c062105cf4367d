"""What a training run is: one frozen configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from ortboost.core.errors import ConfigError, require_known
from ortboost.core.field_types import Range, check_kinds
from ortboost.core.loss_scale import DynamicScaleConfig, ScaleConfig
from ortboost.training.schedules import Constant, Schedule, schedule_to_dict

__all__ = ["LEARNING_RATE", "TrainConfig"]

LEARNING_RATE: Final = "learning_rate"
"""Name of the learning-rate input; further groups are ``learning_rate/<group>``."""

_Count: TypeAlias = Annotated[int, Range(0)]
_Positive: TypeAlias = Annotated[int, Range(1)]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a :class:`~ortboost.training.trainer.Trainer`.

    Args:
        epochs: Passes over the data.
        max_steps: Stop after so many steps (batches, skipped ones included); None for no limit.
        learning_rate: One schedule for all groups, or a schedule by learning-rate input
            (``learning_rate``, ``learning_rate/head``); a group that is not named follows
            ``learning_rate``. Schedules count applied updates.
        seed: Seed of the run; the step seeds (dropout) derive from it.
        prefetch: Batches to hold ready, read in threads; 0 is off.
        workers: Threads that read them; if not given one, and one for each core where images are
            decoded. The batches are the same for every number.
        metrics: Validation metrics besides the loss (``accuracy``, ``top5``).
        labels: The input that the metrics compare with.
        output: The output that holds the class scores; None for the model's first.
        validate_every: Validate every N steps too; 0 only at the end of epochs.
        checkpoint_every: Save every N steps too; 0 only at the end of epochs.
        log_every: Write every N-th step to the log; skipped steps are always written.
        loss_scale: How the step scales its loss, for the stop rule and the warnings.
        max_skips_at_min: Stop after so many steps in a row that overflow while the scale cannot
            shrink any further (or whose loss is not finite, when the scale is off).
        warn_halvings: Warn when the scale shrinks so often ...
        warn_window: ... within so many steps.
        flush: Apply a window of gradient accumulation that is not full at the end of an epoch, with
            the mean over the micro-batches that it has. Without it the window goes on in the next.
        debug_overflow: Diagnose at most so many skipped steps (the 1st, 2nd, 4th, 8th ... of the
            run): which tensors became non-finite first, and what went into them; 0 is off.
        overwrite: Start anew in a folder that holds checkpoints, and remove them.

    Raises:
        ConfigError: A value is out of range.
    """

    epochs: _Positive = 1
    max_steps: _Positive | None = None
    learning_rate: Schedule | Mapping[str, Schedule] = field(default_factory=lambda: Constant(0.01))
    seed: _Count = 0
    prefetch: _Count = 2
    workers: _Positive | None = None
    metrics: Sequence[str] = ("accuracy",)
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
        """A copy with other values of some fields.

        Args:
            settings: Field to value.

        Raises:
            ConfigError: There is no such field, or its value makes no sense.

        Example:
            >>> TrainConfig().with_settings({"epochs": 3}).epochs
            3
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in settings:
            require_known(name, known, f"There is no setting '{name}'.", "training", ConfigError)
        return dataclasses.replace(self, **settings)

    def schedules(self, groups: Sequence[str]) -> dict[str, Schedule]:
        """The schedule of each learning-rate input.

        Args:
            groups: Names of the inputs, as the stepper gives them.

        Raises:
            ConfigError: A schedule is for no group, or a group has no schedule.
        """
        if not isinstance(self.learning_rate, Mapping):
            return dict.fromkeys(groups, self.learning_rate)
        for name in self.learning_rate:
            require_known(
                name,
                groups,
                f"There is no learning-rate group '{name}'.",
                "learning_rate",
                ConfigError,
            )
        chosen = {
            g: self.learning_rate.get(g, self.learning_rate.get(LEARNING_RATE)) for g in groups
        }
        for name, schedule in chosen.items():
            if schedule is None:
                raise ConfigError(
                    f"The learning-rate group '{name}' has no schedule.",
                    where="learning_rate",
                    fix=f"Add one for '{name}' or one for '{LEARNING_RATE}', which all follow.",
                )
        return {name: schedule for name, schedule in chosen.items() if schedule is not None}

    def describe(self, groups: Sequence[str]) -> dict[str, Any]:
        """What a checkpoint remembers of the configuration, as JSON data."""
        schedules = self.schedules(groups)
        return {
            "seed": self.seed,
            "schedules": {name: schedule_to_dict(schedules[name]) for name in groups},
        }
