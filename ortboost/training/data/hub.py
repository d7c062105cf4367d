"""Objects of Hugging Face ``datasets``, recognised by their methods; without importing it.

A ``Dataset`` is a table (:mod:`ortboost.training.data.tables`) of numbers, lists of a fixed length,
``Array2D`` and so on, and images, which are decoded on access; columns that ``set_format`` leaves
out are left out. One with a transform of its own (``with_transform``) is not a table: its samples
are read one by one. Of a ``DatasetDict`` the requested split is used. An ``IterableDataset`` is a
stream of batches; its ``set_epoch`` is called if it exists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortboost.core.errors import UsageError
from ortboost.training.data.bind import bind_arrays
from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.images.config import AugmentConfig, ImageConfig
from ortboost.training.data.images.stores import ItemImages
from ortboost.training.data.keys import SPLIT_NAMES
from ortboost.training.data.lazy import LazyArray, as_array_like
from ortboost.training.data.tables import MemoryTable, Table
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = [
    "DatasetTable",
    "StreamBatches",
    "chosen_split",
    "is_dataset",
    "is_stream",
    "is_transformed",
]


def is_dataset(data: Any) -> bool:
    """Whether ``data`` is a ``datasets.Dataset``, or behaves like one."""
    return _has_methods(data, "features", "select_columns", "__getitem__", "__len__")


def is_transformed(data: Any) -> bool:
    """Whether ``data`` is a ``datasets.Dataset`` whose samples a function of the user makes."""
    return is_dataset(data) and _format(data).get("type") == "custom"


def is_stream(data: Any) -> bool:
    """Whether ``data`` is a ``datasets.IterableDataset``, or behaves like one."""
    return _has_methods(data, "iter", "__iter__") and not is_dataset(data)


def chosen_split(data: Any, split: str) -> Any:
    """Select a split of a mapping such as a ``DatasetDict``; other data are returned unchanged.

    Raises:
        UsageError: There is no data set for this split.
    """
    if not isinstance(data, Mapping) or not data:
        return data
    if not all(is_dataset(one) or is_stream(one) for one in data.values()):
        return data
    for name in SPLIT_NAMES[split]:
        if name in data:
            return data[name]
    raise UsageError(
        f"The data sets have no split '{split}'.",
        where=f"data: {', '.join(map(str, data))}",
        fix="Pass one of them: data['NAME'].",
    )


class DatasetTable(Table):
    """The columns of a data set."""

    kind = UsageError

    def __init__(
        self, dataset: Any, images: ImageConfig | None, augment: AugmentConfig | None
    ) -> None:
        names = _format(dataset).get("columns") or dataset.column_names
        super().__init__(list(names), f"data: {type(dataset).__name__}")
        self._dataset, self._images, self._augment = dataset, images or ImageConfig(), augment

    def column(self, name: str) -> Array:
        """A column, whose rows are read on access."""
        feature, only = self._dataset.features[name], self._dataset.select_columns([name])
        if type(feature).__name__ == "Image":
            plain = only.with_format(None)  # a format such as torch would decode to tensors
            store = ItemImages(lambda row: plain[row][name], len(plain), f"column '{name}'")
            return as_array_like(ImageArray(store, self._named(), self._augment))
        return as_array_like(_DatasetArray(only, name, self._number(name)))

    def _number(self, name: str) -> np.dtype[Any]:
        """The dtype of the numbers of a column, including those in lists."""
        feature = self._dataset.features[name]
        inner = feature  # of lists and arrays, the feature of their elements
        while hasattr(inner, "feature"):
            inner = inner.feature
        try:
            kind: np.dtype[Any] = np.dtype(getattr(inner, "dtype", None))
        except TypeError:
            kind = np.dtype("V")
        # A feature without a dtype was taken for float64, which is np.dtype(None).
        if kind.kind not in "biuf" or getattr(inner, "dtype", None) is None:
            raise UsageError(
                f"The column '{name}' is not numeric.",
                where=f"{self.where}: {feature}",
                fix="Encode it (class_encode_column, map), or drop it (remove_columns).",
            )
        return kind

    def _named(self) -> ImageConfig:
        """The image settings with the class names, in the order of the class indices."""
        known = [f.names for f in self._dataset.features.values() if getattr(f, "names", None)]
        names = tuple(known[0]) if len(known) == 1 else ()
        if names and self._images.classes and names != self._images.classes:
            raise UsageError(
                "The classes differ from those of the training.",
                where=f"{self.where}: {', '.join(names[:8])}; trained: "
                f"{', '.join(self._images.classes[:8])}",
                fix="Give the labels the same names and indices (cast_column, "
                "align_labels_with_mapping).",
            )
        return dataclasses.replace(self._images, classes=self._images.classes or names)


class _DatasetArray(LazyArray):
    """A column of numbers."""

    def __init__(self, dataset: Any, name: str, kind: np.dtype[Any]) -> None:
        self._name, self._where = name, f"column '{name}'"
        self._dataset = dataset.with_format("numpy", dtype=kind)
        self._arrow = None if kind.kind == "f" else dataset.with_format("arrow")
        first = np.asarray(self._dataset[0][name]) if len(dataset) else np.empty(0, kind)
        self._sample = first.shape
        super().__init__((len(dataset), *first.shape), kind)

    def read(self, rows: Array) -> Array:
        """Read rows of the data set."""
        # As floats, missing values are NaN; as integers, they would be any number.
        if self._arrow is not None and _has_nulls(self._arrow[rows.tolist()][self._name]):
            raise UsageError(
                "A column has cells without a value (None).",
                where=f"{self._where}, rows {rows.min()} to {rows.max()}",
                fix="Fill or drop these rows (map, filter).",
            )
        found = np.asarray(self._dataset[rows.tolist()][self._name])
        if found.shape[1:] != self._sample or found.dtype != self.dtype:
            raise UsageError(
                "The rows of a column differ in shape, or lack values.",
                where=f"{self._where}: {found.dtype} {list(found.shape)} in rows {rows.min()} to "
                f"{rows.max()}",
                fix="Pad or crop them to one shape, and fill or drop rows without a value (map, "
                "filter); or give a DataLoader whose collate_fn pads them.",
            )
        return found


def _has_nulls(column: Any) -> bool:
    """Whether a column of Arrow has missing values, also within lists."""
    values = column.combine_chunks()
    while not values.null_count and hasattr(values.type, "value_type"):
        values = values.storage if hasattr(values, "storage") else values
        values = values.flatten()
    return bool(values.null_count)


@dataclass(frozen=True)
class StreamBatches:
    """The batches of a ``datasets.IterableDataset``; can be iterated over repeatedly."""

    stream: Any
    batch_size: int
    inputs: Sequence[InputLike]
    mapping: Mapping[str, str] | None
    drop_last: bool

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the stream, which changes the order of a shuffled one."""
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:
        samples = self.stream.with_format("numpy")
        for batch in samples.iter(self.batch_size, drop_last_batch=self.drop_last):
            columns = {name: np.asarray(values) for name, values in batch.items()}
            arrays = MemoryTable(columns, "data").arrays(self.inputs, self.mapping)
            yield bind_arrays(arrays, self.inputs, mapping=self.mapping)


def _format(dataset: Any) -> Mapping[str, Any]:
    """What ``set_format`` and ``set_transform`` set."""
    found: Mapping[str, Any] = getattr(dataset, "format", {})
    return found


def _has_methods(data: Any, *names: str) -> bool:
    needed = ("column_names", "with_format", *names)
    return not isinstance(data, type) and all(hasattr(data, name) for name in needed)
