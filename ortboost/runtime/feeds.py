"""Checks of the arrays fed to a graph, and the error if the runtime rejects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arrays import as_array
from ortboost.core.errors import UsageError
from ortboost.program.catalogue import TensorSpec

__all__ = ["check_lengths", "fed_array", "refused_batch"]


def fed_array(
    feeds: Mapping[str, NDArray[Any]], name: str, inputs: Sequence[TensorSpec]
) -> NDArray[Any]:
    """Get the array of one input, converted to the input's type if that is lossless.

    Integers are widened to larger integers, and floats to larger floats; scaling the bytes of an
    image is up to the user.

    Args:
        feeds: Input name to array.
        name: The input.
        inputs: All inputs of the graph.

    Raises:
        UsageError: It is missing or empty, or contains a label that is not a class.
    """
    if name not in feeds:
        raise UsageError(
            f"The input '{name}' was not fed.",
            where=f"fed: {', '.join(feeds) or 'nothing'}",
            fix=f"Feed {', '.join(spec.name for spec in inputs)}.",
        )
    array = as_array(feeds[name], f"input '{name}'")
    if not array.size:  # kernels divide by the number of samples, which would kill the process
        raise UsageError(
            f"The input '{name}' is empty.",
            where=f"input '{name}': shape {list(array.shape)}",
            fix="Feed at least one sample.",
        )
    spec = next(spec for spec in inputs if spec.name == name)
    stray = spec.stray_class(array)
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
    whole = np.integer if np.issubdtype(spec.dtype, np.integer) else np.floating
    if np.issubdtype(array.dtype, whole) and np.can_cast(array.dtype, spec.dtype):
        return array.astype(spec.dtype, copy=False)
    return array


def check_lengths(
    inputs: Sequence[TensorSpec], arrays: Mapping[str, NDArray[Any]], *, broadcast: bool
) -> None:
    """Refuse a symbolic dimension with two lengths, which a runtime might silently broadcast.

    Args:
        inputs: All inputs of the graph.
        arrays: Input name to array.
        broadcast: Whether one row of dense labels may apply to all samples.

    Raises:
        UsageError: A dimension has two lengths.
    """
    seen: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for dim, length in zip(spec.shape, arrays[spec.name].shape, strict=True):
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


def refused_batch(error: Exception, feeds: Mapping[str, NDArray[Any]]) -> UsageError:
    """Convert a runtime error on a batch to an error for the user."""
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in feeds.items())
    return UsageError(
        "onnxruntime could not run the step on this batch.",
        where=f"{shapes}: {str(error).strip().splitlines()[0]}",
        fix="Check that the shapes and the label values fit the model.",
    )
