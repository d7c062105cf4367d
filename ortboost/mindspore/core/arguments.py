"""Checks of arguments for the faces that MindSpore users know.

MindSpore documents TypeError, ValueError, KeyError and RuntimeError; ortboost's errors say what,
where and how to mend it. The errors here are both, so ported ``except ValueError`` keeps working.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ortboost.core.errors import ArgumentTypeError, ConfigError, UsageError

__all__ = [
    "ArgumentKeyError",
    "ArgumentRuntimeError",
    "ArgumentTypeError",
    "ArgumentValueError",
    "NotInThisVersionError",
    "as_argument_error",
    "check_choice",
    "check_number",
    "check_range",
    "check_type",
    "is_number",
    "positive",
]


_LARGEST = 3.4e38  # float32


class ArgumentValueError(UsageError, ValueError):
    """An argument has the right type and a value that makes no sense."""


class ArgumentKeyError(UsageError, KeyError):
    """A name that is not known."""


class ArgumentRuntimeError(UsageError, RuntimeError):
    """Something went wrong in the course of a run."""


class NotInThisVersionError(UsageError, NotImplementedError):
    """MindSpore has it, this version of ortboost has not."""


@contextlib.contextmanager
def as_argument_error(owner: str) -> Iterator[None]:
    """What a configuration refuses is, on a face, an argument that makes no sense.

    Raises:
        ArgumentValueError: In place of a :class:`ortboost.core.errors.ConfigError`.
    """
    try:
        yield
    except ConfigError as error:
        raise ArgumentValueError(
            error.what, where=f"{owner}, {error.where}", fix=error.fix
        ) from error


def is_number(value: object) -> bool:
    """Whether a value is a real number, of Python or numpy; bool is none.

    Example:
        >>> is_number(0.5), is_number(np.float32(1)), is_number(True)
        (True, True, False)
    """
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def check_type(owner: str, name: str, value: object, *types: type) -> None:
    """Refuse a value that is of none of the types; bool passes as int only if it is named.

    Raises:
        ArgumentTypeError: It is of another type.

    Example:
        >>> check_type("SGD", "nesterov", True, bool)
    """
    wrong_bool = isinstance(value, bool) and bool not in types and object not in types
    if wrong_bool or not isinstance(value, types):
        wanted = " or ".join(kind.__name__ for kind in types)
        raise ArgumentTypeError(
            f"'{name}' is of type {type(value).__name__}.",
            where=f"{owner}, {name}",
            fix=f"Give a value of type {wanted}.",
        )


def check_number(owner: str, name: str, value: object) -> None:
    """Refuse what is no real number, see :func:`is_number`.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not is_number(value):
        check_type(owner, name, value, int, float)


def positive(owner: str, name: str, value: Any) -> float:
    """A number above 0 that float32 holds; an array with one element will do.

    Raises:
        ArgumentTypeError, ArgumentValueError: It is none.

    Example:
        >>> positive("TrainOneStepCell", "sens", np.array([2.0]))
        2.0
    """
    if isinstance(getattr(value, "shape", None), tuple) and np.size(value) == 1:
        value = np.asarray(value).item()
    check_number(owner, name, value)
    check_range(owner, name, value, 0, _LARGEST, open_low=True)
    return float(value)


def check_range(
    owner: str,
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse a number outside ``[low, high]``; an open end is excluded. NaN is always outside.

    Raises:
        ArgumentValueError: It is outside.

    Example:
        >>> check_range("Adam", "beta1", 0.9, 0, 1, open_low=True, open_high=True)
    """
    above = value > low if open_low else value >= low
    below = value < high if open_high else value <= high
    if not (above and below):
        ends = []
        if low > -math.inf:
            ends.append(f"{'above' if open_low else 'at least'} {low:g}")
        if high < math.inf:
            ends.append(f"{'below' if open_high else 'at most'} {high:g}")
        raise ArgumentValueError(
            f"'{name}' is {value}.",
            where=f"{owner}, {name}",
            fix=f"Give a number {' and '.join(ends) or 'that is no NaN'}.",
        )


def check_choice(owner: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ArgumentValueError: It is none of them.

    Example:
        >>> check_choice("MSELoss", "reduction", "mean", ("mean", "sum", "none"))
    """
    if not isinstance(value, str) or value not in choices:  # an array has no single answer
        raise ArgumentValueError(
            f"'{name}' is {value!r}.",
            where=f"{owner}, {name}",
            fix=f"Give one of {', '.join(repr(choice) for choice in choices)}.",
        )
