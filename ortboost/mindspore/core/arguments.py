"""Kinds of arguments and their errors, under MindSpore's names.

MindSpore documents TypeError, ValueError, KeyError and RuntimeError; ortboost's errors say what,
where and how to fix it. The errors here are both, so ported ``except ValueError`` keeps working.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeAlias

import numpy as np

from ortboost.core.arguments import check_argument
from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, ConfigError, UsageError
from ortboost.core.field_words import OnlyFloat, Range

__all__ = [
    "ArgumentKeyError",
    "ArgumentRuntimeError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "Count",
    "CountOrZero",
    "NotInThisVersionError",
    "NotNegativeFloat",
    "PositiveFloat",
    "PositiveScale",
    "as_argument_error",
    "positive",
]


_LARGEST: Final = 3.4e38  # float32

Count: TypeAlias = Annotated[int, Range(1)]
"""A number of things, at least 1."""
CountOrZero: TypeAlias = Annotated[int, Range(0)]
"""A number of things, 0 or more."""
PositiveFloat: TypeAlias = Annotated[float, OnlyFloat, Range(above=0)]
"""A float, not an int, above 0."""
NotNegativeFloat: TypeAlias = Annotated[float, OnlyFloat, Range(0)]
"""A float, not an int, of 0 or more."""
PositiveScale: TypeAlias = Annotated[float, Range(above=0, most=_LARGEST)]
"""A loss scale that float32 holds."""


class ArgumentKeyError(UsageError, KeyError):
    """A name that is not known."""


class ArgumentRuntimeError(UsageError, RuntimeError):
    """Something went wrong during a run."""


class NotInThisVersionError(UsageError, NotImplementedError):
    """MindSpore has it, this version of ortboost has not."""


@contextlib.contextmanager
def as_argument_error(owner: str) -> Iterator[None]:
    """Raise what a configuration refuses as an argument that makes no sense.

    Raises:
        ArgumentValueError: In place of a :class:`ortboost.core.errors.ConfigError`.
    """
    try:
        yield
    except ConfigError as error:
        raise ArgumentValueError(
            error.what, where=f"{owner}, {error.where}", fix=error.fix
        ) from error


def positive(owner: str, name: str, value: Any) -> float:
    """A number above 0 that float32 holds; an array with one element will do.

    Example:
        >>> positive("TrainOneStepCell", "sens", np.array([2.0]))
        2.0
    """
    if isinstance(getattr(value, "shape", None), tuple) and np.size(value) == 1:
        value = np.asarray(value).item()
    check_argument(owner, name, value, PositiveScale)
    return float(value)
