"""Arguments of MindSpore's learning rates, for the lists and the cells alike; formulas in ``training.decay``.

Each function checks its arguments and answers the rate as a function of time. The time is in epochs for
the lists and in steps for the cells: ``unit`` is the end of the names of such arguments, ``epoch`` or
``steps``. All raise ``ArgumentTypeError`` for a wrong type (numbers of epochs and steps are int, rates
float) and ``ArgumentValueError`` for a number out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from ortboost.mindspore.core.arguments import check_range, check_type
from ortboost.training import decay

__all__ = ["Rate", "Unit", "check_positive", "cosine", "falling", "polynomial", "warmup"]

Rate: TypeAlias = Callable[[int], float]
Unit: TypeAlias = Literal["epoch", "steps"]


def falling(
    owner: str,
    formula: Callable[..., float],
    learning_rate: float,
    decay_rate: float,
    span: int,
    is_stair: bool,
    unit: Unit,
) -> Rate:
    """The exponential, natural exponential or inverse decay.

    Args:
        owner: What the user called, for errors.
        formula: That of :mod:`ortboost.training.decay`.
        learning_rate: First rate, above 0.
        decay_rate: Factor or strength, above 0.
        span: Time of one decay, at least 1.
        is_stair: Fall in jumps.
        unit: See the module.
    """
    check_positive(owner, "learning_rate", learning_rate, float)
    check_positive(owner, "decay_rate", decay_rate, float)
    check_type(owner, "is_stair", is_stair, bool)
    check_positive(owner, f"decay_{unit}", span, int)

    def rate(time: int) -> float:
        return formula(time, learning_rate, decay_rate, span, is_stair)

    return rate


def polynomial(
    owner: str,
    learning_rate: float,
    end_learning_rate: float,
    span: int,
    power: float,
    update: bool,
    unit: Unit,
) -> Rate:
    """The polynomial decay; ``update`` stretches the span when it is passed."""
    check_positive(owner, "learning_rate", learning_rate, float)
    check_type(owner, "end_learning_rate", end_learning_rate, float)
    check_range(owner, "end_learning_rate", end_learning_rate, 0)
    check_positive(owner, "power", power, float)
    check_type(owner, f"update_decay_{unit}", update, bool)
    check_positive(owner, f"decay_{unit}", span, int)
    return partial(
        decay.polynomial,
        rate=learning_rate,
        end=end_learning_rate,
        span=span,
        power=power,
        stretch=update,
    )


def cosine(owner: str, min_lr: float, max_lr: float, span: int, unit: Unit) -> Rate:
    """The cosine decay; ``min_lr`` must be below ``max_lr``."""
    check_type(owner, "min_lr", min_lr, float)
    check_range(owner, "min_lr", min_lr, 0)
    check_type(owner, "max_lr", max_lr, float)
    check_range(owner, "max_lr", max_lr, min_lr, open_low=True)
    check_positive(owner, f"decay_{unit}", span, int)
    return partial(decay.cosine, low=min_lr, high=max_lr, span=span)


def warmup(owner: str, learning_rate: float, span: int, unit: Unit, *, zero: bool) -> Rate:
    """The linear warm-up from 0; ``zero`` allows a rate of 0."""
    check_type(owner, "learning_rate", learning_rate, float)
    check_range(owner, "learning_rate", learning_rate, 0, open_low=not zero)
    check_positive(owner, f"warmup_{unit}", span, int)
    return partial(decay.linear_warmup, rate=learning_rate, span=span)


def check_positive(owner: str, name: str, value: Any, kind: type) -> None:
    """Refuse what is not of a type, or not above 0."""
    check_type(owner, name, value, kind)
    check_range(owner, name, value, 0, open_low=True)
