"""Parquet files, and folders of them: columns by name, read row group by row group.

A row group is the unit that Parquet compresses and that is read at once. At most two windows of 128
MiB of row groups (:data:`WINDOW`; at least one row group) are held in memory, so that a file may be
larger than the memory. Training shuffles the row groups, and the rows within each window
(:func:`~ortboost.training.data.orders.window_order`). A file that fits in a window is shuffled as
a whole.

Types: integers, floats and booleans; lists of a fixed length add an axis. Other types and null
values are errors. The index of a pandas table is not a column.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ortboost.core.errors import DependencyError, FileError, all_lines
from ortboost.training.data.keys import SPLIT_NAMES
from ortboost.training.data.lazy import Blocks, LazyArray, as_array_like
from ortboost.training.data.tables import Table
from ortboost.training.data.unpacked import check_unpacked
from ortboost.training.protocols import Array

__all__ = ["WINDOW", "ParquetTable", "find_parquet"]

WINDOW: Final = 128 << 20
"""Bytes of row groups that are shuffled together."""

_SAMPLED: Final = 64 << 20
_INDEX: Final = re.compile(r"__index_level_\d+__")  # the index of a pandas table


def find_parquet(folder: Path, split: str) -> list[Path]:
    """The Parquet files of a split in a folder, sorted by name.

    If any name starts with a split (``train-00000.parquet``), only the files of this split.
    """
    files = sorted(folder.glob("*.parquet"))
    known = [[file for file in files if file.name.startswith(name)] for name in SPLIT_NAMES[split]]
    if any(file.name.startswith(tuple(SPLIT_NAMES)) for file in files):
        return next(filter(None, known), [])
    return files


class ParquetTable(Table):
    """The concatenated rows of Parquet files with the same columns.

    Raises:
        FileError: A file is damaged or has different columns, there are no rows, or a row group
            exceeds the limit ``tensor_bytes``.
        DependencyError: pyarrow is not installed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise DependencyError(
                "Parquet files are read with pyarrow, which is not installed.",
                where=f"{paths[0]}: {error}",
                fix="pip install 'ortboost[parquet]'",
            ) from error
        self._errors: tuple[type[Exception], ...] = (pa.ArrowException, OSError, ValueError)
        self._files, self._groups = list[Any](), list[tuple[int, int]]()
        lengths, self._lock = [0], threading.Lock()
        self._held: OrderedDict[tuple[int, tuple[str, ...]], Array] = OrderedDict()
        self._readers = set[tuple[str, ...]]()
        # Open all files, and list their row groups in the order of the rows.
        for number, path in enumerate(paths):
            try:
                file = pq.ParquetFile(path)
            except self._errors as error:
                raise self._damaged(path, error) from error
            if self._files and not file.schema_arrow.equals(self._files[0].schema_arrow):
                raise FileError(
                    "Two Parquet files have different columns.",
                    where=f"{paths[0]} and {path}",
                    fix="Write them with the same schema, or use one of them.",
                )
            self._files.append(file)
            for group in range(file.metadata.num_row_groups):
                self._groups.append((number, group))
                lengths.append(file.metadata.row_group(group).num_rows)
        self._paths, self._schema = paths, self._files[0].schema_arrow
        where = str(paths[0] if len(paths) == 1 else paths[0].parent)
        super().__init__([n for n in self._schema.names if not _INDEX.fullmatch(n)], where)
        self._starts = np.cumsum(lengths)
        if not self._starts[-1]:
            raise FileError(
                "The table has no rows.", where=self.where, fix="Write it again, with rows."
            )
        # The largest row group, with all columns, decides how many a window holds.
        kinds = [self._kind(name) for name in self.columns]
        row = sum(kind.itemsize for kind in kinds if kind is not None)
        largest = max(lengths) * row
        rows = max(1, max(lengths) * WINDOW // max(1, largest))
        check_unpacked(largest, where, "A row group", f"Write the file with row_group_size={rows}")
        self.blocks = Blocks(self._starts[:-1], max(1, WINDOW // max(1, largest)))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> Array:
        """A column, whose rows are read on access."""
        return as_array_like(_ParquetArray(self, (name,), self._numeric(name)))

    def side_by_side(self, names: Sequence[str], columns: Sequence[Array]) -> Array:
        """Columns of numbers in their common type, whose rows are read on access."""
        kind = np.dtype((np.result_type(*(column.dtype for column in columns)), (len(names),)))
        return as_array_like(_ParquetArray(self, tuple(names), kind))

    def rows(self, names: tuple[str, ...], rows: Array, kind: np.dtype[Any]) -> Array:
        """Rows of one or more columns, side by side if there are several."""
        found = np.empty((len(rows), *kind.shape), kind.base)
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        for group in np.unique(groups).tolist():
            chosen = groups == group
            found[chosen] = self._group(group, names, kind)[rows[chosen] - self._starts[group]]
        return found

    def checksum(self, names: tuple[str, ...]) -> int:
        """A checksum of the schema, the row group sizes, and 64 MiB of chosen row groups."""
        found, left = zlib.crc32(str((names, self._starts.tolist())).encode()), _SAMPLED
        kinds = [self._numeric(name) for name in names]
        for group in np.random.Philox(0).random_raw(len(self._groups)).argsort().tolist():
            for name, kind in zip(names, kinds, strict=True):
                values = self._read(group, (name,), kind)
                found = zlib.crc32(np.ascontiguousarray(values).data.cast("B"), found)
                left -= values.nbytes
            if left < 0:
                break
        return found

    def _group(self, group: int, names: tuple[str, ...], kind: np.dtype[Any]) -> Array:
        """The values of columns in a row group, cached."""
        with self._lock:
            self._readers.add(names)
            key = (group, names)
            if key not in self._held:
                self._held[key] = self._read(group, names, kind)
                # Two windows for each set of columns: a batch may begin in one and end in the next.
                while len(self._held) > 2 * self.blocks.window * len(self._readers):
                    self._held.popitem(last=False)
            self._held.move_to_end(key)
            return self._held[key]

    def _read(self, group: int, names: tuple[str, ...], kind: np.dtype[Any]) -> Array:
        number, own = self._groups[group]
        try:
            table = self._files[number].read_row_group(own, columns=list(names))
        except self._errors as error:
            raise self._damaged(self._paths[number], error, f", row group {own}") from error
        found = np.empty((table.num_rows, *kind.shape), kind.base)
        for place, name in enumerate(names):
            values = table.column(name).combine_chunks()
            # Each level of nested lists has null values of its own.
            nulls = values.null_count
            while hasattr(values.type, "list_size"):  # nested lists of a fixed length
                values = values.flatten()
                nulls += values.null_count
            if nulls:
                raise FileError(
                    f"The column '{name}' has cells without a value (null).",
                    where=f"{self._paths[number]}, row group {own}",
                    fix="Fill or drop these rows.",
                )
            # Not zero-copy: Arrow packs eight booleans into a byte.
            numbers = values.to_numpy(zero_copy_only=False)
            # Columns side by side, also if there is only one.
            if len(names) > 1 or kind.shape == (1,):
                found[:, place] = numbers
            else:
                found[...] = numbers.reshape(found.shape)
        return found

    def _kind(self, name: str) -> np.dtype[Any] | None:
        """The type of a cell, an array type for lists; None if it is not numeric."""
        import pyarrow as pa

        kind, shape = self._schema.field(name).type, list[int]()
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        numeric = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        )
        return np.dtype((kind.to_pandas_dtype(), tuple(shape))) if numeric else None

    def _numeric(self, name: str) -> np.dtype[Any]:
        kind = self._kind(name)
        if kind is None:
            raise FileError(
                f"The column '{name}' has the type {self._schema.field(name).type}, which is not "
                "numeric.",
                where=self.where,
                fix="Write it as numbers (lists with a fixed length), or drop it.",
            )
        # The bytes of a list are pixels, which are divided by 255 for a float input; a cell is not.
        return np.dtype(np.int16) if kind == np.uint8 else kind

    @staticmethod
    def _damaged(path: Path, error: Exception, more: str = "") -> FileError:
        return FileError(
            f"'{path.name}' is not a readable Parquet file.",
            where=f"{path}{more}: {all_lines(error)}",
            fix="The file is truncated, damaged or of another kind; write it again.",
        )


class _ParquetArray(LazyArray):
    """Columns of a table as an array."""

    def __init__(self, table: ParquetTable, names: tuple[str, ...], kind: np.dtype[Any]) -> None:
        super().__init__((len(table), *kind.shape), kind.base)
        self._table, self._names, self._kind = table, names, kind
        self.blocks = table.blocks

    def read(self, rows: Array) -> Array:
        """Read rows from their row groups."""
        return self._table.rows(self._names, rows, self._kind)

    def checksum(self) -> int:
        """A checksum of part of the file."""
        return self._table.checksum(self._names)
