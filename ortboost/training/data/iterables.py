"""Batches from any iterable, such as a list, a generator function or a torch ``DataLoader``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ortboost.core.arrays import as_array
from ortboost.core.errors import ArgumentValueError, UsageError, require_known
from ortboost.training.data.batches import (
    Part,
    batch_axes,
    batch_length,
    check_batch_size,
    part_rows,
    rows_of,
    static_batch,
)
from ortboost.training.data.values import are_pixels, convert, value_fault
from ortboost.training.protocols import Batch, InputLike

__all__ = ["Epochs", "IterableSource"]


class Epochs:
    """Any iterable that can be iterated over in each epoch, or a function that returns one.

    Its ``set_epoch(epoch)`` is called if it has one. Errors describe the data as ``what``.
    """

    def __init__(self, data: Iterable[Any] | Callable[[], Iterable[Any]], what: str) -> None:
        self._data, self._what = data, what
        self._used = False

    @property
    def steps_per_epoch(self) -> int | None:
        """``len(data)``, or None if it has no length."""
        try:
            return len(self._data)  # type: ignore[arg-type]
        except TypeError:
            return None

    def items(self, epoch: int) -> Iterable[Any]:
        """The iterable of an epoch.

        Raises:
            UsageError: It is not iterable, or only once, and this is its second epoch.
        """
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        iterable: Iterable[Any] = self._data() if callable(self._data) else self._data
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentValueError(
                "The data cannot be iterated.",
                where=f"{self._what}: {type(iterable).__name__}",
                fix="Pass an iterable of batches, or a function that returns one.",
            )
        # Not iter(iterable): that of a DataLoader would start its workers, and draw a seed.
        if isinstance(iterable, Iterator) and not callable(self._data):
            if self._used:
                raise ArgumentValueError(
                    "The data can be iterated only once.",
                    where=f"{self._what}: {type(iterable).__name__}, epoch {epoch}",
                    fix="Pass a list, or a function that returns a new iterator.",
                )
            self._used = True
        return iterable


class IterableSource(Epochs):
    """Batches from any iterable of dicts or tuples of arrays, or a torch ``DataLoader``.

    Tensors are recognised by their methods (``detach``, ``cpu``, ``numpy``); torch is not imported.

    Args:
        data: An iterable that can be iterated over in each epoch (a list, a ``DataLoader``), or a
            function without arguments that returns a new iterable. A generator object works for one
            epoch only; a second epoch is an error.
        inputs: The model's inputs: a tuple is matched to them in order, a dict by name, and arrays
            are converted to their dtypes.
        part: Rank and number of processes: this process keeps its part of each batch. The
            iterables of all processes must yield the same batches.
        mapping: Input name to its key in the dicts, where they differ.
        what: Description of the data, for error messages.

    Resuming consumes and drops the batches before the position. It is bit-exact if the iterable
    yields the same batches in the same epoch again, which the source cannot check.

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
        mapping: Mapping[str, str] | None = None,
        what: str = "data",
    ) -> None:
        super().__init__(data, what)
        size = getattr(data, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None  # that of the data, if they say
        self._part = part
        for name in mapping or ():
            known = [spec.name for spec in inputs]
            require_known(name, known, f"The model has no input '{name}'.", "map")
        self._keys = [(mapping or {}).get(spec.name, spec.name) for spec in inputs]
        self._opened: Iterator[Any] | None = None
        self._inputs = list(inputs)
        self._pixels: dict[str, bool] = {}  # whether an input is fed pixels
        self._fixed, self._axes = static_batch(self._inputs), batch_axes(self._inputs)

    def look(self) -> None:
        """Check the first batch; the next epoch starts with it.

        Raises:
            UsageError: It does not fit the inputs, or has NaN or a label that is not a class.
        """
        items = iter(self.items(0))
        first = list(itertools.islice(items, 1))
        self._opened = itertools.chain(first, items)
        for item in first:
            self._own_part(self._batch(item, f"{self._what}: batch 0", finite=True))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; the first ``start`` are consumed and dropped."""
        items, self._opened = self._opened, None
        for index, item in enumerate(self.items(epoch) if items is None else items):
            if index >= start:
                where = f"{self._what}: epoch {epoch}, batch {index}"
                yield self._own_part(self._batch(item, where))

    def fingerprint(self) -> dict[str, Any]:
        """The number of batches and the input names; the contents are not checked."""
        return {"iterable": self.steps_per_epoch, "inputs": [spec.name for spec in self._inputs]}

    def _batch(self, item: Any, where: str, *, finite: bool = False) -> Batch:
        if isinstance(item, Mapping):
            named = list(zip(self._inputs, self._keys, strict=True))
            missing = [spec.name for spec, key in named if key not in item]
            found = f"keys {', '.join(map(str, item))}"
            parts = [item.get(key) for key in self._keys]
        elif isinstance(item, tuple | list):
            missing = [spec.name for spec in self._inputs[len(item) :]]
            found = f"{len(item)} arrays"
            parts = list(item)
            if len(item) > len(self._inputs):
                raise UsageError(
                    f"A batch has {len(item)} arrays, but the model has {len(self._inputs)} "
                    "inputs.",
                    where=where,
                    fix=f"Pass them in this order: {', '.join(i.name for i in self._inputs)}.",
                )
        else:
            raise UsageError(
                f"A batch has the type {type(item).__name__}, not a dict or tuple of arrays.",
                where=where,
                fix="Yield {'input name': array} or (array, labels).",
            )
        if missing:
            raise UsageError(
                f"A batch has no array for the input '{missing[0]}'.",
                where=f"{where}: {found}",
                fix=f"The model's inputs are {', '.join(i.name for i in self._inputs)}; for "
                f"another name, --map {missing[0]}=NAME.",
            )
        batch: Batch = {}
        for spec, part in zip(self._inputs, parts, strict=True):
            array = as_array(part, f"{where}: '{spec.name}'")
            fault = value_fault(spec, spec.name, array, finite=finite)
            if fault is not None:
                raise UsageError(fault[0], where=f"{where}: {fault[1]}", fix=fault[2])
            pixels = are_pixels(array, spec.dtype)
            if self._pixels.setdefault(spec.name, pixels) != pixels:
                raise UsageError(
                    "Some batches have bytes, which are divided by 255, and others do not.",
                    where=f"{where}: '{spec.name}' is {array.dtype}",
                    fix="Give all batches one type.",
                )
            batch[spec.name] = convert(array, spec.dtype)
        batch_length(batch, where, axes=self._axes)  # refuses what is not a batch
        return batch

    def _own_part(self, batch: Batch) -> Batch:
        """This process's part of a batch, checked against a fixed batch size."""
        length = batch_length(batch, axes=self._axes)
        rows = part_rows(length, *self._part)
        if self._part[1] > 1:
            batch = Part(self._rows(batch, rows), length)
        self._check_size(rows.stop - rows.start)
        return batch

    def _rows(self, batch: Batch, rows: slice) -> Batch:
        return {name: rows_of(array, rows, self._axes[name]) for name, array in batch.items()}

    def _check_size(self, samples: int) -> None:
        if self._fixed is not None and samples > self._fixed:
            check_batch_size(self._inputs, samples, of=self._part[1])
