"""Checks of what is fed to a graph, and the error if the runtime rejects it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arrays import as_array, as_dtype
from ortboost.core.errors import UsageError, first_line, nearest
from ortboost.program.catalogue import TensorSpec
from ortboost.program.names import LEARNING_RATE

__all__ = [
    "arrays_of",
    "check_batch",
    "check_lengths",
    "check_rates",
    "check_token_ids",
    "fed_array",
    "refused_batch",
    "require_fed",
]

_OUT_OF_RANGE = re.compile(r"idx=(-?\d+) must be within the inclusive range \[(-?\d+),(-?\d+)\]")
_LARGEST_RATE = 1e38  # float32 holds 3.4e38


def arrays_of(feeds: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The feeds with those for the inputs as arrays, so that their samples can be counted.

    Raises:
        UsageError: One of them is not numeric.
    """
    fed = {spec.name for spec in inputs} & feeds.keys()
    return {**feeds, **{name: as_array(feeds[name], f"input '{name}'") for name in fed}}


def require_fed(name: str, feeds: Mapping[str, object], inputs: Sequence[TensorSpec]) -> None:
    """Raise a UsageError if one of the ``inputs`` of a graph is not fed."""
    if name not in feeds:
        raise UsageError(
            f"The input '{name}' was not fed.",
            where=f"fed: {', '.join(feeds) or 'nothing'}",
            fix=f"Feed {', '.join(spec.name for spec in inputs)}.",
        )


def fed_array(
    feeds: Mapping[str, NDArray[Any]], spec: TensorSpec, inputs: Sequence[TensorSpec]
) -> NDArray[Any]:
    """The array of one of the ``inputs`` of a graph.

    Raises:
        UsageError: It is missing or empty, or contains a label that is not a class.
    """
    name = spec.name
    require_fed(name, feeds, inputs)
    array = as_array(feeds[name], f"input '{name}'")
    empty = {axis for axis, length in enumerate(array.shape) if not length}
    if empty - {*spec.joined}:  # kernels divide by a length, which would kill the process
        raise UsageError(
            f"The input '{name}' is empty.",
            where=f"input '{name}': shape {list(array.shape)}",
            fix="Feed at least one sample, and no axis of length 0: pad and mask it."
            if array.ndim > 1
            else "Feed at least one sample.",
        )
    stray = spec.first_invalid_class(array)
    if stray is not None:
        raise UsageError(
            f"The label {stray} is not a class: the model has {spec.classes}, 0 to "
            f"{spec.classes - 1}."
            if spec.classes
            else f"The label {stray} is not a class.",
            where=f"input '{name}'",
            fix="Fix the labels, give the model a head with more classes (--new-head), or name "
            "the label to ignore (--ignore-index).",
        )
    check_token_ids(array, spec)
    return array


def check_token_ids(array: NDArray[Any], spec: TensorSpec) -> None:
    """Raise a UsageError if the values of an input of token IDs are negative.

    The runtime refuses an ID that is too large; a negative one is counted from the last row.
    """
    if spec.rows is not None and array.size and (lowest := int(array.min())) < 0:
        raise UsageError(
            f"The token ID or class {lowest} is negative: there are {spec.rows}, from 0 to "
            f"{spec.rows - 1}.",
            where=f"input '{spec.name}'",
            fix="Replace it with the padding token. Labels can be marked as ignored by a mask in "
            "the model, or with --ignore-index if the loss is not part of the model.",
        )


def check_batch(
    feeds: Mapping[str, NDArray[Any]], inputs: Sequence[TensorSpec], *, broadcast: bool
) -> dict[str, NDArray[Any]]:
    """The arrays of all inputs in C order; anything that a runtime might misread is refused.

    Integers are widened to larger integers, and floats to larger floats; scaling the bytes of an
    image is up to the user. With ``broadcast`` one row of dense labels may apply to all samples.

    Raises:
        UsageError: An input is missing, empty, or of another type or rank; a label is not a class;
            or a symbolic dimension has two lengths, which a runtime might silently broadcast.
    """
    ready: dict[str, NDArray[Any]] = {}
    for spec in inputs:
        array = fed_array(feeds, spec, inputs)
        if array.dtype != spec.dtype:
            # Only within a kind: bytes for a float input mean that a division by 255 was forgotten.
            whole = np.integer if np.issubdtype(spec.dtype, np.integer) else np.floating
            if np.issubdtype(array.dtype, whole) and np.can_cast(array.dtype, spec.dtype):
                array = array.astype(spec.dtype)
        if array.dtype != spec.dtype or len(array.shape) != len(spec.shape):
            raise UsageError(
                f"The input '{spec.name}' is {array.dtype}{list(array.shape)}, but "
                f"{spec.dtype}{list(spec.shape)} is needed.",
                where=f"input '{spec.name}'",
                fix=f"Convert it first, for example array.astype('{spec.dtype}')."
                if array.dtype != spec.dtype
                else "Reshape it first; axes are never added or removed automatically.",
            )
        ready[spec.name] = np.asarray(array, order="C")  # ascontiguousarray has no 0-d result
    check_lengths(ready, inputs, broadcast=broadcast)
    return ready


def check_lengths(
    batch: Mapping[str, NDArray[Any]], inputs: Sequence[TensorSpec], *, broadcast: bool
) -> None:
    """Refuse two lengths of one symbolic dimension, see :func:`check_batch`."""
    # `seen` has each length and the input it is from.
    seen: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for dim, length in zip(spec.shape, batch[spec.name].shape, strict=False):
            if not isinstance(dim, str):
                continue
            known, first = seen.setdefault(dim, (length, spec.name))
            one_row = broadcast and length == 1 and spec.classes is None  # of dense labels
            if known != length and not one_row:
                raise UsageError(
                    f"The dimension '{dim}' is {known} in '{first}' and {length} in '{spec.name}'.",
                    where=f"inputs '{first}' and '{spec.name}'",
                    fix="Make the lengths equal: as many labels as samples, and labels "
                    "in the shape of the predictions.",
                )


def check_rates(hyper: Mapping[str, float], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The value of each learning-rate input, float32 scalars.

    ``learning_rate`` is the default of all groups.

    Raises:
        UsageError: A given name is unknown, or an input has no value, or not one finite number.
    """
    for name in hyper:
        if name not in names:
            raise UsageError(
                f"The program has no learning rate '{name}'.",
                where=f"given: {', '.join(hyper)}",
                fix=nearest(name, names),
            )
    ready: dict[str, NDArray[Any]] = {}
    for name in names:
        if name not in hyper and LEARNING_RATE not in hyper:
            raise UsageError(
                f"No value was given for '{name}'.",
                where=f"given: {', '.join(hyper) or 'none'}",
                fix=f"Give {', '.join(names)}.",
            )
        number = hyper[name] if name in hyper else hyper[LEARNING_RATE]
        if type(number) is float and abs(number) < _LARGEST_RATE:  # the usual case, and NaN is not
            ready[name] = np.asarray(number, np.float32)
            continue
        rate = as_dtype(number, np.dtype(np.float32), f"learning rate '{name}'")
        if rate.size != 1 or not np.isfinite(rate).all():  # it would overwrite the weights
            raise UsageError(
                f"The learning rate '{name}' is {number}.",
                where="learning rates",
                fix="Give one finite number.",
            )
        ready[name] = rate.reshape(())
    return ready


def refused_batch(
    error: Exception, batch: Mapping[str, NDArray[Any]], what: str = "model"
) -> UsageError:
    """The user's error if the runtime does not run ``what``, the model or the step, on a batch."""
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in batch.items())
    return UsageError(
        f"onnxruntime could not run the {what} on this batch.",
        where=f"{shapes}: {first_line(error)}",
        fix=_advice(str(error), batch),
    )


def _advice(error: str, batch: Mapping[str, NDArray[Any]]) -> str:
    positions = "Shorter samples may fit: positions have a table of fixed length in some models."
    found = _OUT_OF_RANGE.search(error)
    if found is None:
        check = "Check that the shapes and values of the inputs and labels fit the model."
        if "cannot be reshaped" in error:
            return f"{check} The exporter may have fixed a length: export it as a dynamic one."
        return f"{check} {positions}" if "broadcast" in error else check
    index, low, high = map(int, found.groups())
    integers = (name for name, array in batch.items() if array.dtype.kind in "iu")
    # The index may also be one that the model computes, and be among the values by chance.
    holding = [f"'{name}'" for name in integers if (batch[name] == index).any()]
    check = f"Check the values of {' and '.join(holding)}, if they are indices. " if holding else ""
    return f"Indices from {low} to {high} are valid. {check}{positions}"
