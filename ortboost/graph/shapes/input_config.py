"""User settings for a model's inputs: lengths of dimensions, fixed values, batch axes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, UsageError, nearest, require_known
from ortboost.core.field_types import Range, check_kinds, write_config
from ortboost.graph.query import format_shape

__all__ = ["Dims", "InputConfig", "dimension_name", "fit_dims", "require_input"]

Dims: TypeAlias = tuple[int | str | None, ...]
_NO_NAME = re.compile(
    r"[^A-Za-z]*|(unknown|unk|dynamic|dyn|none|null|nan|any|undefined)([_ ]?dim(ension)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class InputConfig(Configuration):
    """Settings for a model's inputs.

    Args:
        dims: Lengths of open dimensions, by the name of the dimension (``height``), or by input and
            axis (``x:2``) if the name is missing or ambiguous.
        values: Input to its value, for inputs that are not data: they become constants of the
            graph.
        batch_axes: Input to its batch axis, ``None`` for an input that is the same for all samples.
            Inferred if not given.

    Raises:
        ConfigError: A length below 1, or an axis or value of the wrong type.

    Example:
        >>> InputConfig(dims={"height": 640}, values={"sr": 16000}, batch_axes={"state": 1}).dims
        {'height': 640}
    """

    dims: Mapping[str, Annotated[int, Range(1, below=2**31)]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self, "inputs")
        for name, value in self.values.items():
            try:
                good = np.asarray(value).dtype.kind in "biuf"
            except ValueError:
                good = False
            if not good:
                raise ConfigError(
                    f"The value of the input '{name}' is neither a number nor an array of numbers.",
                    where=f"values, {name}",
                    fix="Give a number, a list of equally long lists, or a .npy file.",
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return write_config(self)


def require_input(name: str, known: Collection[str], where: str) -> None:
    """Raise a UsageError for an input that the model does not have; it suggests the nearest."""
    require_known(name, known, f"The model has no input '{name}'.", where)


def dimension_name(name: str | None) -> str | None:
    """The name of a dimension, or ``None`` if the name only means "unknown".

    Paddle names every unknown dimension ``?``; two dimensions with that name may differ.

    Example:
        >>> dimension_name("batch"), dimension_name("?"), dimension_name("unk__12")
        ('batch', None, 'unk__12')
    """
    return None if name is None or _NO_NAME.fullmatch(name) else name


def fit_dims(shapes: Mapping[str, Dims], dims: Mapping[str, int]) -> dict[str, Dims]:
    """Fix some dimensions of the shapes of inputs, those of :attr:`InputConfig.dims`.

    A name that is fixed in one shape is fixed in all.

    Raises:
        UsageError: A dimension is unknown, or has another fixed length.

    Example:
        >>> fit_dims({"x": ("n", 3, "h"), "y": ("h", None)}, {"x:2": 8, "y:1": 2})
        {'x': ('n', 3, 8), 'y': (8, 2)}
    """
    fitted, done = dict(shapes), dict[str, int]()
    where = ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())
    for key, length in dims.items():
        # Collected again in each round: a length has replaced a name.
        names = sorted({dim for s in fitted.values() for dim in s if isinstance(dim, str)})
        name, colon, axis = key.rpartition(":")
        if key in names or key in done:
            known: int | str | None = done.get(key, key)
        elif colon and name in fitted and axis.isdecimal() and int(axis) < len(fitted[name]):
            known = fitted[name][int(axis)]
        else:
            raise UsageError(
                f"The inputs have no dimension '{key}'.",
                where=where,
                fix=f"{nearest(key, names)}; or write INPUT:AXIS for one without a name"
                if names
                else "None of them has a name: write INPUT:AXIS.",
            )
        if isinstance(known, str):
            done[known] = length
            for name, shape in fitted.items():
                fitted[name] = tuple(length if dim == known else dim for dim in shape)
        elif known is None:
            shape, index = fitted[name], int(axis)
            fitted[name] = (*shape[:index], length, *shape[index + 1 :])
        elif known != length:
            raise UsageError(
                f"The dimension '{key}' is {known}; it cannot be {length}.",
                where=where,
                fix="Give it one length, or export the model with that dimension open.",
            )
    return fitted
