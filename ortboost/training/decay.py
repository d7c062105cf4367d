r"""Formulas of learning-rate schedules: the rate at a time `t`, in steps or in epochs.

Used by the schedules of the trainer (:mod:`ortboost.training.schedules`) and by those with
MindSpore's names (:mod:`ortboost.mindspore.nn.learning_rate_schedule`). With `r = t / span`,
rounded down for ``stair``:

- exponential: `rate * factor^r`;
- inverse: `rate / (1 + strength * r)`;
- natural exponential: `rate * exp(-strength * t)`, for ``stair`` with `t` rounded down to a
  multiple of `span`;
- polynomial: `(rate - end) * (1 - min(t, D) / D)^power + end` with `D = span`, or for ``stretch``
  `D = span * max(1, ceil(t / span))`;
- cosine: `low + (high - low) * (1 + cos(pi * min(t, span) / span)) / 2` (SGDR, arXiv:1608.03983,
  eq. 5);
- linear warm-up: `rate * (start + (1 - start) * min(t, span) / span)`.

All except the warm-up's ``start`` are those of MindSpore's documentation, checked against MindSpore
2.10. For the natural exponential its documentation has `exp(-strength * t / span)`; the formula
here is what it computes.
"""

from __future__ import annotations

import math

__all__ = ["cosine", "exponential", "inverse", "linear_warmup", "natural_exponential", "polynomial"]


def _ratio(time: int, span: int, stair: bool) -> float:
    return time // span if stair else time / span


def exponential(time: int, rate: float, factor: float, span: int, stair: bool = False) -> float:
    """Decay by ``factor`` every ``span``; formula in the module docstring.

    Example:
        >>> exponential(20, 0.5, 0.5, 10)
        0.125
    """
    return float(rate * factor ** _ratio(time, span, stair))


def inverse(time: int, rate: float, strength: float, span: int, stair: bool = False) -> float:
    """Decay with the inverse of time; formula in the module docstring."""
    return rate / (1 + strength * _ratio(time, span, stair))


def natural_exponential(
    time: int, rate: float, strength: float, span: int, stair: bool = False
) -> float:
    """Decay exponentially with ``strength``; formula in the module docstring."""
    return rate * math.exp(-strength * (time // span * span if stair else time))


def polynomial(
    time: int, rate: float, end: float, span: int, power: float, stretch: bool = False
) -> float:
    """Decay polynomially to ``end``; formula in the module docstring."""
    if stretch:
        span *= max(1, math.ceil(time / span))
    return float((rate - end) * (1 - min(time, span) / span) ** power + end)


def cosine(time: int, low: float, high: float, span: int) -> float:
    """Decay from ``high`` to ``low`` along half a cosine; formula in the module docstring.

    Example:
        >>> [round(cosine(time, 0.0, 1.0, 10), 6) for time in (0, 5, 10, 11)]
        [1.0, 0.5, 0.0, 0.0]
    """
    return low + (high - low) * (1 + math.cos(math.pi * min(time, span) / span)) / 2


def linear_warmup(time: int, rate: float, span: int, start: float = 0.0) -> float:
    """Rise linearly from ``start * rate`` to ``rate``; formula in the module docstring."""
    return rate * (start + (1 - start) * min(time, span) / span)
