r"""Which group of parameters each update trains: the schedule of gradient freeze.

With `n` groups (group 0 trains everything, group `i` freezes a prefix of the layers) and `p` the
share of updates that train everything:

- continuous (0): repeated blocks of group 0, `floor(p (n-1) / (1-p))` times, then groups 1 to n-1;
- interval (1): the first update uses group 0; a frozen update follows whenever the share of frozen
  updates is below `1 - p`. Its group is drawn with a probability proportional to `n - i`: the less
  a group freezes, the more often it is drawn;
- cost (2, not in MindSpore): the same with uniform draws, so that a frozen update saves half of the
  backward pass on average (groups are cut by cost, see :mod:`ortboost.boosts.freeze_groups`).

MindSpore calls `p` ``freeze_p``, the freezing probability, although there, too, it is the share of
updates that are *not* frozen. Types 0 and 1 give the sequence of MindSpore Boost 2.10 for the same
seed of numpy's legacy generator; MindSpore uses the global generator, this module a configured
seed.

The schedule depends only on the configuration: a resumed run continues with the same groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds, read_config

__all__ = [
    "CONTINUOUS",
    "COST",
    "INTERVAL",
    "FreezeConfig",
    "freeze_schedule",
    "generate_freeze_index_sequence",
]

CONTINUOUS: Final = 0
INTERVAL: Final = 1
COST: Final = 2
_TYPES = (CONTINUOUS, INTERVAL, COST)
LONGEST = 10**7  # updates; the whole schedule is drawn at once


@dataclass(frozen=True)
class FreezeConfig(Configuration):
    """Gradient freeze, with MindSpore's names and defaults.

    Args:
        param_groups: Number of groups; group `i` freezes the first `i / param_groups` of the layers
            (by count; with the type ``COST`` by the cost of their backward pass).
        freeze_type: ``CONTINUOUS`` (0), ``INTERVAL`` (1), or ``COST`` (2, not in MindSpore).
        freeze_p: Share of the updates that train everything, 0 to 1.
        total_steps: Length of the schedule in updates; it then repeats.
        seed: Seed of the random draws.
        separate_state: Whether each group has its own optimizer state, which changes only on the
            updates of that group, as in MindSpore. A shared state takes less memory.
        groups: Names of the parameters of each group, instead of a division by layers.
        sequence: An explicit schedule, instead of a drawn one.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> FreezeConfig(param_groups=4, freeze_type=COST, freeze_p=0.4).separate_state
        True
    """

    param_groups: Annotated[int, Range(1, below=LONGEST)] = 10
    freeze_type: int = INTERVAL
    freeze_p: Annotated[float, Range(0, 1)] = 0.7
    total_steps: Annotated[int, Range(1, below=LONGEST)] = 65536
    seed: Annotated[int, Range(0, below=2**32)] = 0  # the range of numpy's legacy generator
    separate_state: bool = True
    groups: tuple[tuple[str, ...], ...] | None = None
    sequence: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "grad_freeze")
        if self.freeze_type not in _TYPES:
            raise ConfigError(
                f"Unknown freeze_type = {self.freeze_type!r}.",
                where="grad_freeze, freeze_type",
                fix="Give 0 (continuous), 1 (interval) or 2 (by cost).",
            )
        if self.groups is not None and not (self.groups and all(self.groups)):
            raise ConfigError(
                "A group has no parameters.",
                where="grad_freeze, groups",
                fix="Give at least one group, and at least one name for each.",
            )
        number = self.param_groups if self.groups is None else len(self.groups)
        stray = [index for index in self.sequence or () if not 0 <= index < number]
        if stray or self.sequence == ():
            raise ConfigError(
                f"The sequence contains group {stray[0]}, but there are {number} groups."
                if stray
                else "The sequence is empty.",
                where="grad_freeze, sequence",
                fix=f"Use 0 to {number - 1}.",
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FreezeConfig:
        """Rebuild from JSON data; keys may be omitted.

        Raises:
            ConfigError: A key is unknown; the message suggests the nearest.
        """
        return read_config(cls, data, "grad_freeze")


def generate_freeze_index_sequence(
    parameter_groups_number: int,
    freeze_strategy: int,
    freeze_p: float,
    total_steps: int,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Generate the group of each update, from 0 to ``parameter_groups_number - 1``.

    Args:
        parameter_groups_number: Number of groups.
        freeze_strategy: ``CONTINUOUS``, ``INTERVAL`` or ``COST``.
        freeze_p: Share of the updates that train everything.
        total_steps: Number of updates; the sequence is one percent longer, and a continuous one
            ends with a whole block.
        seed: Seed of the random draws.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> generate_freeze_index_sequence(3, CONTINUOUS, 0.5, 8)
        array([0, 0, 1, 2, 0, 0, 1, 2])
    """
    FreezeConfig(parameter_groups_number, freeze_strategy, freeze_p, total_steps, seed)
    # One percent longer than the training, as in MindSpore.
    length = int(total_steps * 1.01)
    if parameter_groups_number <= 1 or freeze_p == 1:
        return np.zeros(length, np.int64)
    if freeze_strategy == CONTINUOUS:
        # n - 1 frozen updates in each block, so that the others are the share p of it.
        zeros = int(freeze_p * (parameter_groups_number - 1) // (1 - freeze_p))
        if zeros >= max(length, LONGEST):  # the block alone is longer than any run
            return np.zeros(length, np.int64)
        block = np.concatenate([np.zeros(zeros, np.int64), np.arange(1, parameter_groups_number)])
        return np.tile(block, -(-length // len(block)))
    frozen = np.arange(1, parameter_groups_number)
    # The draw is from the reversed list: group n - 1 has the weight 1, group 1 the weight n - 1.
    weights = np.ones_like(frozen) if freeze_strategy == COST else frozen
    chances = [int(weight) / int(weights.sum()) for weight in weights]
    draws = np.random.RandomState(seed)  # a frozen stream, and the generator that MindSpore uses
    sequence, done = [0], 0
    while len(sequence) < length:
        if done / len(sequence) < 1 - freeze_p:
            sequence.append(int(draws.choice(frozen[::-1], p=chances)))
            done += 1
        else:
            sequence.append(0)
    return np.array(sequence, np.int64)


def freeze_schedule(config: FreezeConfig) -> NDArray[np.int64]:
    """The group of each update; the schedule then repeats.

    Example:
        >>> freeze_schedule(FreezeConfig(sequence=(0, 2, 1)))
        array([0, 2, 1])
    """
    if config.sequence is not None:
        return np.array(config.sequence, np.int64)
    number = config.param_groups if config.groups is None else len(config.groups)
    return generate_freeze_index_sequence(
        number, config.freeze_type, config.freeze_p, config.total_steps, config.seed
    )
