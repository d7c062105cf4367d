"""Functions on batches: checking, padding, and counting samples.

Samples are counted along the batch axis of each input, axis 0 unless its specification has another
``batch_axis``; inputs whose batch axis is ``None`` are the same for all samples and are not
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = [
    "Axes",
    "Part",
    "batch_axes",
    "batch_length",
    "check_batch_size",
    "pad_batch",
    "part_rows",
    "rows_of",
    "static_batch",
]

Axes = Mapping[str, int | None]
"""Input name to batch axis; 0 for inputs that are missing."""


class Part(Batch):
    """One process's part of a batch of ``samples`` samples.

    It has none if the batch has fewer samples than processes.
    """

    def __init__(self, arrays: Mapping[str, Array], samples: int) -> None:
        super().__init__(arrays)
        self.samples = samples


def part_rows(samples: int, rank: int, size: int) -> slice:
    """The samples of a batch for one process; the parts differ by at most one sample.

    Example:
        >>> [part_rows(5, rank, 2) for rank in range(2)]
        [slice(0, 2, None), slice(2, 5, None)]
    """
    return slice(samples * rank // size, samples * (rank + 1) // size)


def batch_axes(inputs: Sequence[InputLike]) -> dict[str, int | None]:
    """The batch axis of each input.

    Raises:
        UsageError: The batch axis of an input is ambiguous.
    """
    axes: dict[str, int | None] = {}
    for spec in inputs:
        axis: Any = getattr(spec, "batch_axis", 0)
        if isinstance(axis, str):
            raise UsageError(
                f"The batch axis of the input '{spec.name}' is ambiguous.",
                where=", ".join(f"{s.name} {_text(s.shape)}" for s in inputs),
                fix=f"Specify it with --batch-axis {spec.name}=AXIS, or --batch-axis "
                f"{spec.name}=none if the array is the same for all samples (for a program: at "
                "convert).",
            )
        axes[spec.name] = axis
    return axes


def rows_of(array: Array, rows: slice | Array, axis: int | None) -> Array:
    """Select samples of an array; the whole array if it has no batch axis.

    Example:
        >>> rows_of(np.arange(6).reshape(2, 3), slice(1, 3), 1).tolist()
        [[1, 2], [4, 5]]
    """
    if axis is None:
        return array
    return np.asarray(array[(slice(None),) * axis + (rows,)])


def batch_length(
    batch: Mapping[str, Array], where: str = "batch", *, axes: Axes | None = None
) -> int:
    """The number of samples of a batch; for a :class:`Part`, that of the whole batch.

    It is 1 if no input has a batch axis (one whole graph). Errors describe the data with ``where``.

    Raises:
        UsageError: The batch is empty, has scalars, or its arrays differ in length.
    """
    if isinstance(batch, Part):
        return batch.samples
    lengths: dict[str, int] = {}
    for name, array in batch.items():
        axis = 0 if axes is None else axes.get(name, 0)
        if axis is None:
            continue
        if array.ndim <= axis:
            raise UsageError(
                f"'{name}' is a scalar, not a batch of samples."
                if not array.ndim
                else f"'{name}' has no batch axis {axis}.",
                where=where,
                fix="Every array of a batch needs a batch axis; use --batch-axis "
                f"{name}=none for one that is the same for all samples.",
            )
        lengths[name] = array.shape[axis]
    # No input has a batch axis: the arrays are one whole.
    if batch and not lengths:
        return 1
    if not lengths or 0 in lengths.values():
        raise UsageError(
            "A batch has no samples.", where=where, fix="Remove empty batches from the data."
        )
    if len(set(lengths.values())) > 1:
        raise UsageError(
            "The arrays of a batch have different lengths.",
            where=f"{where}: {', '.join(f'{name} {length}' for name, length in lengths.items())}",
            fix="The batch axis, usually 0, must have the same length in all arrays; "
            "specify another one, or none, with --batch-axis INPUT=AXIS.",
        )
    return next(iter(lengths.values()))


def static_batch(inputs: Sequence[InputLike]) -> int | None:
    """The fixed batch size of the graph, or None if its batch axis is symbolic.

    Raises:
        UsageError: The inputs have different fixed batch sizes.
    """
    axes = {spec.name: getattr(spec, "batch_axis", 0) for spec in inputs}
    sizes = {
        spec.name: spec.shape[axis]
        for spec in inputs
        if isinstance(axis := axes[spec.name], int) and axis < len(spec.shape)
    }
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(set(fixed.values())) > 1:
        raise UsageError(
            "The model's inputs have different fixed batch sizes.",
            where=", ".join(f"{name}: {size}" for name, size in fixed.items()),
            fix="Specify the batch axis with --batch-axis INPUT=AXIS (or none), or "
            "export the model with a symbolic batch axis.",
        )
    return next(iter(fixed.values()), None)


def check_batch_size(inputs: Sequence[InputLike], batch_size: int, *, of: int = 1) -> None:
    """Refuse a batch size, in each of ``of`` processes, if the graph has another fixed one."""
    fixed = static_batch(inputs)
    if fixed is not None and fixed != batch_size:
        raise UsageError(
            f"The model is fixed to batches of {fixed}, not {batch_size}"
            + (f" in each of {of} processes." if of > 1 else "."),
            where=f"input '{inputs[0].name}'",
            fix=f"Use --batch-size {fixed * of}, or export the model with a symbolic batch axis.",
        )


def pad_batch(
    batch: Mapping[str, Array], size: int, *, axes: Axes | None = None
) -> tuple[Batch, NDArray[np.bool_]]:
    """Pad a short batch to the fixed size of a graph by repeating its last sample.

    Returns:
        The full batch and a mask ``bool[size]`` that is True where the samples are real.

    Raises:
        UsageError: The batch has more than ``size`` samples, or is invalid.

    Example:
        >>> padded, valid = pad_batch({"x": np.array([[1.0], [2.0]])}, 3)
        >>> padded["x"].ravel().tolist(), valid.tolist()
        ([1.0, 2.0, 2.0], [True, True, False])
    """
    length = batch_length(batch, axes=axes)
    if length > size:
        raise UsageError(
            f"A batch has {length} samples, but the model has the fixed batch size {size}.",
            where="batch",
            fix=f"Use batches of at most {size}.",
        )
    rows = np.minimum(np.arange(size), length - 1)  # 0, 1, ..., length - 1, length - 1, ...
    padded = {
        name: rows_of(array, rows, 0 if axes is None else axes.get(name, 0))
        for name, array in batch.items()
    }
    return padded, np.arange(size) < length


def _text(shape: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
