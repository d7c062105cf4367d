"""Pure functions on batches: checking, padding, and counting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ortboost.errors import UsageError
from ortboost.training.protocols import Array, Batch, InputLike

__all__ = ["batch_length", "check_batch_size", "pad_batch", "static_batch"]


def batch_length(batch: Mapping[str, Array], where: str = "batch") -> int:
    """The number of samples of a batch.

    Raises:
        UsageError: The batch is empty, holds scalars, or its arrays differ in length.
    """
    lengths: dict[str, int] = {}
    for name, array in batch.items():
        if array.ndim == 0:
            raise UsageError(
                f"'{name}' is a scalar, not a batch of samples.",
                where=where,
                fix="Every array of a batch needs axis 0 for the samples.",
            )
        lengths[name] = len(array)
    if not lengths or 0 in lengths.values():
        raise UsageError(
            "A batch holds no samples.", where=where, fix="Leave empty batches out of the data."
        )
    if len(set(lengths.values())) > 1:
        raise UsageError(
            "The arrays of a batch have different lengths.",
            where=f"{where}: {', '.join(f'{name} {length}' for name, length in lengths.items())}",
            fix="Axis 0 counts the samples and must be the same in all arrays of a batch.",
        )
    return next(iter(lengths.values()))


def static_batch(inputs: Sequence[InputLike]) -> int | None:
    """The batch size that the graph is fixed to, or None when its batch axis is symbolic.

    Raises:
        UsageError: The inputs are fixed to different sizes.
    """
    sizes = {spec.name: spec.shape[0] for spec in inputs if spec.shape}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(set(fixed.values())) > 1:
        raise UsageError(
            "The model's inputs are fixed to different batch sizes.",
            where=", ".join(f"{name}: {size}" for name, size in fixed.items()),
            fix="Export the model with a symbolic batch axis.",
        )
    return next(iter(fixed.values()), None)


def check_batch_size(inputs: Sequence[InputLike], batch_size: int) -> None:
    """Refuse a batch size that the graph cannot take.

    Raises:
        UsageError: The graph is fixed to another size.
    """
    fixed = static_batch(inputs)
    if fixed is not None and fixed != batch_size:
        raise UsageError(
            f"The model is fixed to batches of {fixed}, not {batch_size}.",
            where=f"input '{inputs[0].name}'",
            fix=f"Use --batch-size {fixed}, or export the model with a symbolic batch axis.",
        )


def pad_batch(batch: Mapping[str, Array], size: int) -> tuple[Batch, NDArray[np.bool_]]:
    """Fill a short batch up to a fixed size by repeating its last sample.

    Args:
        batch: At most ``size`` samples.
        size: The batch size that the graph is fixed to.

    Returns:
        The full batch and a mask ``bool[size]`` that is True where the samples are real.

    Raises:
        UsageError: The batch is longer than ``size``, or no batch.

    Example:
        >>> padded, valid = pad_batch({"x": np.array([[1.0], [2.0]])}, 3)
        >>> padded["x"].ravel().tolist(), valid.tolist()
        ([1.0, 2.0, 2.0], [True, True, False])
    """
    length = batch_length(batch)
    if length > size:
        raise UsageError(
            f"A batch has {length} samples, the model is fixed to {size}.",
            where="batch",
            fix=f"Use batches of at most {size}.",
        )
    rows = np.minimum(np.arange(size), length - 1)
    return {name: array[rows] for name, array in batch.items()}, np.arange(size) < length
