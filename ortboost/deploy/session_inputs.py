"""Inputs of a session with the requested lengths and values; those of a benchmark.

In a benchmark the length of the batch axis is the batch size, those of other open dimensions come
from ``--dim``. A dimension that is still open is an error that names it: a time measured at a
guessed sequence length would be meaningless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.deploy.synthetic_inputs import seeded_batch
from ortboost.graph.query import format_shape
from ortboost.graph.shapes.batch_axes import find_batch_axes
from ortboost.graph.shapes.fix_inputs import fit_inputs
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.catalogue import TensorSpec

__all__ = [
    "Bind",
    "batch_index",
    "fix_specs",
    "has_open_batch",
    "make_feeds",
    "settle_shapes",
    "with_batch_axes",
]

Bind: TypeAlias = "Callable[[Sequence[TensorSpec], int], Mapping[str, NDArray[Any]]]"
"""Map inputs and a number of samples to the array of each input; shorter if the data end."""


def fix_specs(
    specs: Sequence[TensorSpec], config: InputConfig
) -> tuple[tuple[TensorSpec, ...], dict[str, NDArray[Any]]]:
    """Apply values and lengths given by the user to the inputs of a model.

    Returns:
        The remaining inputs with known lengths filled in, and the constants by input name.

    Raises:
        UsageError: An input or dimension is unknown, or a value does not fit.
    """
    shapes = {spec.name: spec.shape for spec in specs}
    dtypes = {spec.name: ir.DataType.from_numpy(spec.dtype) for spec in specs}
    constants, fitted = fit_inputs(shapes, dtypes, config)
    left = tuple(
        dataclasses.replace(spec, shape=fitted[spec.name])
        for spec in specs
        if spec.name not in constants
    )
    return left, constants


def with_batch_axes(specs: Sequence[TensorSpec], config: InputConfig) -> tuple[TensorSpec, ...]:
    """Apply the given batch axes; the other inputs keep theirs.

    Raises:
        UsageError: An axis was given for an unknown input, or the input does not have it.
    """
    axes = find_batch_axes({spec.name: spec.shape for spec in specs}, None, config.batch_axes)
    return tuple(
        dataclasses.replace(spec, batch_axis=axes[spec.name])
        if spec.name in config.batch_axes
        else spec
        for spec in specs
    )


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

    Open batch axes get the length ``batch``; ``where`` names the model in error messages.

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
    """Make one batch of inputs, from data if ``bind`` is given, else synthetic ones.

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
