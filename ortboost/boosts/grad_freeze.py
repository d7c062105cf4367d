"""Gradient freeze: train only a part of the network at some updates.

:mod:`ortboost.boosts.freeze_schedule` makes the schedule, :mod:`ortboost.boosts.freeze_groups` the
groups of parameters; both use MindSpore's configuration,
:class:`~ortboost.boosts.freeze_schedule.FreezeConfig`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext
from ortboost.boosts.freeze_groups import freeze_groups
from ortboost.boosts.freeze_schedule import LONGEST, FreezeConfig, freeze_schedule
from ortboost.boosts.roles import UpdateSplitter
from ortboost.core.field_types import Range
from ortboost.core.report import Report

__all__ = ["GradFreeze"]

# The freeze types 0, 1 and 2.
_NAMES: Final[Sequence[Literal["continuous", "interval", "cost"]]] = (
    "continuous",
    "interval",
    "cost",
)


@dataclass(frozen=True)
class GradFreeze(UpdateSplitter):
    """Gradient freeze.

    Args:
        p: Share of the updates that train everything, 0 to 1 (``freeze_p``).
        by: ``interval``, ``continuous`` or ``cost``; see :mod:`ortboost.boosts.freeze_schedule`
            (``freeze_type``).
        groups: Number of groups, or the names of the parameters of each (``param_groups``,
            ``groups``).
        steps: Length of the schedule in updates, after which it repeats (``total_steps``).
        seed: Seed of the random draws.
        separate_state: Whether each group has its own optimizer state.
        sequence: An explicit schedule, instead of a drawn one.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> GradFreeze(p=0.4, by="cost").config.freeze_type
        2
    """

    p: Annotated[float, Range(0, 1)] = 0.7
    by: Literal["interval", "continuous", "cost"] = "interval"
    groups: Annotated[int, Range(1, below=LONGEST)] | tuple[tuple[str, ...], ...] = 10
    steps: Annotated[int, Range(1, below=LONGEST)] = 65536
    seed: Annotated[int, Range(0, below=2**32)] = 0
    separate_state: bool = True
    sequence: tuple[int, ...] | None = None

    name: ClassVar[str] = "grad-freeze"
    card: ClassVar[str] = "grad-freeze"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.config  # checks groups and sequence

    @property
    def config(self) -> FreezeConfig:
        """The same settings with MindSpore's names."""
        return FreezeConfig(
            param_groups=10 if isinstance(self.groups, tuple) else self.groups,
            freeze_type=_NAMES.index(self.by),
            freeze_p=self.p,
            total_steps=self.steps,
            seed=self.seed,
            separate_state=self.separate_state,
            groups=self.groups if isinstance(self.groups, tuple) else None,
            sequence=self.sequence,
        )

    @classmethod
    def of(cls, config: FreezeConfig) -> GradFreeze:
        """Convert a configuration with MindSpore's names."""
        return cls(
            p=config.freeze_p,
            by=_NAMES[config.freeze_type],
            groups=config.param_groups if config.groups is None else config.groups,
            steps=config.total_steps,
            seed=config.seed,
            separate_state=config.separate_state,
            sequence=config.sequence,
        )

    def split(self, graph: GraphContext) -> tuple[Sequence[Sequence[str]], Report]:
        """See :func:`ortboost.boosts.freeze_groups.freeze_groups`."""
        return freeze_groups(graph.model, graph.trained, self.config)

    def schedule(self) -> NDArray[np.int64]:
        """See :func:`ortboost.boosts.freeze_schedule.freeze_schedule`."""
        return freeze_schedule(self.config)
