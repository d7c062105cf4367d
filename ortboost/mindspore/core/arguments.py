"""Types of arguments, and errors compatible with MindSpore's.

MindSpore documents TypeError, ValueError, KeyError and RuntimeError; ortboost's errors say what,
where and how to fix it. These errors are both, so that a ported ``except ValueError`` keeps
working.
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
    "refuse_given",
]


_LARGEST: Final = 3.4e38  # float32

Count: TypeAlias = Annotated[int, Range(1)]
"""A count of at least 1."""
CountOrZero: TypeAlias = Annotated[int, Range(0)]
"""A count of 0 or more."""
PositiveFloat: TypeAlias = Annotated[float, OnlyFloat, Range(above=0)]
"""A float, not an int, above 0."""
NotNegativeFloat: TypeAlias = Annotated[float, OnlyFloat, Range(0)]
"""A float, not an int, of 0 or more."""
PositiveScale: TypeAlias = Annotated[float, Range(above=0, most=_LARGEST)]
"""A positive loss scale in the range of float32."""


class ArgumentKeyError(UsageError, KeyError):
    """An unknown name."""


class ArgumentRuntimeError(UsageError, RuntimeError):
    """An error during a run."""


class NotInThisVersionError(UsageError, NotImplementedError):
    """A feature of MindSpore that this version of ortboost lacks."""


@contextlib.contextmanager
def as_argument_error(owner: str) -> Iterator[None]:
    """Raise an ``ArgumentValueError`` in place of a :class:`ortboost.core.errors.ConfigError`."""
    try:
        yield
    except ConfigError as error:
        where = f"{owner}, {error.where}"
        raise ArgumentValueError(error.what, where=where, fix=error.fix) from error


def refuse_given(owner: str, **given: Any) -> None:
    """Refuse arguments of MindSpore that this version lacks, unless they are off."""
    for name, value in given.items():
        if value:
            raise NotInThisVersionError(
                f"The argument '{name}' is not in this version.",
                where=owner,
                fix="Leave it out, or give its default.",
            )


def positive(owner: str, name: str, value: Any) -> float:
    """Check a number above 0 in the range of float32; arrays with one element are accepted.

    Example:
        >>> positive("TrainOneStepCell", "sens", np.array([2.0]))
        2.0
    """
    if isinstance(getattr(value, "shape", None), tuple) and np.size(value) == 1:
        value = np.asarray(value).item()
    check_argument(owner, name, value, PositiveScale)
    return float(value)
