"""Data that is in memory already: arrays by name or in order, tensors of any framework, tables of columns.

Nothing is imported for it: arrays and tables are recognised by what they can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import UsageError
from ortboost.training.data.keys import LABEL_KEYS
from ortboost.training.protocols import Array, InputLike

__all__ = ["given_arrays"]


def given_arrays(
    data: Any, inputs: Sequence[InputLike], mapping: Mapping[str, str] | None = None
) -> dict[str, Array] | None:
    """Arrays by name out of what holds whole arrays.

    - a mapping of names to arrays, tensors or lists;
    - a tuple or list of arrays, such as ``(x, y)``: in the order of the inputs, labels last;
    - one array: the first input;
    - a table of columns, such as a pandas DataFrame: columns with the name of an input, the labels
      under one of the usual names (``y``, ``label``, ``target``, ...), and all others, in their order,
      as the rows of the one input that is left.

    Args:
        data: Whatever the user gave.
        inputs: The inputs to feed.
        mapping: Input name to the key or column of its array.

    Returns:
        Name to array; ``None`` if it is none of these, but perhaps batches.

    Raises:
        UsageError: More arrays than inputs, or columns that cannot be told apart.
        ArgumentTypeError: An array does not hold numbers.

    Example:
        >>> from ortboost.training.protocols import InputSpec
        >>> specs = [InputSpec("x", np.dtype("f4"), ("N",)), InputSpec("y", np.dtype("i8"), ("N",))]
        >>> sorted(given_arrays((np.ones(3), np.zeros(3)), specs))
        ['x', 'y']
    """
    if isinstance(data, Mapping):
        return {name: _array(value, f"data: '{name}'") for name, value in data.items()}
    if hasattr(data, "columns") and _is_array(data):
        return _columns(data, inputs, mapping or {})
    parts = [data] if _is_array(data) else data
    if not isinstance(parts, tuple | list) or not parts or not all(map(_is_array, parts)):
        return None
    names = [spec.name for spec in inputs]
    if len(parts) > len(names):
        raise UsageError(
            f"There are {len(parts)} arrays, and {len(names)} to feed.",
            where="data",
            fix=f"Give them in this order: {', '.join(names)}; batches are tuples or dicts.",
        )
    return {name: _array(part, f"data: '{name}'") for name, part in zip(names, parts, strict=False)}


def _is_array(value: Any) -> bool:
    """Whether it is an array of a framework, or a table, with an axis that can count samples."""
    holds = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    return holds and len(getattr(value, "shape", ())) > 0


def _array(value: Any, where: str) -> Array:
    """An array as it is; anything else as one."""
    return value if isinstance(value, np.ndarray) else as_array(value, where)


def _columns(
    table: Any, inputs: Sequence[InputLike], mapping: Mapping[str, str]
) -> dict[str, Array]:
    known = {str(name): name for name in table.columns}
    named: dict[str, str] = {}  # column of each input that has one of its own
    for spec in inputs:
        usual = LABEL_KEYS if spec.name.lower() in LABEL_KEYS else ()
        wanted = [mapping.get(spec.name, spec.name), *usual]
        own = next((column for column in wanted if column in known), None)
        if own is not None:
            named[spec.name] = own
    rest = [name for column, name in known.items() if column not in named.values()]
    left = [spec.name for spec in inputs if spec.name not in named]
    if rest and len(left) != 1 and inputs:
        listed = ", ".join(str(name) for name in rest[:6])
        what = "no input is" if not left else f"the inputs {', '.join(left)} are"
        raise UsageError(
            f"It is not certain what the columns are: {what} left for {listed}.",
            where=f"data: {type(table).__name__} of {len(known)} columns",
            fix="Give arrays by name: {'INPUT': table[[COLUMNS]], ...}.",
        )
    arrays = {
        column: as_array(table[known[column]], f"column '{column}'") for column in named.values()
    }
    if rest:
        for name in rest:  # one by one first: an error names the column
            as_array(table[name], f"column '{name}'")
        arrays[left[0]] = as_array(table[rest], f"columns {rest[0]} to {rest[-1]}")
    return arrays
