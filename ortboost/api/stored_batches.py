"""Data of the verbs, and batches of them that need not fit into memory and are read repeatedly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, overload

from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.training.data import ArraySource, Source, batch_axes, batch_length, pad_batch
from ortboost.training.protocols import InputLike

__all__ = [
    "Data",
    "Feeds",
    "StoredBatches",
    "map_batches",
    "padded_batches",
    "read_batches",
    "refuse_unread",
]

Data: TypeAlias = str | os.PathLike[str] | Mapping[str, NDArray[Any]] | Source | Any
"""A data file or folder, arrays by name or in order, a table, a source or any iterable."""
Feeds: TypeAlias = Mapping[str, NDArray[Any]]

_HELD: Final = 512 << 20  # bytes of data that are held in memory, and so are read only once


def refuse_unread(mapping: Mapping[str, str] | None, split: str, *data: Data | None) -> None:
    """Refuse settings of the data where none are read: they would have no effect.

    Raises:
        UsageError: There are no data, but a mapping, or a split other than the default.
    """
    if all(one is None for one in data) and (mapping or split != "test"):
        raise UsageError(
            "This says how data are read, but no data are given.",
            where="--map" if mapping else "--split",
            fix="Give the data too, or leave it out.",
        )


class StoredBatches(Sequence[Feeds]):
    """The batches of a source, read and changed on access; the last one is kept."""

    def __init__(self, source: ArraySource, change: Callable[[Feeds], Feeds] | None = None) -> None:
        self.source, self.change = source, change
        self._last: tuple[int, Feeds] | None = None

    def __len__(self) -> int:
        return self.source.steps_per_epoch

    @overload
    def __getitem__(self, index: int) -> Feeds: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Feeds]: ...

    def __getitem__(self, index: int | slice) -> Feeds | Sequence[Feeds]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        number = index % len(self)
        if self._last is None or self._last[0] != number:
            batch: Feeds = next(self.source.epoch(0, number))
            self._last = number, batch if self.change is None else self.change(batch)
        return self._last[1]


def read_batches(source: Source) -> Sequence[Feeds]:
    """All batches of a source; those of large files and arrays are read on access."""
    arrays = source.arrays if isinstance(source, ArraySource) else {}
    if isinstance(source, ArraySource) and sum(a.nbytes for a in arrays.values()) > _HELD:
        return StoredBatches(source)
    return list(source.epoch(0))


def map_batches(change: Callable[[Feeds], Feeds], batches: Sequence[Feeds]) -> Sequence[Feeds]:
    """The batches, each changed by a function."""
    if not isinstance(batches, StoredBatches):
        return [change(batch) for batch in batches]
    inner = batches.change
    if inner is None:
        return StoredBatches(batches.source, change)
    return StoredBatches(batches.source, lambda batch: change(inner(batch)))


def padded_batches(
    batches: Sequence[Feeds], inputs: Sequence[InputLike], size: int | None
) -> tuple[Sequence[Feeds], list[int | None]]:
    """Pad batches to a size, if there is one; also returns how many samples of each are real."""
    if size is None:
        return batches, [None for _ in batches]
    axes = batch_axes(inputs)
    lengths: list[int | None] = [batch_length(batch, axes=axes) for batch in batches]
    return map_batches(lambda batch: pad_batch(batch, size, axes=axes)[0], batches), lengths
