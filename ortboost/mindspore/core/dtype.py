"""``dtype``: MindSpore's names of element types, as numpy dtypes.

``dtype.float32 == np.float32`` holds, and every array function of numpy accepts them.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np

from ortboost.core.errors import ArgumentTypeError

__all__ = [
    "bfloat16",
    "bool_",
    "byte",
    "double",
    "dtype_to_nptype",
    "float16",
    "float32",
    "float64",
    "half",
    "int8",
    "int16",
    "int32",
    "int64",
    "intc",
    "intp",
    "long",
    "pytype_to_dtype",
    "short",
    "single",
    "ubyte",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uintc",
    "uintp",
    "ushort",
]

bool_ = np.dtype("bool")
int8 = byte = np.dtype("int8")
int16 = short = np.dtype("int16")
int32 = intc = np.dtype("int32")
int64 = long = intp = np.dtype("int64")
uint8 = ubyte = np.dtype("uint8")
uint16 = ushort = np.dtype("uint16")
uint32 = uintc = np.dtype("uint32")
uint64 = uintp = np.dtype("uint64")
float16 = half = np.dtype("float16")
float32 = single = np.dtype("float32")
float64 = double = np.dtype("float64")
bfloat16 = np.dtype(ml_dtypes.bfloat16)

_PYTHON: Final = {bool: bool_, int: int64, float: float64}


def dtype_to_nptype(type_: np.dtype[Any]) -> type[Any]:
    """Get the numpy scalar type.

    Example:
        >>> dtype_to_nptype(float32)
        <class 'numpy.float32'>
    """
    return np.dtype(type_).type


def pytype_to_dtype(obj: Any) -> np.dtype[Any]:
    """Get the element type for a Python type: int64 for ``int``, float64 for ``float``.

    Raises:
        ArgumentTypeError: It is not a numeric type.

    Example:
        >>> pytype_to_dtype(int)
        dtype('int64')
    """
    if isinstance(obj, type) and issubclass(obj, np.generic):
        return np.dtype(obj)
    if obj not in _PYTHON:
        raise ArgumentTypeError(
            f"{obj!r} is not a numeric type.",
            where="dtype.pytype_to_dtype",
            fix="Give bool, int, float or a numpy type.",
        )
    return _PYTHON[obj]
