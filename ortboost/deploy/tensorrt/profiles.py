"""Shape profiles: ``x:1,8,32x3x224x224`` is input ``x`` with batch 1, 8, 32 (min, opt, max).

Each dimension is one number, or three separated by commas. Profiles that TensorRT would reject are
refused here, before minutes of building: a dynamic input without one, ``min > opt``, a dimension of
0, or a number that contradicts the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ortboost.core.errors import UsageError
from ortboost.graph.query import format_shape
from ortboost.graph.shapes.input_config import Dims, require_input

__all__ = ["Profile", "parse_profile", "refuse_profiles", "settle_profiles", "suggestion"]


@dataclass(frozen=True)
class Profile:
    """The smallest and the largest shape of an input, and the one to tune for."""

    name: str
    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]

    def __str__(self) -> str:
        parts = [
            str(low) if low == high else f"{low},{best},{high}"
            for low, best, high in zip(self.minimum, self.optimum, self.maximum, strict=True)
        ]
        return f"{self.name}:{'x'.join(parts)}"


def parse_profile(text: str) -> Profile:
    """Parse one ``--shape``.

    Raises:
        UsageError: The text is malformed, has a zero, or is not in the order min, opt, max.

    Example:
        >>> parse_profile("x:1,8,32x3x4").maximum
        (32, 3, 4)
    """
    name, colon, dims = text.rpartition(":")
    where = f"--shape {text}"
    example = "Write NAME:DIMxDIM..., a DIM being N or MIN,OPT,MAX: x:1,8,32x3x224x224."
    if not colon or not name or not re.fullmatch(r"[0-9,xX]+", dims):
        raise UsageError("A shape is malformed.", where=where, fix=example)
    columns: list[tuple[int, int, int]] = []
    for part in dims.lower().split("x"):
        numbers = [int(n) for n in part.split(",") if n]
        if len(numbers) != part.count(",") + 1 or len(numbers) not in (1, 3):
            raise UsageError(
                f"The dimension '{part}' has neither one number nor three.",
                where=where,
                fix=example,
            )
        low, best, high = numbers if len(numbers) == 3 else numbers * 3  # one stands for all three
        if low == 0:
            raise UsageError(
                "A dimension of 0 cannot be built for.", where=where, fix="Begin with 1."
            )
        if not low <= best <= high:
            raise UsageError(
                f"The dimension '{part}' is not in the order min <= opt <= max.",
                where=where,
                fix="Sort the three numbers.",
            )
        columns.append((low, best, high))
    return Profile(name, *zip(*columns, strict=True))


def refuse_profiles(given: Sequence[Profile]) -> None:
    """Refuse profiles for another target than TensorRT.

    Raises:
        UsageError: There are some.
    """
    if given:
        raise UsageError(
            "Only TensorRT has shape profiles.", where="--shape", fix="Leave --shape out."
        )


def settle_profiles(
    inputs: Mapping[str, Dims | None], given: Iterable[Profile]
) -> dict[str, Profile]:
    """Match profiles with the inputs of a model.

    Args:
        inputs: Input name to shape; numbers are fixed, names and ``None`` dynamic; ``None`` if the
            rank is unknown.
        given: The profiles.

    Returns:
        One profile for each dynamic input, in the order of the inputs.

    Raises:
        UsageError: A name is not an input or is given twice, a rank or number contradicts the
            model, or a dynamic input has no profile.
    """
    named: dict[str, Profile] = {}
    for profile in given:
        where = f"--shape {profile}"
        require_input(profile.name, inputs, where)
        if profile.name in named:
            raise UsageError(
                f"The input '{profile.name}' has two shapes.", where=where, fix="Give one."
            )
        _fits(profile, inputs[profile.name], where)
        named[profile.name] = profile
    settled: dict[str, Profile] = {}
    for name, dims in inputs.items():
        if dims is not None and all(isinstance(dim, int) for dim in dims):
            continue  # a profile of a fixed input has been checked, and is not needed
        if name not in named:
            shape = "of unknown rank" if dims is None else format_shape(dims)
            raise UsageError(
                f"The input '{name}' has dimensions that are not fixed, and no profile.",
                where=f"input '{name}' {shape}",
                fix=f"Give --shape {suggestion(name, dims)}",
            )
        settled[name] = named[name]
    _symbols_agree(inputs, settled)
    return settled


def suggestion(name: str, dims: Sequence[int | str | None] | None) -> str:
    """Suggest a ``--shape`` for an input, assuming that its first dynamic dimension is the batch.

    Example:
        >>> suggestion("x", ("batch", 3, None))
        'x:1,8,32x3xMIN,OPT,MAX'
    """
    if dims is None:
        return f"{name}:DIMxDIM..."
    parts, batch = [], "1,8,32"
    for dim in dims:
        parts.append(str(dim) if isinstance(dim, int) else batch)
        batch = batch if isinstance(dim, int) else "MIN,OPT,MAX"
    return f"{name}:{'x'.join(parts)}"


def _fits(profile: Profile, dims: Dims | None, where: str) -> None:
    if dims is None:
        return
    if len(dims) != len(profile.optimum):
        raise UsageError(
            f"The input '{profile.name}' has {len(dims)} dimensions, the shape "
            f"{len(profile.optimum)}.",
            where=where,
            fix=f"Give --shape {suggestion(profile.name, dims)}",
        )
    for position, dim in enumerate(dims):
        low, high = profile.minimum[position], profile.maximum[position]
        if isinstance(dim, int) and (low != dim or high != dim):
            raise UsageError(
                f"Dimension {position} of the input '{profile.name}' is {dim} in the model.",
                where=where,
                fix=f"Give --shape {suggestion(profile.name, dims)}",
            )


def _symbols_agree(inputs: Mapping[str, Dims | None], profiles: Mapping[str, Profile]) -> None:
    """Check that a symbolic dimension shared by inputs has one range."""
    seen: dict[str, tuple[str, tuple[int, int, int]]] = {}
    for name, profile in profiles.items():
        for position, dim in enumerate(inputs[name] or ()):
            if not isinstance(dim, str):
                continue
            low, high = profile.minimum[position], profile.maximum[position]
            triple = (low, profile.optimum[position], high)
            other, expected = seen.setdefault(dim, (name, triple))
            if triple != expected:
                raise UsageError(
                    f"The dimension '{dim}' is {expected} for '{other}' and {triple} for '{name}'.",
                    where=f"--shape {profile}",
                    fix="Give the same numbers: it is one dimension of the model.",
                )
