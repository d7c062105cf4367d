"""Pure functions on batches: checking, padding, and counting them.

Samples are counted along the batch axis of each input, axis 0 unless its specification has another
``batch_axis``; inputs whose batch axis is ``None`` are the same for all samples and count nothing.
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
"""Input to its batch axis, 0 where it is not named."""


class Part(Batch):
    """One process's part of a batch.

    Args:
        arrays: Input name to array; of no samples if the batch has fewer than there are processes.
        samples: The number of samples of the whole batch.
    """

    def __init__(self, arrays: Mapping[str, Array], samples: int) -> None:
        super().__init__(arrays)
        self.samples = samples


def part_rows(samples: int, rank: int, size: int) -> slice:
    """The samples of a batch that a process takes; parts differ by one sample at most.

    Example:
        >>> [part_rows(5, rank, 2) for rank in range(2)]
        [slice(0, 2, None), slice(2, 5, None)]
    """
    return slice(samples * rank // size, samples * (rank + 1) // size)


def batch_axes(inputs: Sequence[InputLike]) -> dict[str, int | None]:
    """The batch axis of each input.

    Raises:
        UsageError: One is not certain.
    """
    axes: dict[str, int | None] = {}
    for spec in inputs:
        axis: Any = getattr(spec, "batch_axis", 0)
        if isinstance(axis, str):
            raise UsageError(
                f"Which axis of the input '{spec.name}' counts the samples is not certain.",
                where=", ".join(f"{s.name} {_text(s.shape)}" for s in inputs),
                fix=f"Say it with --batch-axis {spec.name}=AXIS, or --batch-axis {spec.name}=none "
                "if "
                "the array is the same for all samples (for a program: at convert).",
            )
        axes[spec.name] = axis
    return axes


def rows_of(array: Array, rows: slice | Array, axis: int | None) -> Array:
    """Some samples of an array; all of it where no axis counts them.

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
    """The number of samples of a batch, of a :class:`Part` that of the whole one; 1 where nothing counts them, as for a whole graph.

    Args:
        batch: The arrays.
        where: What they are, for errors.
        axes: Batch axes, see :func:`batch_axes`.

    Raises:
        UsageError: The batch is empty, holds scalars, or its arrays differ in length.
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
                else f"'{name}' has no axis {axis} that counts the samples.",
                where=where,
                fix="Every array of a batch needs an axis for the samples; --batch-axis "
                f"{name}=none is for one that is the same for all.",
            )
        lengths[name] = array.shape[axis]
    if batch and not lengths:
        return 1
    if not lengths or 0 in lengths.values():
        raise UsageError(
            "A batch holds no samples.", where=where, fix="Leave empty batches out of the data."
        )
    if len(set(lengths.values())) > 1:
        raise UsageError(
            "The arrays of a batch have different lengths.",
            where=f"{where}: {', '.join(f'{name} {length}' for name, length in lengths.items())}",
            fix="The batch axis, usually 0, must have one length in all arrays; --batch-axis "
            "INPUT=AXIS "
            "names another one, or none.",
        )
    return next(iter(lengths.values()))


def static_batch(inputs: Sequence[InputLike]) -> int | None:
    """The batch size that the graph is fixed to, or None when its batch axis is symbolic.

    Raises:
        UsageError: The inputs are fixed to different sizes.
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
            "The model's inputs are fixed to different batch sizes.",
            where=", ".join(f"{name}: {size}" for name, size in fixed.items()),
            fix="Name the axis that counts the samples, --batch-axis INPUT=AXIS, or none; or "
            "export the "
            "model with a symbolic batch axis.",
        )
    return next(iter(fixed.values()), None)


def check_batch_size(inputs: Sequence[InputLike], batch_size: int, *, of: int = 1) -> None:
    """Refuse a batch size that the graph cannot take.

    Args:
        inputs: The model's inputs.
        batch_size: Samples that the graph is fed.
        of: Number of processes that share a batch.

    Raises:
        UsageError: The graph is fixed to another size.
    """
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
    """Fill a short batch up to a fixed size by repeating its last sample.

    Args:
        batch: At most ``size`` samples.
        size: The batch size that the graph is fixed to.
        axes: Batch axes, see :func:`batch_axes`.

    Returns:
        The full batch and a mask ``bool[size]`` that is True where the samples are real.

    Raises:
        UsageError: The batch is longer than ``size``, or no batch.

    Example:
        >>> padded, valid = pad_batch({"x": np.array([[1.0], [2.0]])}, 3)
        >>> padded["x"].ravel().tolist(), valid.tolist()
        ([1.0, 2.0, 2.0], [True, True, False])
    """
    length = batch_length(batch, axes=axes)
    if length > size:
        raise UsageError(
            f"A batch has {length} samples, the model is fixed to {size}.",
            where="batch",
            fix=f"Use batches of at most {size}.",
        )
    rows = np.minimum(np.arange(size), length - 1)
    padded = {
        name: rows_of(array, rows, 0 if axes is None else axes.get(name, 0))
        for name, array in batch.items()
    }
    return padded, np.arange(size) < length


def _text(shape: Sequence[int | str | None]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"
