"""A decorator that refuses arguments of other types than the annotations of a function name.

Public functions are called from notebooks, where nothing checks types: a dict where a configuration
belongs would otherwise end in an AttributeError somewhere in the middle. What the values mean (files
that exist, what goes together) is for each function to check.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from ortboost.core.errors import ArgumentTypeError
from ortboost.core.field_types import check_value
from ortboost.core.field_words import UnfitError, said, shown

__all__ = ["checked"]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments of other types than the annotations of a function name.

    The rules are those of configurations, see :func:`ortboost.core.field_types.check_kinds`.

    Example:
        >>> @checked
        ... def double(number: float) -> float:
        ...     return 2 * number
        >>> double("3")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ArgumentTypeError: 'number' is '3'; a number is needed.
          where: double, number
          fix:   Give a number.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        hints = _hints(function)
        for name, value in given.items():
            kind = signature.parameters[name].kind
            variadic = kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            if variadic or name not in hints:
                continue
            try:
                check_value(value, hints[name])
            except UnfitError:
                raise ArgumentTypeError(
                    f"'{name}' is {shown(value)}; {said(hints[name])} is needed.",
                    where=f"{function.__qualname__.removesuffix('.__init__')}, {name}",
                    fix=f"Give {said(hints[name])}.",
                ) from None
        return function(*args, **kwargs)

    return wrapper


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)
