"""The learning-rate schedules of a program."""

from __future__ import annotations

from collections.abc import Mapping

from ortboost.program.config import ProgramConfig
from ortboost.program.names import LEARNING_RATE, learning_rate_name
from ortboost.training import Schedule, parse_schedule

__all__ = ["ANY_STEPS", "schedules"]

ANY_STEPS = 1 << 40
"""More updates than any warm-up has, to check a schedule before the length of a run is known."""


def schedules(
    config: ProgramConfig, learning_rate: str | float | None, total: int | None
) -> Schedule | Mapping[str, Schedule]:
    """Parse the schedule of each learning-rate input of a program.

    Args:
        config: The configuration of the program.
        learning_rate: A number, or a schedule as text; that of the configuration if not given.
        total: Number of updates of the run; ``None`` if unknown.

    Raises:
        UsageError, ConfigError: A schedule is misspelled, or needs the length of the run.
    """
    rate = config.learning_rate if learning_rate is None else learning_rate
    common = parse_schedule(rate, total_steps=total)
    named = {
        learning_rate_name(group.name): parse_schedule(group.learning_rate, total_steps=total)
        for group in config.groups
        if group.learning_rate is not None
    }
    return {LEARNING_RATE: common, **named} if named else common
