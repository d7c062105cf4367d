"""Statistics of a tensor: range, and shares of non-finite values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TensorStats"]

_BFLOAT16_MAX = float.fromhex("0x1.fep127")


@dataclass(frozen=True)
class TensorStats:
    """Statistics of a tensor.

    Args:
        name: Name of the tensor.
        dtype: Element type.
        shape: Shape.
        least: Smallest finite value; None if there is none.
        greatest: Largest finite value; None if there is none.
        abs_max: Largest finite absolute value; None if there is none.
        inf: Share of infinite values.
        nan: Share of NaN values.
        limit: Largest finite value of the type.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    greatest: float | None
    abs_max: float | None
    inf: float
    nan: float
    limit: float

    @classmethod
    def of(cls, name: str, array: NDArray[Any], dtype: str | None = None) -> TensorStats:
        """Compute the statistics of an array.

        Args:
            name: Name of the tensor.
            array: Its values; upcast if numpy does not support the type.
            dtype: Its original element type; that of the array if not given.

        Example:
            >>> TensorStats.of("x", np.array([1, -3, np.inf, np.nan], np.float16)).abs_max
            3.0
        """
        kind = dtype or array.dtype.name
        finite = array[np.isfinite(array)]
        size = max(array.size, 1)
        some = finite.size > 0
        return cls(
            name,
            kind,
            tuple(array.shape),
            float(finite.min()) if some else None,
            float(finite.max()) if some else None,
            float(np.abs(finite).max()) if some else None,
            float(np.isinf(array).sum()) / size,
            float(np.isnan(array).sum()) / size,
            _BFLOAT16_MAX if kind == "bfloat16" else float(np.finfo(kind).max),
        )

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return not (self.inf or self.nan)
