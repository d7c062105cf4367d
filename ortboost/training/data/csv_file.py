"""CSV files: a header with the names of the columns, then one row of numbers per sample.

:mod:`ortboost.training.data.tables` assigns columns to inputs. Nothing is filled in or encoded: a
cell that is not a number is an error that names its row.
"""

from __future__ import annotations

import contextlib
import csv
import os
import warnings
from pathlib import Path

import numpy as np

from ortboost.core.errors import FileError, all_lines
from ortboost.training.data.tables import MemoryTable

__all__ = ["read_csv"]


def read_csv(path: str | os.PathLike[str]) -> MemoryTable:
    """Read a CSV file in UTF-8, separated by commas, or by tabs if it is ``.tsv``.

    Raises:
        FileError: The header is missing or has duplicate names, a cell is not a number, or the rows
            differ in length.
    """
    source, header = Path(path), list[str]()
    separator = "\t" if source.suffix.lower() == ".tsv" else ","
    try:
        with open(source, encoding="utf-8-sig", newline="") as text:
            header = [name.strip() for name in next(csv.reader(text, delimiter=separator), [])]
            _check_header(header, source)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # no rows: reported below
                rows = np.loadtxt(
                    text, np.float64, delimiter=separator, comments=None, quotechar='"', ndmin=2
                )
    except (ValueError, OSError, csv.Error) as error:
        raise FileError(
            f"'{source.name}' is not a table of numbers.",
            where=f"{source}: {_cause(error, source, separator)}",
            fix="Save the file in UTF-8."
            if isinstance(error, UnicodeError)
            else "Fill or drop empty cells, write text as numbers, and give each row as many cells "
            "as the header.",
        ) from error
    if rows.shape[0] == 0 or rows.shape[1] != len(header):
        raise FileError(
            f"'{source.name}' has {len(header)} column names and rows of {rows.shape[1]} cells."
            if rows.size
            else f"'{source.name}' has no rows.",
            where=str(source),
            fix="The first row has the column names; each of the others is a sample.",
        )
    return MemoryTable({name: rows[:, i] for i, name in enumerate(header)}, str(source))


def _check_header(header: list[str], source: Path) -> None:
    if not header:
        what, fix = "has no column names", "Name the columns in the first row."
    elif any(_is_number(name) for name in header):
        what, fix = "has numbers instead of column names", "Name the columns in the first row."
    elif not all(header) or len(set(header)) < len(header):
        what, fix = (
            "has a column without a name or with a duplicate one",
            "Give each column a unique name, and drop an index (pandas: to_csv(index=False)).",
        )
    elif len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        what = "is not separated by commas"
        fix = "Write it with commas, or as .tsv with tabs."
    else:
        return
    raise FileError(
        f"'{source.name}' {what}.",
        where=f"{source}: {', '.join(header)[:200] or 'an empty first row'}",
        fix=fix,
    )


def _cause(error: Exception, source: Path, separator: str) -> str:
    """The first cell or row that is wrong, and its line; otherwise the message of the error."""
    with (
        contextlib.suppress(OSError, UnicodeError, csv.Error),
        open(source, encoding="utf-8-sig", newline="") as text,
    ):
        reader = csv.reader(text, delimiter=separator)
        header: list[str] = []
        width = end = 0
        for row in reader:
            line, end = f"line {end + 1}", reader.line_num  # where it begins: text may have several
            if not row:  # numpy skips empty lines, too
                continue
            if not header:
                header = row
                continue
            width = width or len(row)
            if len(row) != width:
                return f"{line} has {len(row)} cells, earlier ones have {width}"
            for name, cell in zip(header, row, strict=False):
                if not _is_number(cell):
                    return f"{line}, column '{name.strip()}': {cell!r} is not a number"
    return all_lines(error)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
