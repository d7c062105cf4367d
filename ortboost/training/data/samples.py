"""Data sets that return one sample at a time, such as a map-style ``torch.utils.data.Dataset``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import ArgumentTypeError, UsageError
from ortboost.training.data.batches import Part
from ortboost.training.data.iterables import IterableSource
from ortboost.training.data.sources import ArraySource
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = ["SampleSource", "gives_samples"]


def gives_samples(data: Any) -> bool:
    """Whether ``data`` has samples by index, but cannot be iterated over."""
    return (
        hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
        and not hasattr(data, "__iter__")
        and not isinstance(data, type)
    )


class SampleSource(IterableSource):
    """Batches of samples ``data[i]``: tuples in the order of the inputs, or dicts by their names.

    Args:
        data: The data set, with ``len`` and samples by index; with more than one of ``workers``,
            several threads access it concurrently.
        inputs, mapping, what: As for :class:`IterableSource`.
        batch_size, shuffle, seed, drop_last, part: As for :class:`ArraySource`, in the same order.

    Resuming reads only the remaining samples. It is bit-exact if a sample is the same each time
    it is read, that is, without random transforms in the data set.

    Raises:
        UsageError: There are no samples, or they do not fill a batch.
    """

    def __init__(
        self,
        data: Any,
        inputs: Sequence[InputLike],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        mapping: Mapping[str, str] | None = None,
        part: tuple[int, int] = (0, 1),
        what: str = "data",
    ) -> None:
        # The order is that of an array of indices: shuffled, divided and resumed as arrays are.
        super().__init__([], inputs, part, mapping=mapping, what=what)
        self._samples, self.batch_size = data, batch_size
        self._order = ArraySource(
            {"row": np.arange(len(data))},
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            part=part,
        )

    threads = 1  # the user's data set may not be thread-safe; more on request

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return self._order.steps_per_epoch

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from ``start`` on; earlier samples are not read."""
        for task in self.tasks(epoch, start):
            yield task()

    def tasks(self, epoch: int, start: int = 0) -> Iterator[Callable[[], Batch]]:
        """Functions that read the batches of an epoch from ``start`` on."""
        for index, batch in enumerate(self._order.epoch(epoch, start), start):
            where = f"{self._what}: epoch {epoch}, batch {index}"
            yield functools.partial(self._read, batch, where)

    def fingerprint(self) -> dict[str, Any]:
        """Number and order of the samples; their contents are not checked."""
        return {**super().fingerprint(), "order": self._order.fingerprint()}

    def items(self, epoch: int) -> Iterator[Any]:
        """The samples of an epoch, collated to batches."""
        for batch in self._order.epoch(epoch):
            yield self._collated(batch["row"].tolist(), f"{self._what}: epoch {epoch}")

    def _read(self, chosen: Batch, where: str) -> Batch:
        rows = chosen["row"].tolist()
        # A process without a sample of its own needs one for the shapes.
        batch = self._batch(self._collated(rows or [0], where), where)
        self._check_size(len(rows))
        if isinstance(chosen, Part):
            return Part(self._rows(batch, slice(len(rows))), chosen.samples)
        return batch

    def _collated(self, rows: Sequence[int], where: str) -> Any:
        samples = [self._samples[row] for row in rows]
        forms = {_form(sample, self._keys) for sample in samples}
        if len(forms) > 1:
            raise UsageError(
                "The samples of a batch differ in form.",
                where=f"{where}: {' and '.join(sorted(forms)[:2])}",
                fix="Return the same keys, or the same number of arrays, for each sample.",
            )
        if isinstance(samples[0], Mapping):
            return {
                key: _stacked([sample[key] for sample in samples], f"{where}: '{key}'")
                for key in self._keys
                if key in samples[0]
            }
        if isinstance(samples[0], tuple | list):
            parts = zip(*samples, strict=True)
            return tuple(_stacked(part, f"{where}: part {i}") for i, part in enumerate(parts))
        return (_stacked(samples, where),)


def _form(sample: Any, keys: Sequence[str]) -> str:
    """The keys that are inputs, or the number of parts, for error messages."""
    if isinstance(sample, Mapping):
        return f"keys {', '.join(key for key in keys if key in sample)}"
    return f"{len(sample)} parts" if isinstance(sample, tuple | list) else "one array"


def _stacked(values: Sequence[Any], where: str) -> Array:
    arrays = [as_array(value, where) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ArgumentTypeError(
            "The samples of a batch differ in shape.",
            where=f"{where}: {', '.join(map(str, sorted(shapes)[:4]))}",
            fix="Pad or crop them to one shape.",
        )
    if len({array.dtype == np.uint8 for array in arrays}) > 1 and arrays[0].ndim:
        raise ArgumentTypeError(
            "Some samples of a batch are bytes, and others are not.",
            where=f"{where}: {', '.join(sorted({str(array.dtype) for array in arrays}))}",
            fix="Give all samples one type: bytes for a float input are divided by 255.",
        )
    return np.stack(arrays)
