"""Learning rates as lists, one number a step; a step counts in the epoch `e = floor(i / steps)`.

The formulas are in :mod:`ortboost.training.decay`, with the time in epochs. Indices count *applied* updates: a
step that is skipped for an overflow uses up no entry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortboost.mindspore.core.arguments import ArgumentValueError, check_range, check_type
from ortboost.mindspore.nn.decay import Rate, check_positive, cosine, falling, polynomial, warmup
from ortboost.training import decay

__all__ = [
    "cosine_decay_lr",
    "exponential_decay_lr",
    "inverse_decay_lr",
    "natural_exp_decay_lr",
    "piecewise_constant_lr",
    "polynomial_decay_lr",
    "warmup_lr",
]


def exponential_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Exponential decay.

    Args:
        learning_rate: First rate, above 0.
        decay_rate: Factor of ``decay_epoch`` epochs, above 0.
        total_step: Length of the list.
        step_per_epoch: Steps in an epoch.
        decay_epoch: Epochs in which the rate falls by ``decay_rate``.
        is_stair: Fall in jumps, every ``decay_epoch`` epochs.

    Raises:
        ArgumentTypeError: An argument is of the wrong type (numbers of epochs are int, rates float).
        ArgumentValueError: It is not above 0.

    Example:
        >>> exponential_decay_lr(1.0, 0.5, 4, 2, 1)
        [1.0, 1.0, 0.5, 0.5]
    """
    owner, formula = "exponential_decay_lr", decay.exponential
    rate = falling(owner, formula, learning_rate, decay_rate, decay_epoch, is_stair, "epoch")
    return _list(owner, rate, total_step, step_per_epoch)


def natural_exp_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Natural exponential decay; arguments and errors as for :func:`exponential_decay_lr`.

    Example:
        >>> [round(rate, 4) for rate in natural_exp_decay_lr(1.0, 1.0, 3, 1, 2)]
        [1.0, 0.3679, 0.1353]
    """
    owner, formula = "natural_exp_decay_lr", decay.natural_exponential
    rate = falling(owner, formula, learning_rate, decay_rate, decay_epoch, is_stair, "epoch")
    return _list(owner, rate, total_step, step_per_epoch)


def inverse_decay_lr(
    learning_rate: float,
    decay_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    is_stair: bool = False,
) -> list[float]:
    """Inverse-time decay; arguments and errors as for :func:`exponential_decay_lr`.

    Example:
        >>> inverse_decay_lr(1.0, 1.0, 3, 1, 1)
        [1.0, 0.5, 0.3333333333333333]
    """
    owner, formula = "inverse_decay_lr", decay.inverse
    rate = falling(owner, formula, learning_rate, decay_rate, decay_epoch, is_stair, "epoch")
    return _list(owner, rate, total_step, step_per_epoch)


def polynomial_decay_lr(
    learning_rate: float,
    end_learning_rate: float,
    total_step: int,
    step_per_epoch: int,
    decay_epoch: int,
    power: float,
    update_decay_epoch: bool = False,
) -> list[float]:
    """Polynomial decay from one rate to another.

    Args:
        learning_rate: First rate, above 0.
        end_learning_rate: Last rate, 0 or more.
        total_step: Length of the list.
        step_per_epoch: Steps in an epoch.
        decay_epoch: Epochs until the last rate.
        power: Exponent, above 0.
        update_decay_epoch: Stretch the span to a multiple of ``decay_epoch`` when it is passed.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range.
    """
    owner = "polynomial_decay_lr"
    rate = polynomial(
        owner,
        learning_rate,
        end_learning_rate,
        decay_epoch,
        power,
        update_decay_epoch,
        "epoch",
    )
    return _list(owner, rate, total_step, step_per_epoch)


def cosine_decay_lr(
    min_lr: float, max_lr: float, total_step: int, step_per_epoch: int, decay_epoch: int
) -> list[float]:
    """Cosine decay from ``max_lr`` to ``min_lr`` in ``decay_epoch`` epochs.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range, or ``min_lr`` is not below ``max_lr``.

    Example:
        >>> [round(rate, 4) for rate in cosine_decay_lr(0.0, 1.0, 3, 1, 2)]
        [1.0, 0.5, 0.0]
    """
    rate = cosine("cosine_decay_lr", min_lr, max_lr, decay_epoch, "epoch")
    return _list("cosine_decay_lr", rate, total_step, step_per_epoch)


def warmup_lr(
    learning_rate: float, total_step: int, step_per_epoch: int, warmup_epoch: int
) -> list[float]:
    """Linear warm-up from 0; at ``learning_rate`` from epoch ``warmup_epoch`` on.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentValueError: It is out of range.

    Example:
        >>> warmup_lr(1.0, 4, 1, 2)
        [0.0, 0.5, 1.0, 1.0]
    """
    rate = warmup("warmup_lr", learning_rate, warmup_epoch, "epoch", zero=False)
    return _list("warmup_lr", rate, total_step, step_per_epoch)


def piecewise_constant_lr(milestone: Sequence[int], learning_rates: Sequence[float]) -> list[float]:
    """Constant rates; ``learning_rates[k]`` holds until step ``milestone[k]``, exclusive.

    Raises:
        ArgumentTypeError: No tuples or lists, or items of the wrong type.
        ArgumentValueError: Lengths differ, a milestone is not above the one before, or a rate is
            not above 0.

    Example:
        >>> piecewise_constant_lr([2, 3], [0.1, 0.05])
        [0.1, 0.1, 0.05]
    """
    owner = "piecewise_constant_lr"
    check_type(owner, "milestone", milestone, tuple, list)
    check_type(owner, "learning_rates", learning_rates, tuple, list)
    if len(milestone) != len(learning_rates):
        raise ArgumentValueError(
            f"There are {len(milestone)} milestones and {len(learning_rates)} rates.",
            where=owner,
            fix="Give one rate for each milestone.",
        )
    rates: list[float] = []
    for index, (end, rate) in enumerate(zip(milestone, learning_rates, strict=True)):
        check_type(owner, f"milestone[{index}]", end, int)
        check_range(owner, f"milestone[{index}]", end, len(rates), open_low=True)
        check_type(owner, f"learning_rates[{index}]", rate, float)
        check_range(owner, f"learning_rates[{index}]", rate, 0, open_low=True)
        rates += [rate] * (end - len(rates))
    return rates


def _list(owner: str, rate: Rate, total_step: int, step_per_epoch: int) -> list[float]:
    check_positive(owner, "total_step", total_step, int)
    check_positive(owner, "step_per_epoch", step_per_epoch, int)
    return [rate(step // step_per_epoch) for step in range(total_step)]
