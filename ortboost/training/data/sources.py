"""Sources of batches: the interface of the trainer, and arrays.

A source yields the batches of an epoch from any position on. Its order depends only on (seed,
epoch), so that a resumed run sees the same batches as an uninterrupted one.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ortboost.core.cores import available_cores
from ortboost.core.errors import UsageError
from ortboost.core.field_types import write_config
from ortboost.training.data.batches import (
    Part,
    batch_axes,
    batch_length,
    check_batch_size,
    part_rows,
    rows_of,
)
from ortboost.training.data.checksums import checksum, checksum_of_ends
from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.images.config import ImageConfig
from ortboost.training.data.lazy import LazyArray, as_array_like, lazy_of
from ortboost.training.data.orders import epoch_order, window_order
from ortboost.training.data.values import are_pixels, convert, is_float
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = ["ArraySource", "ParallelSource", "Source"]

_MOST_THREADS = 8
_PROBED = 1000  # samples whose range is noted

_PIECE = 1 << 24  # labels per block when counting
_SPLIT = 2**64 - 1  # an epoch number that no epoch has


@runtime_checkable
class Source(Protocol):
    """The trainer's interface to data."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch, or None if unknown before its end."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON data that identifies the data, so that a resumed run can verify them."""


@runtime_checkable
class ParallelSource(Source, Protocol):
    """A source whose batches can be read by several threads."""

    @property
    def threads(self) -> int:
        """The recommended number of threads."""

    def tasks(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """Functions that read the batches of an epoch from ``start`` on, in any order."""


class ArraySource:
    """Batches from arrays in memory, mapped from disk, or read on access.

    Args:
        arrays: Input name to array ``[N, ...]``, as returned by :func:`bind_arrays`; see also
            :class:`~ortboost.training.data.lazy.LazyArray`.
        batch_size: Samples in a batch.
        shuffle: Shuffle each epoch, see :func:`epoch_order`.
        seed: Seed of the order, 0 or more.
        drop_last: Drop the last batch if it is incomplete; required to train a graph with a fixed
            batch size.
        inputs: The model's inputs; each batch is converted to their dtypes (in the prefetch
            thread) by :func:`convert`, and sliced along their batch axes. None keeps the dtypes and
            slices along axis 0. If no input has a batch axis, the arrays are one batch.
        part: Rank and number of processes: each batch is divided among them, and this process
            reads only its part.
        rows: Indices of the samples to use, in this order; None for all.
        augment: Apply the random augmentation of images.
        columns: Input name to the columns of a table that form its array.

    Raises:
        UsageError: There are no samples, the lengths differ, or the batch size is below 1 or not
            allowed by the model or ``drop_last``.

    Example:
        >>> source = ArraySource({"x": np.arange(5)}, batch_size=2)
        >>> [batch["x"].tolist() for batch in source.epoch(0, start=1)]
        [[2, 3], [4]]
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        inputs: Sequence[InputLike] | None = None,
        part: tuple[int, int] = (0, 1),
        rows: Array | None = None,
        augment: bool = False,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._augment = augment
        self.columns = {name: list(names) for name, names in (columns or {}).items()}
        self._axes = {**dict.fromkeys(arrays, 0), **batch_axes(inputs or ())}
        self._part = part
        self._rows = rows
        self.length = batch_length(arrays, "data", axes=self._axes) if rows is None else len(rows)
        if batch_size < 1:
            raise UsageError(
                "The batch size is not positive.", where="--batch-size", fix="Use 1 or more."
            )
        if seed < 0:
            raise UsageError("The seed is negative.", where="seed", fix="Use 0 or more.")
        if drop_last and self.length < batch_size:
            raise UsageError(
                f"{self.length} samples do not fill one batch of {batch_size}.",
                where="--batch-size",
                fix=f"Use a batch size of at most {self.length}, or keep the last, short batch.",
            )
        if inputs is not None and drop_last:
            # Every process must get exactly the fixed number of samples.
            for rank in range(part[1]):
                own = part_rows(batch_size, rank, part[1])
                check_batch_size(inputs, own.stop - own.start, of=part[1])
        self.arrays, self.batch_size = dict(arrays), batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self._dtypes = {spec.name: spec.dtype for spec in inputs or ()}
        self._inputs = inputs

    def split(self, share: float) -> tuple[ArraySource, ArraySource]:
        """Hold out random samples, drawn with the seed; the others keep their order.

        Args:
            share: Fraction of the samples to hold out, rounded to whole samples, at least one.

        Returns:
            The remaining samples and the held-out ones. The latter are not shuffled, keep short
            batches, and are not divided among processes.

        Raises:
            UsageError: The share is not between 0 and 1, or no samples remain.

        Example:
            >>> rest, held_out = ArraySource({"x": np.arange(10)}, 4, seed=1).split(0.2)
            >>> rest.length, held_out.length
            (8, 2)
        """
        count = max(1, round(share * self.length)) if 0 < share < 1 else self.length
        if count >= self.length:
            raise UsageError(
                f"A share of {share:g} of {self.length} samples cannot be held out.",
                where="--val-split",
                fix="Use a share between 0 and 1 that leaves samples on both sides, such as 0.1.",
            )
        order = epoch_order(self.length, self.seed, _SPLIT)
        parts = []
        for rows, training in ((order[count:], True), (order[:count], False)):
            rows = np.sort(rows)
            parts.append(
                ArraySource(
                    self.arrays,
                    self.batch_size,
                    shuffle=self.shuffle and training,
                    seed=self.seed,
                    drop_last=self.drop_last and training,
                    inputs=self._inputs,
                    part=self._part if training else (0, 1),
                    rows=rows if self._rows is None else self._rows[rows],
                    augment=self._augment and training,
                    columns=self.columns,
                )
            )
        return parts[0], parts[1]

    @property
    def images(self) -> ImageConfig | None:
        """The preprocessing of images, including the model's input size; None without images."""
        found = self._image_array
        return None if found is None else found.config

    @property
    def scaled(self) -> tuple[str, ...]:
        """The arrays of bytes that are divided by 255; images, which have settings, are not."""
        return tuple(
            name
            for name, array in self.arrays.items()
            if are_pixels(array, self._dtypes.get(name, array.dtype)) and name not in self._lazy
        )

    @functools.cached_property
    def ranges(self) -> dict[str, list[float]]:
        """The least and the largest value of float inputs in the first samples, as they are fed.

        Those of arrays that are read on demand are unknown.
        """
        found = {}
        for name, dtype in self._dtypes.items():
            array = self.arrays.get(name)
            if array is None or name in self._lazy or not is_float(dtype) or not array.size:
                continue
            values = convert(array[:_PROBED] if array.ndim else array, dtype)
            low, high = float(values.min()), float(values.max())
            if math.isfinite(high - low):  # NaN is refused elsewhere
                found[name] = [low, high]
        return found

    def counts(self, name: str, number: int) -> tuple[int, ...]:
        """The number of labels of each class; labels that are not a class are not counted.

        Args:
            name: The array of the labels.
            number: Number of classes.
        """
        labels, found = self.arrays[name], np.zeros(number, np.int64)
        step = max(1, _PIECE * self.length // max(1, labels.size))
        for start in range(0, self.length, step):  # mapped labels may not fit in memory
            rows: slice | Array = slice(start, start + step)
            rows = rows if self._rows is None else self._rows[rows]
            piece = rows_of(labels, rows, self._axes[name])
            known = piece[(piece >= 0) & (piece < number)].astype(np.int64)
            found += np.bincount(known, minlength=number)
        return tuple(found.tolist())

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    @property
    def smallest_batch(self) -> int:
        """Samples of the shortest batch of an epoch."""
        rest = 0 if self.drop_last else self.length % self.batch_size
        return rest or self.batch_size

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from ``start`` on; earlier ones are not read."""
        for task in self.tasks(epoch, start):
            yield task()

    def tasks(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """Functions that read the batches of an epoch from ``start`` on, in any order."""
        order = self._order(epoch) if self.shuffle else None
        arrays = dict(self.arrays)
        for name, array in self._lazy.items() if self._augment else ():
            arrays[name] = as_array_like(array.in_epoch(self.seed, epoch))

        def read(begin: int) -> Batch:
            end = min(begin + self.batch_size, self.length)
            own = part_rows(end - begin, *self._part)
            rows: slice | Array = slice(begin + own.start, begin + own.stop)
            # Place in the epoch -> index of the sample -> row of the array.
            for chosen in (order, self._rows):
                rows = rows if chosen is None else chosen[rows]
            batch = {
                name: convert(
                    rows_of(array, rows, self._axes[name]), self._dtypes.get(name, array.dtype)
                )
                for name, array in arrays.items()
            }
            return batch if self._part[1] == 1 else Part(batch, end - begin)

        for index in range(start, self.steps_per_epoch):
            yield functools.partial(read, index * self.batch_size)

    def _order(self, epoch: int) -> Array:
        """The shuffled order of an epoch: of all samples, or by windows of blocks."""
        blocks = next(filter(None, (array.blocks for array in self._lazy.values())), None)
        if blocks is None:
            return epoch_order(self.length, self.seed, epoch)
        if self._rows is not None:  # a split keeps a part of each block, in order
            blocks = blocks._replace(starts=np.searchsorted(self._rows, blocks.starts))
        return window_order(blocks, self.length, self.seed, epoch)

    @property
    def _lazy(self) -> dict[str, LazyArray]:
        found = ((name, lazy_of(array)) for name, array in self.arrays.items())
        return {name: array for name, array in found if array is not None}

    @property
    def _image_array(self) -> ImageArray | None:
        return next((a for a in self._lazy.values() if isinstance(a, ImageArray)), None)

    @property
    def threads(self) -> int:
        """The recommended number of threads: one, or one per core if samples are decoded."""
        decoded = any(array.decodes for array in self._lazy.values())
        return min(_MOST_THREADS, available_cores()) if decoded else 1

    @functools.cached_property
    def _contents(self) -> dict[str, int]:
        return {name: checksum(array) for name, array in self.arrays.items()}

    def fingerprint(self) -> dict[str, Any]:
        """Shapes, dtypes and checksums of the arrays, and the settings of the batches.

        ``crc`` covers the first and the last sample. ``content`` covers a whole array up to 256 MiB
        (0.1 to 0.3 s), and 64 MiB of pseudo-randomly chosen samples of a larger one. The checksums
        are computed once. ``range`` is that of :attr:`ranges`, ``columns`` those of a table.
        """
        return {
            "arrays": {
                name: {
                    "shape": list(array.shape),
                    "dtype": array.dtype.str,
                    "crc": checksum_of_ends(array),
                    "content": self._contents[name],
                    **({"range": self.ranges[name]} if name in self.ranges else {}),
                    **({"columns": self.columns[name]} if name in self.columns else {}),
                }
                for name, array in sorted(self.arrays.items())
            },
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            **({} if self._rows is None else {"rows": zlib.crc32(self._rows.tobytes())}),
            **self._image_settings(),
        }

    def _image_settings(self) -> dict[str, Any]:
        """The image settings as JSON data, to resume the run or evaluate its model."""
        found = self._image_array
        if found is None:
            return {}
        configs = {"images": found.config, "augment": found.augment if self._augment else None}
        return {key: write_config(config) for key, config in configs.items() if config}
