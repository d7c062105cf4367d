"""Inputs for a benchmark with the requested lengths, from data or synthetic.

The length of an open dimension comes from ``--shape``, else from a dimension of the same name in
another input, else, for the batch axis, from the batch size. A dimension that is still open is an
error that names it: a time measured at a guessed sequence length would be meaningless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.deploy.synthetic_inputs import seeded_batch
from ortboost.graph.input_config import require_input
from ortboost.graph.query import format_shape
from ortboost.program.catalogue import TensorSpec

__all__ = [
    "BATCH",
    "Bind",
    "Shape",
    "batch_index",
    "make_feeds",
    "open_batch",
    "parse_shape",
    "settle_shapes",
]

BATCH = "N"
"""Placeholder for the batch size in a shape."""

Shape: TypeAlias = "tuple[int | str, ...]"
"""Lengths, or ``N`` where the batch size goes."""

Bind: TypeAlias = "Callable[[Sequence[TensorSpec], int], Mapping[str, NDArray[Any]]]"
"""Map inputs and a number of samples to the array of each input; shorter if the data end."""


def parse_shape(text: str) -> tuple[str, Shape]:
    """Parse a shape given on the command line.

    Args:
        text: ``INPUT:8x3x32x32``, or ``INPUT:Nx3x32x32`` where N stands for the batch size.

    Raises:
        UsageError: The text does not have this form.

    Example:
        >>> parse_shape("ids:Nx128")
        ('ids', ('N', 128))
    """
    name, colon, rest = text.rpartition(":")
    dims: list[int | str] = []
    for part in rest.split("x"):
        if part == BATCH:
            dims.append(BATCH)
        elif part.isdecimal() and int(part) > 0:
            dims.append(int(part))
        else:
            colon = ""
    if not colon or not name:
        raise UsageError(
            f"'{text}' is not the shape of an input.",
            where="--shape",
            fix="Write INPUT:8x3x32x32, or INPUT:Nx3x32x32 where N is the batch size.",
        )
    return name, tuple(dims)


def batch_index(spec: TensorSpec) -> int | None:
    """The axis of an input that counts the samples; ``None`` if there is none."""
    axis = spec.batch_axis if isinstance(spec.batch_axis, int) else None
    return axis if spec.shape else None


def open_batch(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape]) -> bool:
    """Whether a batch size has any effect: a batch axis is open, or a shape contains N."""
    given = {  # dimension names that get a length from a shape, in all inputs
        dim
        for spec in inputs
        for dim, length in zip(spec.shape, shapes.get(spec.name, ()), strict=False)
        if length != BATCH
    }
    return any(
        BATCH in shapes[spec.name]
        if spec.name in shapes
        else (index := batch_index(spec)) is not None
        and not isinstance(spec.shape[index], int)
        and spec.shape[index] not in given
        for spec in inputs
    )


def settle_shapes(
    inputs: Sequence[TensorSpec], batch: int, shapes: Mapping[str, Shape], *, where: str
) -> list[TensorSpec]:
    """Return the inputs with every dimension set to a number.

    Args:
        inputs: The inputs of the model.
        batch: Length of open batch axes, and of N.
        shapes: Input name to the requested shape.
        where: The model, for error messages.

    Raises:
        UsageError: A dimension has no length, two lengths, or one that contradicts the model; or
            an input name is unknown.
    """
    names = [spec.name for spec in inputs]
    for name in shapes:
        require_input(name, names, f"{where}: --shape {name}")
    known: dict[str, int] = {}
    for spec in inputs:
        if spec.name in shapes:
            _learn(known, spec, shapes[spec.name], batch, where)
    return [
        dataclasses.replace(spec, shape=_settled(spec, batch, shapes, known, where))
        for spec in inputs
    ]


def _learn(known: dict[str, int], spec: TensorSpec, shape: Shape, batch: int, where: str) -> None:
    """Record the lengths that a shape gives to named dimensions; they apply to all inputs."""
    text = "x".join(str(dim) for dim in shape)
    # The runtime reports a scalar and a tensor of unknown rank alike.
    if spec.shape and len(shape) != len(spec.shape):
        raise UsageError(
            f"The input '{spec.name}' has {len(spec.shape)} dimensions, the shape {len(shape)}.",
            where=f"{where}: --shape {spec.name}:{text}",
            fix=f"The model says {format_shape(spec.shape)}.",
        )
    lengths = (batch if dim == BATCH else int(dim) for dim in shape)
    for dim, length in zip(spec.shape, lengths, strict=False):
        if isinstance(dim, int) and dim != length:
            raise UsageError(
                f"The model fixes a dimension of '{spec.name}' at {dim}, {length} was requested.",
                where=f"{where}: --shape {spec.name}:{text}",
                fix=f"The model says {format_shape(spec.shape)}; export it with an open dimension "
                "for others.",
            )
        if isinstance(dim, str) and known.setdefault(dim, length) != length:
            raise UsageError(
                f"The dimension '{dim}' is {known[dim]} in one shape and {length} in another.",
                where=f"{where}: --shape {spec.name}:{text}",
                fix="One name is one length.",
            )


def _settled(
    spec: TensorSpec, batch: int, shapes: Mapping[str, Shape], known: Mapping[str, int], where: str
) -> tuple[int, ...]:
    if spec.name in shapes:
        return tuple(batch if dim == BATCH else int(dim) for dim in shapes[spec.name])
    lengths = []
    for index, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            lengths.append(dim)
        elif isinstance(dim, str) and dim in known:
            lengths.append(known[dim])
        elif index == batch_index(spec):
            lengths.append(batch)
        else:
            open_one = f"'{dim}'" if dim else f"number {index}"
            example = "x".join(str(d) if isinstance(d, int) else "128" for d in spec.shape[1:])
            raise UsageError(
                f"The dimension {open_one} of the input '{spec.name}' is open, "
                "and no length was given.",
                where=f"{where}: {spec.name} {format_shape(spec.shape)}",
                fix=f"Give one, for example --shape {spec.name}:{BATCH}x{example}, or real data.",
            )
    return tuple(lengths)


def make_feeds(
    inputs: Sequence[TensorSpec],
    batch: int,
    shapes: Mapping[str, Shape],
    *,
    bind: Bind | None = None,
    seed: int = 0,
    where: str = "model",
) -> dict[str, NDArray[Any]]:
    """Make one batch of inputs.

    Args:
        inputs: The inputs of the model.
        batch: Number of samples.
        shapes: Input name to shape, for synthetic inputs.
        bind: Provides the data; without it floats are drawn from a normal distribution, and
            integers are zeros and ones.
        seed: Seed of the random generator.
        where: The model, for error messages.

    Raises:
        UsageError: A dimension has no length, or the data have too few samples.
    """
    if bind is None:
        return seeded_batch(settle_shapes(inputs, batch, shapes, where=where), seed=seed)
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
