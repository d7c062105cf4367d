"""In-memory data: arrays by name or in order, tensors of any framework, and tables.

No framework is imported: arrays and tables are recognised by their methods (duck typing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.core.arrays import as_array
from ortboost.core.errors import UsageError
from ortboost.training.data.tables import FrameTable, columns_of
from ortboost.training.protocols import Array, InputLike

__all__ = ["given_arrays", "given_columns", "holds_arrays", "is_frame"]


def given_arrays(
    data: Any, inputs: Sequence[InputLike], mapping: Mapping[str, str] | None = None
) -> dict[str, Array] | None:
    """Convert in-memory data to arrays by name.

    - a mapping of names to arrays, tensors or lists;
    - a tuple or list of arrays, such as ``(x, y)``: in the order of the inputs, labels last; a list
      of numbers may stand for one of them;
    - one array: the first input;
    - a table of columns, such as a pandas DataFrame, by the rule of
      :mod:`ortboost.training.data.tables`.

    Returns:
        Name to array; ``None`` for anything else, such as an iterable of batches.

    Raises:
        UsageError: There are more arrays than inputs, or the use of a column is ambiguous.
        ArgumentTypeError: An array does not hold numbers.

    Example:
        >>> from ortboost.training.protocols import InputSpec
        >>> specs = [InputSpec("x", np.dtype("f4"), ("N",)), InputSpec("y", np.dtype("i8"), ("N",))]
        >>> sorted(given_arrays((np.ones(3), np.zeros(3)), specs))
        ['x', 'y']
    """
    if not holds_arrays(data):
        return None
    if isinstance(data, Mapping):
        return {str(name): _array(value, f"data: '{name}'") for name, value in data.items()}
    if is_frame(data):
        return FrameTable(data).arrays(inputs, mapping)
    parts = [data] if _is_array(data) else data
    names = [spec.name for spec in inputs]
    if len(parts) > len(names):
        raise UsageError(
            f"There are {len(parts)} arrays for {len(names)} inputs.",
            where="data",
            fix=f"Pass them in this order: {', '.join(names)}; batches are tuples or dicts.",
        )
    return {name: _array(part, f"data: '{name}'") for name, part in zip(names, parts, strict=False)}


def holds_arrays(data: Any) -> bool:
    """Whether in-memory data are whole arrays, and not batches or something else.

    Example:
        >>> holds_arrays((np.ones(3), [1, 2, 3])), holds_arrays([[1, 2, 3]]), holds_arrays(7)
        (True, False, False)
    """
    # A tuple or list with at least one array holds whole arrays, of which some may be lists of
    # numbers, as in (x, [0, 1, ...]); without one they are batches.
    several = isinstance(data, tuple | list) and any(map(_is_array, data))
    return isinstance(data, Mapping) or _is_array(data) or several


def given_columns(
    data: Any, inputs: Sequence[InputLike], mapping: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Input to the names of its columns, where the data of :func:`given_arrays` hold tables."""
    names = [spec.name for spec in inputs]
    if isinstance(data, Mapping):
        parts = {name: data.get((mapping or {}).get(name, name)) for name in names}
    else:
        parts = dict(zip(names, data if isinstance(data, tuple | list) else (), strict=False))
    frames = {name: columns_of(part) for name, part in parts.items() if is_frame(part)}
    return {name: list(map(str, columns or ())) for name, columns in frames.items()}


def is_frame(value: Any) -> bool:
    """Whether ``value`` is a table of columns, such as a DataFrame."""
    return _is_array(value) and columns_of(value) is not None


def _is_array(value: Any) -> bool:
    """Whether ``value`` is an array or table of any framework with at least one axis."""
    holds = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    return holds and len(getattr(value, "shape", ())) > 0


def _array(value: Any, where: str) -> Array:
    """``value`` as a numpy array; one of another dtype may stay, in case no input needs it."""
    if is_frame(value):
        table = FrameTable(value)
        return table.features(table.columns)
    return value if type(value) in (np.ndarray, np.memmap) else as_array(value, where)
