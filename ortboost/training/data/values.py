"""The values of arrays: whether an input accepts them, and their conversion to its dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.keys import LABEL_KEYS
from ortboost.training.data.lazy import lazy_of
from ortboost.training.protocols import Array, InputLike

__all__ = ["are_pixels", "convert", "is_float", "is_labels", "value_fault"]

_PIXEL_MAX: Final = 255.0
_PIECE_BYTES: Final = 1 << 26

_Fault: TypeAlias = tuple[str, str, str]
"""Error text, where, and fix."""


def convert(array: Array, dtype: np.dtype[Any]) -> Array:
    """Convert a batch to the dtype of the graph input, after :func:`value_fault` found no fault.

    uint8 data for a float input are treated as pixels and divided by 255 (as in torchvision's
    ``ToTensor``), so images stay bytes on disk and in memory. Everything else is a plain cast. To
    keep raw byte values, store the array with another dtype.

    Example:
        >>> convert(np.array([0, 51, 255], np.uint8), np.dtype("float32"))
        array([0. , 0.2, 1. ], dtype=float32)
    """
    if are_pixels(array, dtype):
        pixels = np.divide(array, np.float32(_PIXEL_MAX), dtype=np.float32)
        return pixels.astype(dtype, copy=False)
    return np.asarray(array.astype(dtype, copy=False), order="C")  # a scalar stays a scalar


def are_pixels(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether :func:`convert` divides an array by 255 for an input of this dtype."""
    return bool(array.dtype == np.uint8) and is_float(dtype)


def value_fault(spec: InputLike, key: str, array: Array, *, finite: bool = True) -> _Fault | None:
    """Why the values of an array cannot feed an input unchanged; ``None`` if they can.

    Floats may be rounded, but never become infinite, integers are exact, and labels are classes
    or probabilities if the loss wants them.
    Only with ``finite`` are the values for a float input searched for NaN and values beyond its
    range. ``key`` is the name of the array.
    """
    have, want = array.dtype, spec.dtype
    where, whole = f"'{key}' is {have}", np.issubdtype(want, np.integer)
    if not (have.kind in "biu" or is_float(have)) or (want == np.bool_ and have != np.bool_):
        return (
            f"The array '{key}' cannot feed the input '{spec.name}'.",
            f"{where}, the input needs {want}",
            f"Save it as {want}.",
        )
    pixels = isinstance(lazy_of(array), ImageArray)
    if is_labels(spec) and have == np.uint8 and is_float(want) and not pixels:
        return (
            f"The labels '{key}' are bytes, which could be numbers or pixels (divided by 255).",
            f"{where}, the input '{spec.name}' needs {want}",
            f"Save them as {want}: array.astype('{want}'), or divided by 255.",
        )
    # Integers can be too large only for float16, which ends at 65504.
    fault = None
    if (finite or whole) and (is_float(have) or want == np.float16):
        fault = _stray_fault(key, array, want)
    if whole:
        fault = fault or _whole_fault(spec, key, array)
    return fault or _label_fault(spec, key, array)


def _stray_fault(key: str, array: Array, want: np.dtype[Any]) -> _Fault | None:
    """The fault of the first NaN or value beyond the range of the types."""
    have = array.dtype
    largest = min(_largest(dtype) for dtype in (have, want) if is_float(dtype))

    def strays(piece: Array) -> Array:
        # In bfloat16 the limit 65504 of float16 would itself be rounded up.
        numbers = piece if have.kind == "f" else piece.astype(np.float64)
        if numbers.min() >= -largest and numbers.max() <= largest:  # faster, and NaN fails
            return np.zeros(1, np.bool_)
        return np.asarray(~(np.abs(numbers) <= largest))

    row = _first_row(array, strays)
    if row is None:
        return None
    if np.isfinite(array[row] if array.ndim else array).all():
        return (
            f"The array '{key}' has values that are too large for {want}.",
            f"'{key}', first in row {row}",
            f"Scale the data; {want} holds values up to {largest:.4g}.",
        )
    return (
        f"The array '{key}' has NaN or infinite values.",
        f"'{key}', first in row {row}",
        "Clean the data: drop or fill these rows.",
    )


def _whole_fault(spec: InputLike, key: str, array: Array) -> _Fault | None:
    """The fault of the first value that an input of integers cannot hold."""
    have, want = array.dtype, spec.dtype
    if is_float(have) and _first_row(array, lambda p: p != np.floor(p)) is not None:
        return (
            f"The array '{key}' has fractions, but the input '{spec.name}' needs {want}.",
            f"'{key}' is {have}",
            "Labels are class indices; for rows of probabilities convert with --dense-labels, "
            "for real values with --loss mse. Without its program a file is evaluated as a "
            "classifier."
            if is_labels(spec)
            else f"Save whole numbers, or map another array to this input: --map {spec.name}=KEY",
        )
    if have.kind != "b" and not np.can_cast(have, want) and array.size:
        limits = np.iinfo(want)
        low, high = np.min(array).item(), np.max(array).item()  # Python compares them exactly
        if low < limits.min or high > limits.max:
            return (
                f"The array '{key}' has values that do not fit into {want}.",
                f"'{key}' ranges from {low} to {high}",
                f"Values must be in {limits.min}..{limits.max}.",
            )
    if is_float(have):
        # All whole numbers below are exact.
        end = 2.0 ** (ml_dtypes.finfo(have).nmant + 1)  # type: ignore[no-untyped-call]
        row = _first_row(array, lambda p: np.abs(p.astype(np.float64)) >= end)
        if row is not None:
            return (
                f"The array '{key}' has numbers of {end:.0f} or more, which {have} may have "
                "rounded.",
                f"'{key}', first in row {row}",
                f"Save it as {want} (.npz, .npy or Parquet; a column of its own).",
            )
    return None


def _first_row(array: Array, strays: Callable[[Array], Array]) -> int | None:
    """The first row with a value that ``strays`` selects in a block of rows, or ``None``."""
    rows = array if array.ndim else np.atleast_1d(array)
    step = max(1, _PIECE_BYTES * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows) if rows.size else 0, step):
        found = strays(rows[start : start + step])
        if found.any():
            return start + int(np.argwhere(found)[0][0])
    return None


def _label_fault(spec: InputLike, key: str, array: Array) -> _Fault | None:
    """The fault of the first label that is not a class, or not a probability."""
    if getattr(spec, "probabilities", False) and not are_pixels(array, spec.dtype):
        return _probability_fault(key, array)
    first_invalid_class = getattr(spec, "first_invalid_class", None)
    count = getattr(spec, "classes", None)
    if first_invalid_class is None or count is None:
        return None
    found = list[int]()

    def strays(piece: Array) -> Array:
        stray = first_invalid_class(piece)
        if stray is None:
            return np.zeros(1, np.bool_)
        # For the message: the mask alone does not tell which label it was.
        found.append(stray)
        return np.asarray(piece == stray)

    row = _first_row(array, strays)
    if row is None:
        return None
    known = f": the model has {count}, 0 to {count - 1}" if count else ""
    return (
        f"The label {found[0]} is not a class{known}.",
        f"'{key}', first in row {row}",
        "Fix the labels, give the model a head with more classes (--new-head), or specify "
        "the label to ignore (--ignore-index).",
    )


def _probability_fault(key: str, array: Array) -> _Fault | None:
    """The same for the first label outside 0 to 1: the loss would have no lower bound."""
    slack = 1e-3  # of sums and products of rounded probabilities
    row = _first_row(array, lambda piece: (piece < -slack) | (piece > 1 + slack))
    if row is None:
        return None
    return (
        f"The labels '{key}' are not probabilities.",
        f"'{key}', first in row {row}: {np.min(array[row]):g} to {np.max(array[row]):g}",
        "Give values from 0 to 1 (-1 and 1: (labels + 1) / 2), or convert with --loss mse for "
        "other numbers.",
    )


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a floating-point type; numpy does not count bfloat16 as one."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _largest(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def is_labels(spec: InputLike) -> bool:
    """Whether an input has one of the usual names of labels."""
    return spec.name.lower() in LABEL_KEYS
