"""Tables of named columns, and how columns are assigned to inputs.

- a column with the name of an input, or that ``--map`` assigns to it, is that input;
- the labels have one of the common names (``y``, ``label``, ``target``, ...), and are not features;
- all other columns, in their order, form the one remaining input.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import FileError, OrtBoostError, UsageError
from ortboost.training.data.keys import LABEL_KEYS
from ortboost.training.data.lazy import lazy_of
from ortboost.training.protocols import Array, InputLike

__all__ = ["FrameTable", "MemoryTable", "Table", "columns_of"]

_FEATURES = "x"
_EXACT = 1 << 24  # float32 holds all whole numbers below this one


class Table(abc.ABC):
    """Columns of numbers by name.

    Args:
        columns: Their names, in order.
        where: Description of the table, for error messages.

    Raises:
        OrtBoostError: Two columns have the same name.
    """

    kind: ClassVar[type[OrtBoostError]] = FileError

    def __init__(self, columns: Sequence[str], where: str) -> None:
        self.columns, self.where = list(columns), where
        self.formed: dict[str, list[str]] = {}  # of the last `arrays`: input to its features
        if len(set(self.columns)) < len(self.columns):
            raise self.kind(
                "Two columns have the same name.",
                where=f"{where}: {', '.join(self.columns)[:200]}",
                fix="Give each column a unique name.",
            )

    @abc.abstractmethod
    def column(self, name: str) -> Array:
        """A column: ``[N]``, or ``[N, ...]`` if its cells are arrays."""

    def features(self, names: Sequence[str]) -> Array:
        """Several columns side by side, ``[N, len(names)]``; a single column as it is.

        Raises:
            OrtBoostError: One of several columns has arrays or images.
        """
        columns = [self.column(name) for name in names]
        for name, column in zip(names, columns, strict=True):
            lazy = lazy_of(column)
            if column.ndim > 1 or (lazy is not None and lazy.decodes):
                if len(names) == 1:
                    return column
                raise self.kind(
                    f"The column '{name}' has arrays, which cannot be combined with other columns.",
                    where=self.where,
                    fix=f"Assign it to an input with --map INPUT={name}, or drop the others.",
                )
        return self.side_by_side(names, columns)

    def side_by_side(self, names: Sequence[str], columns: Sequence[Array]) -> Array:
        """Columns of numbers in their common type."""
        return np.stack([np.asarray(column) for column in columns], axis=1)

    def arrays(
        self, inputs: Sequence[InputLike] | None = None, mapping: Mapping[str, str] | None = None
    ) -> dict[str, Array]:
        """Arrays by name, by the rules of this module.

        Without inputs, each column by its name, and all columns except the labels as ``x``, unless
        a column has this name or all are labels.

        Raises:
            FileError: The use of the columns is ambiguous, or one is not numeric (for a table in
                memory: UsageError, ArgumentTypeError).
        """
        features = [name for name in self.columns if name.lower() not in LABEL_KEYS]
        if inputs is None:
            arrays = {name: self.column(name) for name in self.columns}
            if features and _FEATURES not in arrays:
                arrays[_FEATURES] = self.features(features)
            return arrays
        own: dict[str, str] = {}  # input to its own column
        for spec in inputs:
            usual = LABEL_KEYS if spec.name.lower() in LABEL_KEYS else ()
            # Its own name or that of --map; for labels also a usual name, in upper or lower case.
            given = (mapping or {}).get(spec.name, spec.name)
            found = [given] if given in self.columns else self._labels(inputs, mapping, usual)
            if len(found) > 1:
                raise self.kind(
                    f"Several columns could feed the input '{spec.name}'.",
                    where=f"{self.where}: columns {', '.join(found)}",
                    fix=f"Select one: --map {spec.name}={found[0]}",
                )
            if found:
                own[spec.name] = found[0]
            elif usual:
                raise self.kind(
                    f"No array feeds the input '{spec.name}'.",
                    where=f"{self.where}: columns {', '.join(self.columns[:8])}"
                    + (", ..." if len(self.columns) > 8 else ""),
                    fix=f"Name the label column one of {', '.join(LABEL_KEYS)}, or specify it with "
                    f"--map {spec.name}=COLUMN.",
                )
        rest = [name for name in features if name not in own.values()]
        left = [spec.name for spec in inputs if spec.name not in own]
        if rest and len(left) != 1 and inputs:
            what = "no input is" if not left else f"the inputs {', '.join(left)} are"
            raise self.kind(
                f"The use of the columns is ambiguous: {what} left for {', '.join(rest[:6])}.",
                where=f"{self.where} of {len(self.columns)} columns",
                fix="Assign them with --map INPUT=COLUMN, or drop those that are not an input.",
            )
        arrays = {name: self.column(name) for name in own.values()}
        if rest and left:
            self.formed = {left[0]: rest}
            arrays[left[0]] = self.features(rest)
        return arrays

    def _labels(
        self, inputs: Sequence[InputLike], mapping: Mapping[str, str] | None, usual: Sequence[str]
    ) -> list[str]:
        """The columns with a usual name of labels that no input has by name or mapping."""
        taken = {spec.name for spec in inputs} | set((mapping or {}).values())
        return [name for name in self.columns if name.lower() in usual and name not in taken]


class MemoryTable(Table):
    """Columns ``[N]`` in memory, read from a file."""

    def __init__(self, columns: Mapping[str, Array], where: str) -> None:
        super().__init__(list(columns), where)
        self._columns = columns

    def column(self, name: str) -> Array:
        """The numbers of a column."""
        return self._columns[name]

    def side_by_side(self, names: Sequence[str], columns: Sequence[Array]) -> Array:
        """Columns in float32, or in float64 if there are numbers of 2^24 or more.

        float32 would round class indices and tokens.
        """
        large = any((np.abs(column) >= _EXACT).any() for column in columns)
        return np.stack(columns, axis=1, dtype=np.float64 if large else np.float32)


class FrameTable(Table):
    """A table in memory: a DataFrame, an Arrow table, a structured array of numpy."""

    kind = UsageError

    def __init__(self, frame: Any) -> None:
        names = columns_of(frame) or ()
        super().__init__([str(name) for name in names], f"data: {type(frame).__name__}")
        self._frame, self._names = frame, {str(name): name for name in names}

    def column(self, name: str) -> Array:
        """The numbers of a column."""
        column = as_array(self._frame[self._names[name]], f"column '{name}'")
        # As bytes they would be pixels.
        return column.astype(np.int16) if column.dtype == np.uint8 else column


def columns_of(data: Any) -> list[Any] | None:
    """The names of the columns of a table in memory; None for anything else.

    Example:
        >>> columns_of(np.zeros(3, [("a", "f4"), ("b", "f4")])), columns_of(np.zeros(3))
        (['a', 'b'], None)
    """
    # Of Arrow, `columns` are the data.
    for owner, name in (
        (getattr(data, "dtype", None), "names"),
        (data, "column_names"),
        (data, "columns"),
    ):
        found = getattr(owner, name, None)
        if found is not None:
            return list(found)
    return None
