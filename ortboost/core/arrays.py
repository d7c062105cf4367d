"""Conversion of arrays, lists and tensors of any framework to numpy arrays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, all_lines, first_line

__all__ = ["as_array", "as_dtype", "matches", "npy_faults", "read_npy"]


def matches(have: Sequence[int], want: Sequence[int | str | None]) -> bool:
    """Whether a shape matches the required one; entries that are not ints match any length.

    Example:
        >>> matches((2, 3), ("N", 3)), matches((2, 3), (3, 3))
        (True, False)
    """
    return len(have) == len(want) and all(
        not isinstance(w, int) or w == h for h, w in zip(have, want, strict=True)
    )


@contextlib.contextmanager
def npy_faults() -> Iterator[None]:
    """Turn whatever numpy raises for a damaged ``.npy`` header into a ValueError.

    The header is a Python literal. ``numpy.lib.format`` parses one in an old form with
    ``tokenize``, and does not catch the errors of that module.

    Raises:
        ValueError: The file is not a ``.npy`` file, or ends too early.
    """
    try:
        yield
    except (EOFError, OverflowError, RecursionError, SyntaxError, TypeError, TokenError) as error:
        raise ValueError(f"its header is damaged ({all_lines(error, 150)})") from error


def read_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Map the array of an ``.npy`` file, read-only; Python objects are never loaded.

    Raises:
        ValueError: It is damaged, of another kind, or holds objects.
        OSError: It cannot be read.
    """
    with npy_faults():
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        return array


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Convert a number, a list, an array, or a tensor of any framework to a numpy array.

    Its byte order is that of the machine: runtimes read the bytes of an array as they are. Tensors
    are recognised by their methods (``asnumpy``; ``detach``, ``cpu`` and ``numpy``; ``__array__``;
    ``__dlpack__``); no framework is imported. Errors say ``where`` the data are.

    Raises:
        ArgumentTypeError: The data are not numeric, or their rows have different lengths.
        ArgumentValueError: Elements are masked.
    """
    if np.ma.is_masked(value):
        raise ArgumentValueError(
            "Elements of an array are masked, so they have no value.",
            where=where,
            fix="Give them one, for example array.filled(0).",
        )
    if isinstance(value, np.ndarray):
        array = value.view(np.ndarray)  # subclasses (masked, matrix) change what operators do
    else:
        try:
            array = _converted(value)
        except Exception as error:  # frameworks raise errors of many kinds
            if isinstance(error, ValueError) and isinstance(value, list | tuple):
                raise ArgumentTypeError(
                    "The rows of an array differ in shape.",
                    where=where,
                    fix="Pad or crop them to one shape.",
                ) from error
            raise ArgumentTypeError(
                f"The {type(value).__name__} cannot be converted to a numpy array.",
                where=f"{where}: {first_line(error)}",
                fix="Copy it to the memory of the host, with a type that numpy has.",
            ) from error
    # The bfloat16 of ml_dtypes has the kind "V".
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(
            f"An array holds {array.dtype} values, not numbers.",
            where=f"{where}: {type(value).__name__}",
            fix="Give an array of numbers; text and categories as 0, 1, 2, ...",
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _converted(value: Any) -> NDArray[Any]:
    # In this order: torch converts only tensors on the CPU, without gradients.
    methods = ("asnumpy",) if hasattr(value, "asnumpy") else ("detach", "cpu", "numpy")
    for method in methods:
        if hasattr(value, method):
            value = getattr(value, method)()
    # numpy would wrap an object with nothing but __dlpack__ in an array of objects.
    bare = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
    return np.from_dlpack(value) if bare else np.asarray(value)


def as_dtype(value: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Convert data to a dtype that can hold their values; floats may be rounded to shorter ones.

    Raises:
        ArgumentTypeError: See :func:`as_array`.
        ArgumentValueError: Also if the dtype cannot hold a value: 0.5 as an integer, 1e300 in
            float32.

    Example:
        >>> as_dtype([1.0, 2.0], np.dtype("int64"), "labels")
        array([1, 2])
    """
    array = as_array(value, where)
    # What does not fit is an error below, not a warning here.
    with np.errstate(all="ignore"):
        found = array.astype(dtype, copy=False)
    # Integers must stay equal. Floats may lose digits, but must not become infinite.
    if dtype.kind in "biu":
        fits = np.array_equal(found, array)
    else:
        fits = found is array or np.array_equal(np.isfinite(found), np.isfinite(array))
    if not fits:
        raise ArgumentValueError(
            f"The {array.dtype} values of an array do not fit into {dtype}.",
            where=where,
            fix=f"Convert them first, for example array.astype('{dtype}').",
        )
    return found
