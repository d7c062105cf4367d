r"""Learning rates as lists, one number a step; a step counts in the epoch `e = floor(i / steps)`.

With `r = e / decay_epoch`, floored with ``is_stair``:

- exponential: `lr d^r`;  inverse: `lr / (1 + d r)`;
- natural exponential: `lr exp(-d e)`, with ``is_stair`` `e` floored to a multiple of `decay_epoch`;
- polynomial: `(lr - end) (1 - min(e, D) / D)^p + end`, `D = decay_epoch`, or with
  ``update_decay_epoch`` `D = decay_epoch max(1, ceil(e / decay_epoch))`;
- cosine: `min + (max - min) (1 + cos(pi min(e, D) / D)) / 2`;
- warm-up: `lr min(e, W) / W`, so the first epoch has a rate of 0.

The formulas are those of MindSpore's documentation, checked against 2.10 (tests/golden/mindspore).
Indices count *applied* updates: a step that is skipped for an overflow uses up no entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ortboost.mindspore.core.arguments import ArgumentValueError, check_range, check_type

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
    _check("exponential_decay_lr", learning_rate, decay_rate, is_stair)
    return _list(
        "exponential_decay_lr",
        lambda e: learning_rate * decay_rate ** _ratio(e, decay_epoch, is_stair),
        total_step,
        step_per_epoch,
        decay_epoch=decay_epoch,
    )


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
    _check("natural_exp_decay_lr", learning_rate, decay_rate, is_stair)

    def rate(epoch: int) -> float:
        passed = epoch // decay_epoch * decay_epoch if is_stair else epoch
        return learning_rate * math.exp(-decay_rate * passed)

    return _list("natural_exp_decay_lr", rate, total_step, step_per_epoch, decay_epoch=decay_epoch)


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
    _check("inverse_decay_lr", learning_rate, decay_rate, is_stair)
    return _list(
        "inverse_decay_lr",
        lambda e: learning_rate / (1 + decay_rate * _ratio(e, decay_epoch, is_stair)),
        total_step,
        step_per_epoch,
        decay_epoch=decay_epoch,
    )


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
    _check(owner, learning_rate, None, update_decay_epoch, "update_decay_epoch")
    check_type(owner, "end_learning_rate", end_learning_rate, float)
    check_range(owner, "end_learning_rate", end_learning_rate, 0)
    check_type(owner, "power", power, float)
    check_range(owner, "power", power, 0, open_low=True)

    def rate(epoch: int) -> float:
        span = decay_epoch
        if update_decay_epoch:
            span *= max(1, math.ceil(epoch / decay_epoch))
        share = 1 - min(epoch, span) / span
        return float((learning_rate - end_learning_rate) * share**power + end_learning_rate)

    return _list(owner, rate, total_step, step_per_epoch, decay_epoch=decay_epoch)


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
    owner = "cosine_decay_lr"
    check_type(owner, "min_lr", min_lr, float)
    check_range(owner, "min_lr", min_lr, 0)
    check_type(owner, "max_lr", max_lr, float)
    check_range(owner, "max_lr", max_lr, min_lr, open_low=True)

    def rate(epoch: int) -> float:
        share = min(epoch, decay_epoch) / decay_epoch
        return min_lr + 0.5 * (max_lr - min_lr) * (1 + math.cos(math.pi * share))

    return _list(owner, rate, total_step, step_per_epoch, decay_epoch=decay_epoch)


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
    _check("warmup_lr", learning_rate, None, False)
    return _list(
        "warmup_lr",
        lambda e: learning_rate * min(e, warmup_epoch) / warmup_epoch,
        total_step,
        step_per_epoch,
        warmup_epoch=warmup_epoch,
    )


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


def _ratio(epoch: int, decay_epoch: int, is_stair: bool) -> float:
    return epoch // decay_epoch if is_stair else epoch / decay_epoch


def _check(
    owner: str, learning_rate: object, decay_rate: object, flag: object, flag_name: str = "is_stair"
) -> None:
    for name, value in (("learning_rate", learning_rate), ("decay_rate", decay_rate)):
        if value is not None or name == "learning_rate":
            check_type(owner, name, value, float)
            check_range(owner, name, value, 0, open_low=True)
    check_type(owner, flag_name, flag, bool)


def _list(
    owner: str,
    rate: Callable[[int], float],
    total_step: int,
    step_per_epoch: int,
    **epochs: int,
) -> list[float]:
    for name, value in {
        "total_step": total_step,
        "step_per_epoch": step_per_epoch,
        **epochs,
    }.items():
        check_type(owner, name, value, int)
        check_range(owner, name, value, 1)
    return [rate(step // step_per_epoch) for step in range(total_step)]
