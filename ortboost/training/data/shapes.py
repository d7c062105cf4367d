"""Whether an array has the shape that an input wants."""

from __future__ import annotations

import math

__all__ = ["Wanted", "fit_shape", "matches"]

Wanted = tuple[int | str | None, ...]
"""One entry an axis: a length, or what stands for any."""


def matches(have: tuple[int, ...], want: Wanted) -> bool:
    """Whether a shape is the one that is wanted, axis by axis.

    Example:
        >>> matches((2, 3), ("N", 3)), matches((2, 3), (3, 3))
        (True, False)
    """
    return len(have) == len(want) and all(
        not isinstance(w, int) or w == h for h, w in zip(have, want, strict=True)
    )


def fit_shape(have: tuple[int, ...], want: Wanted) -> tuple[int, ...] | None:
    """The shape of a sample in which it is what is wanted: with axes of length one added or dropped, or flattened.

    Returns:
        The shape, or None if there is none.

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
