"""Tensors that a formula computes: positions, their sines and cosines, masks, filter banks.

Nobody trains these, but a file does not say so. Each test asks for equality with the formula, so
that a learned tensor does not pass by chance.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["counting", "generated"]

_LARGEST = 1 << 24  # elements that are looked at
_NEAR = 2e-3  # sines of positions in the thousands, computed in float32
_FAST = 0.1  # a step of the highest frequency, 1, is far more
_MASK = 4  # elements: fewer may have two values by chance


def counting(value: ir.Value) -> str | None:
    """Whether a tensor counts ``0, 1, 2, ...`` along its only axis; the reason, or ``None``.

    Detection models project a distribution to its mean with such a tensor.

    Example:
        >>> counting(ir.Value(name="dfl", const_value=ir.tensor(np.arange(8.0).reshape(1, 8, 1, 1))))
        'its numbers are 0, 1, 2, ...'
        >>> counting(ir.Value(name="w", const_value=ir.tensor(np.ones(8))))
    """
    array = _array(value)
    if array is None or array.size < 4 or max(array.shape, default=0) < array.size:
        return None
    same = np.array_equal(array.reshape(-1), np.arange(array.size))
    return "its numbers are 0, 1, 2, ..." if same else None


def generated(value: ir.Value, *, plain: bool = False) -> str | None:
    """The formula that computes a tensor, ``None`` if it is none of those known.

    Args:
        value: An initializer.
        plain: Look for masks and filter banks too: a learned tensor could hold the same numbers if
            it has just been initialized.

    Example:
        >>> mask = np.triu(np.ones((4, 4)), 1) * -1e9
        >>> generated(ir.Value(name="mask", const_value=ir.tensor(mask)), plain=True)
        'it holds only 0 and -1e+09, as masks do'
    """
    array = _array(value)
    if array is None:
        return None
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    if _waves(rows):
        return "it holds sines or cosines of positions"
    if not plain or array.size < _MASK:
        return None
    distinct = np.unique(array)
    if len(distinct) == 2 and 0 in distinct:
        other = float(distinct[distinct != 0][0])
        return f"it holds only 0 and {other:.6g}, as masks do"
    if (
        array.ndim > 1
        and array.min() >= 0
        and 2 * np.count_nonzero(array) <= array.size
        and array.any()
    ):
        return "half of it or more is 0 and nothing is negative, as in filter banks"
    return None


def _array(value: ir.Value) -> NDArray[np.float64] | None:
    tensor = value.const_value
    if tensor is None or not 1 < tensor.size <= _LARGEST:
        return None
    return np.asarray(tensor.numpy(), np.float64)


def _waves(rows: NDArray[np.float64]) -> bool:
    """Whether row `p` holds `sin(p f)` and `cos(p f)` for some frequencies `f`."""
    count, width = rows.shape
    if (
        count < 4
        or width < 2
        or np.abs(rows).max() > 1 + _NEAR
        or np.ptp(rows, axis=0).max() < _NEAR
    ):
        return False
    if width % 2 == 0:
        half = width // 2
        for a, b in ((rows[:, ::2], rows[:, 1::2]), (rows[:, :half], rows[:, half:])):
            if np.abs(a * a + b * b - 1).max() < _NEAR:
                return True
    first, second, third = rows[1], rows[2], rows[3]
    cosines = np.abs(rows[0] - 1).max() < _NEAR and first.min() < 1 - _FAST
    sines = np.abs(rows[0]).max() < _NEAR and np.abs(first).max() > _FAST
    twice, thrice = 2 * first * first - 1, 3 * first - 4 * first**3
    return bool(
        (cosines and np.abs(twice - second).max() < _NEAR)
        or (sines and np.abs(thrice - third).max() < _NEAR)
    )
