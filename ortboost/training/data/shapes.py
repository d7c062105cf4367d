"""Whether the shape of an array fits an input."""

from __future__ import annotations

import math

from ortboost.core.arrays import matches

__all__ = ["Wanted", "fit_shape"]

Wanted = tuple[int | str | None, ...]
"""Per axis a length, or anything else for an arbitrary length."""


def fit_shape(have: tuple[int, ...], want: Wanted) -> tuple[int, ...] | None:
    """Reshape a sample to fit an input: add or drop axes of length one, or flatten it.

    Returns:
        The new shape, or None if it does not fit.

    Example:
        >>> fit_shape((28, 28), (1, 28, 28)), fit_shape((28, 28), (784,)), fit_shape((3, 2), (2, 3))
        ((1, 28, 28), (784,), None)
    """
    if matches(have, want):
        return have
    squeezed = tuple(axis for axis in have if axis != 1)
    core = tuple(axis for axis in want if axis != 1)
    if matches(squeezed, core):
        rest = iter(squeezed)
        return tuple(1 if axis == 1 else next(rest) for axis in want)
    if len(want) == 1 and matches((math.prod(have),), want):
        return (math.prod(have),)
    return None
