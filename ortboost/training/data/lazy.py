"""Arrays whose rows are read on access: image files, Parquet row groups, data sets."""

from __future__ import annotations

import abc
import copy
import math
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from ortboost.core.arrays import matches
from ortboost.training.protocols import Array

__all__ = ["Blocks", "LazyArray", "Wanted", "as_array_like", "fit_shape", "lazy_of"]

Self = TypeVar("Self", bound="LazyArray")
Wanted = tuple[int | str | None, ...]
"""Per axis a length, or anything else for an arbitrary length."""


class Blocks(NamedTuple):
    """Rows that are read together.

    Args:
        starts: The first row of each block, increasing from 0, int64.
        window: Number of blocks that are held in memory and shuffled together.
    """

    starts: Array
    window: int


class LazyArray(abc.ABC):
    """An array ``[N, ...]`` whose values are read on access."""

    blocks: Blocks | None = None
    decodes: ClassVar[bool] = False  # whether reading is slow enough for several threads
    finite: ClassVar[bool] = False  # whether its values are finite by construction

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    @abc.abstractmethod
    def read(self, rows: Array) -> Array:
        """Read rows by index, in this order; may be called by several threads concurrently."""

    def checksum(self) -> int | None:
        """A checksum of the contents, or of a sample of them; None for the default of sources."""
        return None

    def in_epoch(self: Self, seed: int, epoch: int) -> Self:
        """The array with the random augmentation of an epoch, if it has any."""
        return self

    def fitted(self: Self, wanted: Wanted) -> Self | None:
        """The array in the shape of an input, batch axis included; None if it does not fit.

        Raises:
            UsageError: It could fit, but needs a further setting.
        """
        shape = fit_shape(self.shape[1:], wanted[1:])
        if shape is None or shape == self.shape[1:]:
            return None if shape is None else self
        found = copy.copy(self)
        found.shape = (len(self), *shape)
        return found

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        # From rows_of: an index with one item, for axis 0.
        if isinstance(rows, tuple):
            (rows,) = rows
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        chosen = np.atleast_1d(rows)
        found = self.read(np.where(chosen < 0, chosen + len(self), chosen))
        return found.reshape(*np.shape(rows), *self.shape[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)


def as_array_like(array: LazyArray) -> Array:
    """Cast a lazy array to ``Array``, for code that uses only what both kinds support."""
    return cast(Array, array)


def lazy_of(array: object) -> LazyArray | None:
    """``array`` if it is lazy, otherwise None."""
    return array if isinstance(array, LazyArray) else None


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
