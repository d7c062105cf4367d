"""Open any kind of data as a source of batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.training.data.bind import bind_arrays, label_keys
from ortboost.training.data.given import given_arrays, given_columns, is_frame
from ortboost.training.data.hub import (
    DatasetTable,
    StreamBatches,
    chosen_split,
    is_dataset,
    is_stream,
    is_transformed,
)
from ortboost.training.data.images.array import as_images
from ortboost.training.data.images.config import AugmentConfig, ImageConfig
from ortboost.training.data.iterables import IterableSource
from ortboost.training.data.load import find_table, load_arrays
from ortboost.training.data.samples import SampleSource, gives_samples
from ortboost.training.data.sources import ArraySource, Source
from ortboost.training.data.tables import FrameTable, Table
from ortboost.training.protocols import InputLike

__all__ = ["open_source"]


def open_source(
    data: Any,
    inputs: Sequence[InputLike],
    split: str,
    batch_size: int,
    mapping: Mapping[str, str] | None,
    *,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    part: tuple[int, int] = (0, 1),
    what: str = "data",
    images: ImageConfig | None = None,
    augment: AugmentConfig | None = None,
) -> Source:
    """Make a source of batches from any kind of data.

    Args:
        data: A file or folder, arrays or tensors by name or in order, a table of columns (see
            :func:`given_arrays`), a Hugging Face data set, a data set with samples by index
            (torch), a source (returned unchanged), or any iterable of batches.
        inputs: The inputs to feed.
        split: The split to use if the data have several, ``train``, ``test`` or ``val``.
        batch_size: Samples in a batch, for files and arrays.
        mapping: Input name to the key of its array.
        shuffle: Shuffle the samples in each epoch.
        seed: Seed of the order.
        drop_last: Drop the last batch if it is incomplete.
        part: Rank and number of processes: each batch is divided among them.
        what: Description of the data (``validation data``), for error messages.
        images: How images (files, or uint8 arrays) are converted to inputs.
        augment: Random augmentation of images.

    Raises:
        FileError: A file cannot be read, or does not fit the inputs.
        UsageError: Arrays or arguments do not fit.
    """
    arrays: Mapping[str, NDArray[Any]] | None
    data = chosen_split(data, split)
    if hasattr(data, "collect") and hasattr(data, "collect_schema"):
        data = data.collect()  # a LazyFrame of polars
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "drop_last": drop_last, "part": part}
    path = str(data) if isinstance(data, (str, os.PathLike)) else None
    table = _table_of(data, split, images, augment)
    if table is not None:
        arrays = table.arrays(inputs, mapping)
    elif path is not None:
        arrays = load_arrays(path, split=split, images=images, augment=augment)
    elif (arrays := given_arrays(data, inputs, mapping)) is None:
        if images is not None or augment is not None:  # refuses, or warns
            as_images({}, (), images or ImageConfig(), augment, what)
        return _batch_source(data, inputs, batch_size, mapping, order, what)
    names: dict[str, Any] = {"split": split, "mapping": mapping, "path": path, "what": what}
    if images is not None or augment is not None:
        labels = label_keys(arrays, inputs, **names)
        arrays = as_images(arrays, labels, images or ImageConfig(), augment, path or what)
    bound = bind_arrays(arrays, inputs, **names)
    columns = given_columns(data, inputs, mapping) if table is None else table.formed
    return ArraySource(
        bound, batch_size, inputs=inputs, augment=augment is not None, columns=columns, **order
    )


def _table_of(
    data: Any, split: str, images: ImageConfig | None, augment: AugmentConfig | None
) -> Table | None:
    """The data as a table of columns, if they are one."""
    if isinstance(data, (str, os.PathLike)):
        return find_table(data, split)
    if is_dataset(data) and not is_transformed(data):
        return DatasetTable(data, images, augment)
    return FrameTable(data) if is_frame(data) else None


def _batch_source(
    data: Any,
    inputs: Sequence[InputLike],
    batch_size: int,
    mapping: Mapping[str, str] | None,
    order: dict[str, Any],
    what: str,
) -> Source:
    """A source of data that are not arrays: a stream, a source, samples, or batches."""
    part = order["part"]
    if is_stream(data):
        data = StreamBatches(data, batch_size, inputs, mapping, order["drop_last"])
        return IterableSource(data, inputs, part, what=what)
    if hasattr(data, "epoch") and hasattr(data, "steps_per_epoch"):
        if not isinstance(data, Source):
            raise UsageError(
                "A custom source lacks a method.",
                where=f"data: {type(data).__name__}",
                fix="It needs epoch(epoch, start), steps_per_epoch and fingerprint(), see "
                "ortboost.training.Source.",
            )
        if part[1] > 1:
            raise UsageError(
                "A custom source cannot be divided among processes.",
                where=f"data: {type(data).__name__}",
                fix="Pass a file, arrays or an iterable of batches.",
            )
        return data
    if is_transformed(data) or gives_samples(data):
        return SampleSource(data, inputs, batch_size, mapping=mapping, what=what, **order)
    return IterableSource(data, inputs, part, mapping=mapping, what=what)
