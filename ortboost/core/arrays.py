"""Conversion of arrays, lists and tensors of any framework to numpy arrays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ArgumentTypeError

__all__ = ["as_array", "npy_faults", "read_npy"]


@contextlib.contextmanager
def npy_faults() -> Iterator[None]:
    """Turn whatever numpy raises for a damaged ``.npy`` header into a ValueError.

    The header is a Python literal. ``numpy.lib.format`` parses one that it does not know with
    :mod:`tokenize`, whose errors it lets pass.

    Raises:
        ValueError: The file is no ``.npy`` file, or ends too early.
    """
    try:
        yield
    except (EOFError, OverflowError, RecursionError, SyntaxError, TypeError, TokenError) as error:
        raise ValueError(f"its header is damaged ({' '.join(str(error).split())[:150]})") from error


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

    Tensors are recognised by their methods (``asnumpy``; ``detach``, ``cpu`` and ``numpy``;
    ``__array__``; ``__dlpack__``); no framework is imported.

    Args:
        value: The data.
        where: Description of the data, for the error.

    Raises:
        ArgumentTypeError: The data are not numeric, have masked values, or their rows have
            different lengths.
    """
    if np.ma.is_masked(value):
        raise ArgumentTypeError(
            "An array has masked values.",
            where=f"{where}: {type(value).__name__}",
            fix="Drop these rows, or fill the values: array.filled(0).",
        )
    if isinstance(value, np.ndarray):
        array = value.view(np.ndarray)  # subclasses (masked, matrix) change what operators do
    else:
        methods = ("asnumpy",) if hasattr(value, "asnumpy") else ("detach", "cpu", "numpy")
        for method in methods:
            if hasattr(value, method):
                value = getattr(value, method)()
        try:
            bare = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
            array = np.from_dlpack(value) if bare else np.asarray(value)
        except ValueError as error:
            raise ArgumentTypeError(
                "The rows of an array differ in shape.",
                where=where,
                fix="Pad or crop them to one shape.",
            ) from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ArgumentTypeError(
            f"An array holds {array.dtype} values, not numbers.",
            where=f"{where}: {type(value).__name__}",
            fix="Give an array of numbers.",
        )
    return array
