"""What the mean loss of a batch divides by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["count_labels", "sum_weights"]

_Array = NDArray[Any]


def count_labels(labels: _Array, ignored: int | None, *, shifted: bool = False) -> int:
    """The number of labels that are not ignored.

    With ``shifted``, each position is compared with the next label: the first one is never used.

    Example:
        >>> count_labels(np.array([[7, 2, 5, -100]]), -100, shifted=True)
        2
    """
    return int(_used(labels, ignored, shifted).size)


def sum_weights(
    labels: _Array, weights: Sequence[float], ignored: int | None, *, shifted: bool = False
) -> float:
    """The sum of the class weights of the labels that are not ignored.

    Example:
        >>> sum_weights(np.array([0, 1, 1]), (1.0, 0.25), None)
        1.5
    """
    # Labels that are not classes are refused elsewhere.
    found = _used(labels, ignored, shifted).clip(0, len(weights) - 1)
    return float(np.asarray(weights)[found].sum())


def _used(labels: _Array, ignored: int | None, shifted: bool) -> _Array:
    used = labels[:, 1:] if shifted and labels.ndim > 1 else labels
    return used if ignored is None else used[used != ignored]
