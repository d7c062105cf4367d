"""Where batches come from: arrays, any iterable, a torch ``DataLoader``.

A source gives the batches of an epoch from any position on. Its order is a function of
(seed, epoch) alone, so that a resumed run sees the same batches as an uninterrupted one.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import UsageError
from ortboost.core.field_types import write_config
from ortboost.training.data.batches import (
    Part,
    batch_axes,
    batch_length,
    check_batch_size,
    part_rows,
    rows_of,
    static_batch,
)
from ortboost.training.data.bind import convert, first_row, stray_label
from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.images.config import ImageConfig
from ortboost.training.data.lazy import Blocks, LazyArray, as_array_like, lazy_of
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = [
    "ArraySource",
    "IterableSource",
    "ParallelSource",
    "Source",
    "epoch_order",
    "window_order",
]

_WHOLE, _SAMPLED, _CHUNK = 256 << 20, 64 << 20, 4 << 20  # bytes
_MOST_THREADS = 8

_PIECE = 1 << 24  # labels that are counted at once
_SPLIT = 2**64 - 1  # in place of an epoch: no epoch is shuffled like that


@runtime_checkable
class Source(Protocol):
    """What the trainer asks of data."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches in an epoch, or None when that is not known before its end."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""

    def fingerprint(self) -> dict[str, Any]:
        """JSON data by which a resumed run recognises its data."""


@runtime_checkable
class ParallelSource(Source, Protocol):
    """A source whose batches can be read by several threads."""

    @property
    def threads(self) -> int:
        """How many it pays to read with."""

    def tasks(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """What reads each batch of an epoch from ``start`` on, in any thread and order."""


def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The shuffled order of an epoch, a function of its arguments alone.

    Sorts ``length`` raw 64-bit draws of Philox seeded with (seed, epoch). Raw draws, unlike
    ``Generator.permutation``, are promised to stay the same in all versions of numpy (NEP 19).

    Returns:
        A permutation of ``0 .. length - 1``, int64.
    """
    draws = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(length)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def window_order(
    blocks: Blocks, length: int, seed: int, epoch: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The order of an epoch over rows that are read in blocks, a function of its arguments alone.

    The blocks are shuffled; then each ``window`` of them in a row is shuffled row by row, so that
    no more than one window (two, where they meet) has to be in memory. Draws as in :func:`epoch_order`.

    Args:
        blocks: The blocks; a block may be empty.
        length: Number of rows.
        seed: Seed of the run.
        epoch: Number of the epoch.

    Returns:
        A permutation of ``0 .. length - 1``, int64.

    Example:
        >>> order = window_order(Blocks(np.array([0, 4, 8]), 1), 10, seed=0, epoch=0)
        >>> sorted(order[:4].tolist()), sorted(order.tolist()) == list(range(10))
        ([0, 1, 2, 3], True)
    """
    number = len(blocks.starts)
    draws = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(number + length)
    shuffled, draws = np.argsort(draws[:number], kind="stable"), draws[number:]
    ends = np.append(blocks.starts[1:], length)
    order = np.empty(length, np.int64)
    filled = 0
    for first in range(0, number, blocks.window):
        chosen = shuffled[first : first + blocks.window]
        rows = np.concatenate([np.arange(blocks.starts[i], ends[i]) for i in chosen])
        order[filled : filled + len(rows)] = rows[np.argsort(draws[rows], kind="stable")]
        filled += len(rows)
    return order


class ArraySource:
    """Batches out of arrays in memory, mapped from disk, or read when they are needed.

    Args:
        arrays: Input name to array ``[N, ...]``, as :func:`bind_arrays` gives it; see also
            :class:`~ortboost.training.data.lazy.LazyArray`.
        batch_size: Samples in a batch.
        shuffle: Give each epoch its own order, see :func:`epoch_order`.
        seed: Seed of the order, 0 or more.
        drop_last: Leave out the last batch when it is short. Training a graph with a fixed batch
            axis needs it.
        inputs: The model's inputs; each batch is converted to their dtypes (in the prefetch
            thread) by :func:`convert`, and cut along their batch axes. None leaves the dtypes alone
            and cuts along axis 0. Where no input has a batch axis, all arrays are one batch.
        part: Rank and number of processes: each batch is divided, and this process reads its part only.
        rows: The samples to use, by number and in this order; all if not given.
        augment: Let images vary from epoch to epoch, as their settings say.

    Raises:
        UsageError: No samples, unequal lengths, a batch size below 1 or one that the model or
            ``drop_last`` does not allow.

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
    ) -> None:
        self._augment = augment
        self._axes = {**dict.fromkeys(arrays, 0), **batch_axes(inputs or ())}
        self._part = part
        self._rows = rows
        self.length = batch_length(arrays, "data", axes=self._axes) if rows is None else len(rows)
        if batch_size < 1:
            raise UsageError("A batch needs samples.", where="batch_size", fix="Use 1 or more.")
        if seed < 0:
            raise UsageError("The seed is negative.", where="seed", fix="Use 0 or more.")
        if drop_last and self.length < batch_size:
            raise UsageError(
                f"{self.length} samples do not fill one batch of {batch_size}.",
                where="batch_size",
                fix=f"Use a batch size of at most {self.length}, or keep the last, short batch.",
            )
        if inputs is not None and drop_last:
            for rank in range(part[1]):
                own = part_rows(batch_size, rank, part[1])
                check_batch_size(inputs, own.stop - own.start, of=part[1])
        self.arrays, self.batch_size = dict(arrays), batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self._dtypes = {spec.name: spec.dtype for spec in inputs or ()}
        self._inputs = inputs

    def split(self, share: float) -> tuple[ArraySource, ArraySource]:
        """Hold a part of the samples out, drawn with the seed; the others keep their order.

        Args:
            share: Share of the samples to hold out, rounded to whole samples, at least one.

        Returns:
            The rest, and what is held out: not shuffled, short batches kept, for every process all of it.

        Raises:
            UsageError: The share is not between 0 and 1, or leaves no sample.

        Example:
            >>> rest, held_out = ArraySource({"x": np.arange(10)}, 4, seed=1).split(0.2)
            >>> rest.length, held_out.length
            (8, 2)
        """
        count = max(1, round(share * self.length)) if 0 < share < 1 else self.length
        if count >= self.length:
            raise UsageError(
                f"A share of {share:g} of {self.length} samples cannot be held out.",
                where="val_split",
                fix="Give a share between 0 and 1 that leaves samples on both sides, such as 0.1.",
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
                )
            )
        return parts[0], parts[1]

    @property
    def images(self) -> ImageConfig | None:
        """What is done to images, the size that the model sees included; None if there are none."""
        arrays = (array for array in self._lazy.values() if isinstance(array, ImageArray))
        return next((array.config for array in arrays), None)

    def counts(self, name: str, number: int) -> tuple[int, ...]:
        """How many of the labels are each class; labels that are none count nowhere.

        Args:
            name: The array of the labels.
            number: How many classes there are.
        """
        labels, found = self.arrays[name], np.zeros(number, np.int64)
        step = max(1, _PIECE * self.length // max(1, labels.size))
        for start in range(0, self.length, step):  # mapped labels may be larger than the memory
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

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from ``start`` on; the ones before it are not read."""
        for task in self.tasks(epoch, start):
            yield task()

    def tasks(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """What reads each batch of an epoch from ``start`` on, in any thread and order."""
        order = self._order(epoch) if self.shuffle else None
        arrays = dict(self.arrays)
        for name, array in self._lazy.items() if self._augment else ():
            arrays[name] = as_array_like(array.in_epoch(self.seed, epoch))

        def read(begin: int) -> Batch:
            end = min(begin + self.batch_size, self.length)
            own = part_rows(end - begin, *self._part)
            rows: slice | Array = slice(begin + own.start, begin + own.stop)
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
        """The shuffled order of an epoch: of all samples, or window by window where they are read in blocks."""
        blocks = next(filter(None, (array.blocks for array in self._lazy.values())), None)
        if blocks is None:
            return epoch_order(self.length, self.seed, epoch)
        if self._rows is not None:
            blocks = blocks._replace(starts=np.searchsorted(self._rows, blocks.starts))
        return window_order(blocks, self.length, self.seed, epoch)

    @property
    def _lazy(self) -> dict[str, LazyArray]:
        found = ((name, lazy_of(array)) for name, array in self.arrays.items())
        return {name: array for name, array in found if array is not None}

    @property
    def threads(self) -> int:
        """Threads that it pays to read with: one, and one for each core where samples are decoded."""
        decoded = any(array.decodes for array in self._lazy.values())
        return min(_MOST_THREADS, os.cpu_count() or 1) if decoded else 1

    @functools.cached_property
    def _contents(self) -> dict[str, int]:
        return {name: _content(array) for name, array in self.arrays.items()}

    def fingerprint(self) -> dict[str, Any]:
        """Sizes, dtypes and checksums of each array, and how they are cut.

        ``crc`` is of the first and the last sample; ``content`` of all of an array up to 256 MiB (0.1 to
        0.3 s), and of a seeded choice of samples, 64 MiB of them, of a larger one. They are computed once.
        """
        return {
            "arrays": {
                name: {
                    "shape": list(array.shape),
                    "dtype": array.dtype.str,
                    "crc": zlib.crc32(np.ascontiguousarray(_ends(array)).tobytes()),
                    "content": self._contents[name],
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
        """As JSON data, so that a run can go on, and its model be measured, with the same."""
        found = next((a for a in self._lazy.values() if isinstance(a, ImageArray)), None)
        if found is None:
            return {}
        configs = {"images": found.config, "augment": found.augment if self._augment else None}
        written = {key: write_config(config) for key, config in configs.items() if config}
        settings: dict[str, Any] = json.loads(json.dumps(written))
        return settings


def _ends(array: Array) -> Array:
    """The first and last entry of axis 0; a scalar itself."""
    return array[[0, -1]] if array.ndim else array


def _content(array: Array) -> int:
    """A checksum of an array, or of a choice of its samples if it is large."""
    lazy = lazy_of(array)
    found = None if lazy is None else lazy.checksum()
    if found is not None:
        return found
    if not array.ndim or not array.nbytes:
        return zlib.crc32(np.ascontiguousarray(array).tobytes())
    chosen = None
    if array.nbytes > _WHOLE:
        number = max(1, _SAMPLED * len(array) // array.nbytes)
        chosen = np.sort(epoch_order(len(array), 0, 0)[:number])
    length = len(array) if chosen is None else len(chosen)
    found, step = 0, max(1, _CHUNK * len(array) // array.nbytes)
    for start in range(0, length, step):
        rows = slice(start, start + step)
        part = array[rows] if chosen is None else array[chosen[rows]]
        found = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), found)
    return found


class IterableSource:
    """Batches out of any iterable of dicts or tuples of arrays, or a torch ``DataLoader``.

    Tensors are recognised by what they can do (``detach``, ``cpu``, ``numpy``); torch is not imported.

    Args:
        data: An iterable that can be iterated once an epoch (a list, a ``DataLoader``), or a
            function without arguments that gives a fresh iterable. A generator object works for
            one epoch only; a second one is refused.
        inputs: The model's inputs: a tuple is matched to them in order, a dict by name, and arrays
            are converted to their dtypes.
        part: Rank and number of processes: of each batch that the iterable gives, this process keeps
            its part. The iterables of all processes must give the same batches.
        what: What the data are, for errors.

    Resuming consumes and drops the batches before the position. It is bit-exact if the iterable
    gives the same batches in the same epoch again; the source cannot check that.

    Example:
        >>> spec = [InputSpec("x", np.dtype("float32"), ("N",))]  # doctest: +SKIP
        >>> list(IterableSource([(np.ones(2),)], spec).epoch(0))  # doctest: +SKIP
        [{'x': array([1., 1.], dtype=float32)}]
    """

    def __init__(
        self,
        data: Iterable[Any] | Callable[[], Iterable[Any]],
        inputs: Sequence[InputLike],
        part: tuple[int, int] = (0, 1),
        *,
        what: str = "data",
    ) -> None:
        self._part, self._what = part, what
        self._opened: Iterator[Any] | None = None
        self._data, self._inputs = data, list(inputs)
        self._fixed, self._axes = static_batch(self._inputs), batch_axes(self._inputs)
        self._used = False

    @property
    def steps_per_epoch(self) -> int | None:
        """``len(data)`` where there is one."""
        try:
            return len(self._data)  # type: ignore[arg-type]
        except TypeError:
            return None

    def look(self) -> None:
        """Check the first batch; the next epoch begins with it.

        Raises:
            UsageError: It does not fit the inputs, or holds NaN or a label that is no class.
        """
        items = iter(self._items(0))
        first = list(itertools.islice(items, 1))
        self._opened = itertools.chain(first, items)
        for item in first:
            batch = self._batch(item, f"{self._what}: batch 0")
            for name, array in batch.items():
                row = None
                if array.dtype.kind == "f":
                    row = first_row(array, lambda piece: ~np.isfinite(piece))
                if row is not None:
                    raise UsageError(
                        f"The array '{name}' holds NaN or infinite values.",
                        where=f"{self._what}: batch 0, row {row}",
                        fix="Clean the data: drop or fill these rows.",
                    )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; the first ``start`` are consumed and dropped."""
        items, self._opened = self._opened, None
        for index, item in enumerate(self._items(epoch) if items is None else items):
            if index >= start:
                yield self._batch(item, f"{self._what}: epoch {epoch}, batch {index}")

    def _items(self, epoch: int) -> Iterable[Any]:
        """What the data give in an epoch."""
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        iterable: Iterable[Any] = self._data() if callable(self._data) else self._data
        if not hasattr(iterable, "__iter__"):
            raise UsageError(
                "The data cannot be iterated.",
                where=f"{self._what}: {type(iterable).__name__}",
                fix="Give an iterable of batches, or a function that returns one.",
            )
        if iterable is iter(iterable) and not callable(self._data):
            if self._used:
                raise UsageError(
                    "The data can be iterated only once.",
                    where=f"{self._what}: {type(iterable).__name__}, epoch {epoch}",
                    fix="Give a list, or a function that returns a fresh iterator.",
                )
            self._used = True
        return iterable

    def fingerprint(self) -> dict[str, Any]:
        """The number of batches and the names; the contents are the caller's."""
        return {"iterable": self.steps_per_epoch, "inputs": [spec.name for spec in self._inputs]}

    def _batch(self, item: Any, where: str) -> Batch:
        if isinstance(item, Mapping):
            missing = [spec.name for spec in self._inputs if spec.name not in item]
            found = f"keys {', '.join(map(str, item))}"
            parts = [item.get(spec.name) for spec in self._inputs]
        elif isinstance(item, tuple | list):
            missing = [spec.name for spec in self._inputs[len(item) :]]
            found = f"{len(item)} arrays"
            parts = list(item)
            if len(item) > len(self._inputs):
                raise UsageError(
                    f"A batch has {len(item)} arrays, the model {len(self._inputs)} inputs.",
                    where=where,
                    fix=f"Give them in this order: {', '.join(i.name for i in self._inputs)}.",
                )
        else:
            raise UsageError(
                f"A batch is a {type(item).__name__}, not a dict or tuple of arrays.",
                where=where,
                fix="Yield {'input name': array} or (array, labels).",
            )
        if missing:
            raise UsageError(
                f"A batch has no array for the input '{missing[0]}'.",
                where=f"{where}: {found}",
                fix=f"The model's inputs are {', '.join(i.name for i in self._inputs)}.",
            )
        batch = {
            spec.name: convert(as_array(part, f"{where}: '{spec.name}'"), spec.dtype)
            for spec, part in zip(self._inputs, parts, strict=True)
        }
        for spec in self._inputs:
            stray = stray_label(spec, batch[spec.name])
            if stray is not None:
                raise UsageError(stray[0], where=f"{where}, row {stray[1]}", fix=stray[2])
        length = batch_length(batch, where, axes=self._axes)
        if self._part[1] > 1:
            rows = part_rows(length, *self._part)
            own = {name: rows_of(array, rows, self._axes[name]) for name, array in batch.items()}
            batch, length = Part(own, length), rows.stop - rows.start
        if self._fixed is not None and length > self._fixed:
            check_batch_size(self._inputs, length, of=self._part[1])
        return batch
