"""Inputs for a benchmark with the requested lengths, from data or synthetic.

The length of the batch axis is the batch size, those of other open dimensions come from ``--dim``.
A dimension that is still open is an error that names it: a time measured at a guessed sequence
length would be meaningless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.deploy.synthetic_inputs import seeded_batch
from ortboost.graph.query import format_shape
from ortboost.program.catalogue import TensorSpec

__all__ = ["Bind", "batch_index", "has_open_batch", "make_feeds", "settle_shapes"]

Bind: TypeAlias = "Callable[[Sequence[TensorSpec], int], Mapping[str, NDArray[Any]]]"
"""Map inputs and a number of samples to the array of each input; shorter if the data end."""


def batch_index(spec: TensorSpec) -> int | None:
    """The axis of an input that counts the samples; ``None`` if there is none."""
    axis = spec.batch_axis if isinstance(spec.batch_axis, int) else None
    return axis if spec.shape else None


def has_open_batch(inputs: Sequence[TensorSpec]) -> bool:
    """Whether a batch size has any effect."""
    places = ((spec, batch_index(spec)) for spec in inputs)
    return any(axis is not None and not isinstance(s.shape[axis], int) for s, axis in places)


def settle_shapes(inputs: Sequence[TensorSpec], batch: int, *, where: str) -> list[TensorSpec]:
    """Return the inputs with every dimension set to a number.

    Args:
        inputs: The inputs of the model.
        batch: Length of open batch axes.
        where: The model, for error messages.

    Raises:
        UsageError: Another dimension is open.
    """
    settled = []
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if not isinstance(dim, int) and axis != batch_index(spec):
                open_one = f"'{dim}'" if dim else f"number {axis}"
                raise UsageError(
                    f"The dimension {open_one} of the input '{spec.name}' is open, "
                    "and no length was given.",
                    where=f"{where}: {spec.name} {format_shape(spec.shape)}",
                    fix=f"Give one, for example --dim {dim or f'{spec.name}:{axis}'}=128, or real "
                    "data.",
                )
        lengths = tuple(dim if isinstance(dim, int) else batch for dim in spec.shape)
        settled.append(dataclasses.replace(spec, shape=lengths))
    return settled


def make_feeds(
    inputs: Sequence[TensorSpec],
    batch: int,
    *,
    bind: Bind | None = None,
    seed: int = 0,
    where: str = "model",
) -> dict[str, NDArray[Any]]:
    """Make one batch of inputs.

    Args:
        inputs: The inputs of the model.
        batch: Number of samples.
        bind: Provides the data; without it floats are drawn from a normal distribution, and
            integers are zeros and ones.
        seed: Seed of the random generator.
        where: The model, for error messages.

    Raises:
        UsageError: A dimension has no length, or the data have too few samples.
    """
    if bind is None:
        return seeded_batch(settle_shapes(inputs, batch, where=where), seed=seed)
    feeds = dict(bind(inputs, batch))
    for spec in inputs:
        array, index = feeds[spec.name], batch_index(spec)
        head = 0 if index is None else spec.shape[index]
        samples = not isinstance(head, int) or head == batch  # else it counts the layers of a state
        length = batch if index is None else array.shape[index]
        if samples and length < batch:
            raise UsageError(
                f"The data have {length} samples, a batch of {batch} was requested.",
                where=f"{where}: input '{spec.name}'",
                fix="Use a smaller --batch-size, or give more data.",
            )
    return feeds
