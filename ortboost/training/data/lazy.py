"""Arrays that are read when rows of them are asked for: image files, row groups of a Parquet file, data sets."""

from __future__ import annotations

import abc
import copy
import math
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from ortboost.training.data.shapes import Wanted, fit_shape
from ortboost.training.protocols import Array

__all__ = ["Blocks", "LazyArray", "as_array_like", "lazy_of"]

Self = TypeVar("Self", bound="LazyArray")


class Blocks(NamedTuple):
    """Rows that are read together.

    Args:
        starts: The first row of each block, increasing from 0, int64.
        window: How many blocks are held at once, and shuffled with each other.
    """

    starts: Array
    window: int


class LazyArray(abc.ABC):
    """What sources ask of an array ``[N, ...]``, without its values.

    Args:
        shape: Its shape; axis 0 counts the samples.
        dtype: Its type.
    """

    blocks: Blocks | None = None
    decodes: ClassVar[bool] = False  # whether reading costs so much that more threads pay
    finite: ClassVar[bool] = False  # whether its values are finite by construction

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    @abc.abstractmethod
    def read(self, rows: Array) -> Array:
        """Some rows, by number and in this order, in memory; called by several threads at once."""

    def checksum(self) -> int | None:
        """Of the contents, or of enough of them to tell two data sets apart; None if that of a choice of rows will do."""
        return None

    def in_epoch(self: Self, seed: int, epoch: int) -> Self:
        """The array as training sees it in an epoch: with that epoch's augmentations, if there are any."""
        return self

    def fitted(self: Self, wanted: Wanted) -> Self | None:
        """The array in the shape of an input (with the axis of the samples), or None if it cannot have it.

        Raises:
            UsageError: It could, if something was said.
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
        """Bytes of the values."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
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
    """The array for those who hold arrays of both kinds and ask only what both answer."""
    return cast(Array, array)


def lazy_of(array: object) -> LazyArray | None:
    """The array if it is a lazy one."""
    return array if isinstance(array, LazyArray) else None
