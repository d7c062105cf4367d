"""Learning rates as lists with one value per step, by the epoch `e = floor(i / steps)` of step `i`.

The rates are those of :mod:`ortboost.mindspore.nn.learning_rate_schedule`, with the time in epochs.
Indices count *applied* updates: a step skipped for an overflow does not consume an entry. All
functions raise ``ArgumentTypeError`` for a wrong type (numbers of epochs and steps are int, rates
float) and ``ArgumentValueError`` for a number out of range.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import (
    ArgumentValueError,
    Count,
    NotNegativeFloat,
    PositiveFloat,
)
from ortboost.mindspore.nn.learning_rate_schedule import (
    CosineDecayLR,
    ExponentialDecayLR,
    InverseDecayLR,
    LearningRateSchedule,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
)

__all__ = [
    "cosine_decay_lr",
    "exponential_decay_lr",
    "inverse_decay_lr",
    "natural_exp_decay_lr",
    "piecewise_constant_lr",
    "polynomial_decay_lr",
    "warmup_lr",
]


@checked
def exponential_decay_lr(
    learning_rate: PositiveFloat,
    decay_rate: PositiveFloat,
    total_step: Count,
    step_per_epoch: Count,
    decay_epoch: Count,
    is_stair: bool = False,
) -> list[float]:
    """Exponential decay.

    Args:
        learning_rate: Initial rate, above 0.
        decay_rate: Factor per ``decay_epoch`` epochs, above 0.
        total_step: Length of the list.
        step_per_epoch: Steps per epoch.
        decay_epoch: Epochs in which the rate decays by ``decay_rate``.
        is_stair: Decay in discrete steps, every ``decay_epoch`` epochs.

    Example:
        >>> exponential_decay_lr(1.0, 0.5, 4, 2, 1)
        [1.0, 1.0, 0.5, 0.5]
    """
    rate = ExponentialDecayLR(learning_rate, decay_rate, decay_epoch, is_stair)
    return _list(rate, total_step, step_per_epoch)


@checked
def natural_exp_decay_lr(
    learning_rate: PositiveFloat,
    decay_rate: PositiveFloat,
    total_step: Count,
    step_per_epoch: Count,
    decay_epoch: Count,
    is_stair: bool = False,
) -> list[float]:
    """Natural exponential decay; arguments as for :func:`exponential_decay_lr`.

    Example:
        >>> [round(rate, 4) for rate in natural_exp_decay_lr(1.0, 1.0, 3, 1, 2)]
        [1.0, 0.3679, 0.1353]
    """
    rate = NaturalExpDecayLR(learning_rate, decay_rate, decay_epoch, is_stair)
    return _list(rate, total_step, step_per_epoch)


@checked
def inverse_decay_lr(
    learning_rate: PositiveFloat,
    decay_rate: PositiveFloat,
    total_step: Count,
    step_per_epoch: Count,
    decay_epoch: Count,
    is_stair: bool = False,
) -> list[float]:
    """Inverse-time decay; arguments as for :func:`exponential_decay_lr`.

    Example:
        >>> inverse_decay_lr(1.0, 1.0, 3, 1, 1)
        [1.0, 0.5, 0.3333333333333333]
    """
    rate = InverseDecayLR(learning_rate, decay_rate, decay_epoch, is_stair)
    return _list(rate, total_step, step_per_epoch)


@checked
def polynomial_decay_lr(
    learning_rate: PositiveFloat,
    end_learning_rate: NotNegativeFloat,
    total_step: Count,
    step_per_epoch: Count,
    decay_epoch: Count,
    power: PositiveFloat,
    update_decay_epoch: bool = False,
) -> list[float]:
    """Polynomial decay from one rate to another.

    Args:
        learning_rate: Initial rate, above 0.
        end_learning_rate: Final rate, 0 or more.
        total_step: Length of the list.
        step_per_epoch: Steps per epoch.
        decay_epoch: Epochs until the final rate.
        power: Exponent, above 0.
        update_decay_epoch: Extend the decay to the next multiple of ``decay_epoch`` once it is
            over.
    """
    ends = learning_rate, end_learning_rate
    rate = PolynomialDecayLR(*ends, decay_epoch, power, update_decay_epoch)
    return _list(rate, total_step, step_per_epoch)


@checked
def cosine_decay_lr(
    min_lr: NotNegativeFloat,
    max_lr: PositiveFloat,
    total_step: Count,
    step_per_epoch: Count,
    decay_epoch: Count,
) -> list[float]:
    """Cosine decay from ``max_lr`` to a lower ``min_lr`` in ``decay_epoch`` epochs.

    Example:
        >>> [round(rate, 4) for rate in cosine_decay_lr(0.0, 1.0, 3, 1, 2)]
        [1.0, 0.5, 0.0]
    """
    return _list(CosineDecayLR(min_lr, max_lr, decay_epoch), total_step, step_per_epoch)


@checked
def warmup_lr(
    learning_rate: NotNegativeFloat, total_step: Count, step_per_epoch: Count, warmup_epoch: Count
) -> list[float]:
    """Linear warm-up from 0, reaching ``learning_rate`` at epoch ``warmup_epoch``.

    Example:
        >>> warmup_lr(1.0, 4, 1, 2)
        [0.0, 0.5, 1.0, 1.0]
    """
    return _list(WarmUpLR(learning_rate, warmup_epoch), total_step, step_per_epoch)


@checked
def piecewise_constant_lr(
    milestone: Sequence[Count], learning_rates: Sequence[PositiveFloat]
) -> list[float]:
    """Constant rates; ``learning_rates[k]`` holds until step ``milestone[k]``, exclusive.

    There must be as many rates as milestones, and the milestones must not decrease.

    Example:
        >>> piecewise_constant_lr([2, 3], [0.1, 0.05])
        [0.1, 0.1, 0.05]
    """
    if len(milestone) != len(learning_rates):
        raise ArgumentValueError(
            f"There are {len(milestone)} milestones and {len(learning_rates)} rates.",
            where="piecewise_constant_lr",
            fix="Give one rate for each milestone.",
        )
    rates: list[float] = []
    for end, rate in zip(milestone, learning_rates, strict=True):
        if end < len(rates):
            raise ArgumentValueError(
                f"The milestone {end} is below the one before.",
                where="piecewise_constant_lr, milestone",
                fix="List step numbers in increasing order.",
            )
        rates += [rate] * (end - len(rates))
    return rates


def _list(rate: LearningRateSchedule, total_step: int, step_per_epoch: int) -> list[float]:
    return [rate.construct(step // step_per_epoch) for step in range(total_step)]
