"""Tables of named columns, and which column feeds which input; one rule for all tables.

- a column that has the name of an input, or that ``--map`` names, is that input;
- the labels are under one of the usual names (``y``, ``label``, ``target``, ...), which are no
  features;
- all other columns, in their order, are the rows of the one input that is left.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import FileError, OrtBoostError, UsageError
from ortboost.training.data.keys import LABEL_KEYS
from ortboost.training.protocols import Array, InputLike

__all__ = ["FrameTable", "MemoryTable", "Table"]

_FEATURES = "x"


class Table(abc.ABC):
    """Columns of numbers by name.

    Args:
        columns: Their names, in order.
        where: What the table is, for errors.
    """

    kind: ClassVar[type[OrtBoostError]] = FileError

    def __init__(self, columns: Sequence[str], where: str) -> None:
        self.columns, self.where = list(columns), where

    @abc.abstractmethod
    def column(self, name: str) -> Array:
        """A column: ``[N]``, or ``[N, ...]`` where its cells are arrays."""

    @abc.abstractmethod
    def features(self, names: Sequence[str]) -> Array:
        """Several columns side by side, ``[N, len(names)]``."""

    def not_alone(self, name: str) -> OrtBoostError:
        """The error for a column of arrays that others are to stand beside."""
        return self.kind(
            f"The column '{name}' is not one number a row, and others are to stand beside it.",
            where=self.where,
            fix=f"Say which input it is: --map INPUT={name}; or drop the other columns.",
        )

    def arrays(
        self,
        inputs: Sequence[InputLike] | None = None,
        mapping: Mapping[str, str] | None = None,
    ) -> dict[str, Array]:
        """Arrays by name, by the rule of this module.

        Args:
            inputs: The inputs to feed. If not given: each column by its name, and all but the
                labels as ``x``, unless a column is called so.
            mapping: Input name to column.

        Raises:
            FileError: It is not certain what the columns are, or one holds no numbers (of a table
                in memory: UsageError, ArgumentTypeError).
        """
        features = [name for name in self.columns if name.lower() not in LABEL_KEYS]
        if inputs is None:
            arrays = {name: self.column(name) for name in self.columns}
            return arrays if _FEATURES in arrays else {**arrays, _FEATURES: self.features(features)}
        own: dict[str, str] = {}  # column of each input that has one of its own
        for spec in inputs:
            usual = LABEL_KEYS if spec.name.lower() in LABEL_KEYS else ()
            wanted = [(mapping or {}).get(spec.name, spec.name), *usual]
            found = next((name for name in wanted if name in self.columns), None)
            if found is not None:
                own[spec.name] = found
            elif usual:
                raise self.kind(
                    f"No array feeds the input '{spec.name}'.",
                    where=f"{self.where}: columns {', '.join(self.columns[:8])}"
                    + (", ..." if len(self.columns) > 8 else ""),
                    fix=f"Call the column of the labels one of {', '.join(LABEL_KEYS)}, or say "
                    "which it is: "
                    f"--map {spec.name}=COLUMN.",
                )
        rest = [name for name in features if name not in own.values()]
        left = [spec.name for spec in inputs if spec.name not in own]
        if rest and len(left) != 1 and inputs:
            what = "no input is" if not left else f"the inputs {', '.join(left)} are"
            raise self.kind(
                f"It is not certain what the columns are: {what} left for {', '.join(rest[:6])}.",
                where=f"{self.where} of {len(self.columns)} columns",
                fix="Name them with --map INPUT=COLUMN, or drop those that are no input.",
            )
        arrays = {name: self.column(name) for name in own.values()}
        return {**arrays, left[0]: self.features(rest)} if rest and left else arrays


class MemoryTable(Table):
    """Columns that were read from a file.

    Args:
        columns: Name to numbers ``[N]``.
        where: The file.
    """

    def __init__(self, columns: Mapping[str, Array], where: str) -> None:
        super().__init__(list(columns), where)
        self._columns = columns

    def column(self, name: str) -> Array:
        """The numbers of a column."""
        return self._columns[name]

    def features(self, names: Sequence[str]) -> Array:
        """Columns side by side in float32; one column of arrays as it is."""
        wide = next((name for name in names if self._columns[name].ndim > 1), None)
        if wide is not None and len(names) > 1:
            raise self.not_alone(wide)
        if wide is not None:
            return self._columns[wide]
        found = np.empty((len(self._columns[names[0]]), len(names)), np.float32)
        for place, name in enumerate(names):
            found[:, place] = self._columns[name]
        return found


class FrameTable(Table):
    """A table in memory that answers as a pandas DataFrame does.

    Args:
        frame: It has ``columns``, and gives a column by name and several by a list of names.
    """

    kind = UsageError

    def __init__(self, frame: Any) -> None:
        super().__init__([str(name) for name in frame.columns], f"data: {type(frame).__name__}")
        self._frame, self._names = frame, {str(name): name for name in frame.columns}

    def column(self, name: str) -> Array:
        """The numbers of a column."""
        return as_array(self._frame[self._names[name]], f"column '{name}'")

    def features(self, names: Sequence[str]) -> Array:
        """Columns side by side in their common type."""
        for name in names:  # one by one first: an error names the column
            self.column(name)
        chosen = self._frame[[self._names[name] for name in names]]
        return as_array(chosen, f"columns {names[0]} to {names[-1]}")
