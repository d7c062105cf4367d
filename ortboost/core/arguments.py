"""A decorator that refuses arguments that the annotations of a function exclude.

Public functions are called from notebooks, where nothing checks types: a dict where a configuration
belongs would otherwise end in an AttributeError somewhere in the middle. Types, choices and ranges
stand in the annotations; what else the values mean (files that exist, what goes together) is for each
function to check.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, nearest
from ortboost.core.field_types import check_value
from ortboost.core.field_words import UnfitError, said, shown

__all__ = ["check_argument", "checked"]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments that the annotations of a function exclude.

    The rules are those of configurations, see :func:`ortboost.core.field_types.check_kinds`. The function
    raises an :class:`ArgumentTypeError` for another type, and an :class:`ArgumentValueError` for a
    number out of its ``Range`` or a text that is none of the choices.

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
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _misfit(_owner(function, args), str(error), signature, kwargs) from None
        hints = _hints(function)
        for name, value in given.items():
            kind = signature.parameters[name].kind
            variadic = kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            if variadic or name not in hints:
                continue
            check_argument(_owner(function, args), name, value, hints[name])
        return function(*args, **kwargs)

    return wrapper


def check_argument(owner: str, name: str, value: object, hint: Any) -> None:
    """Refuse one value, as :func:`checked` does; for what is inside of an argument, or known late.

    Args:
        owner: What the user called.
        name: Name of the argument.
        value: The value.
        hint: The annotation that it must be of.

    Raises:
        ArgumentTypeError: It is of another type.
        ArgumentValueError: It is out of range, or none of the choices.

    Example:
        >>> check_argument("SGD", "nesterov", True, bool)
    """
    try:
        check_value(value, hint)
    except UnfitError as unfit:
        error = ArgumentValueError if unfit.type_fits else ArgumentTypeError
        raise error(
            f"'{name}' is {shown(value)}; {said(hint)} is needed.",
            where=f"{owner}, {name}",
            fix=f"Give {said(hint)}.",
        ) from None


def _misfit(
    owner: str, said: str, signature: inspect.Signature, given: Mapping[str, object]
) -> ArgumentTypeError:
    """The error for a call that the signature does not allow, with the nearest name."""
    known = [name for name in signature.parameters if name != "self"]
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return ArgumentTypeError(
            f"The call does not fit: {said}.", where=owner, fix=f"Arguments: {', '.join(known)}."
        )
    return ArgumentTypeError(
        f"There is no argument '{unknown}'.", where=owner, fix=nearest(unknown, known)
    )


def _owner(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """What the user called: of a constructor the class, which may have inherited it."""
    name = function.__qualname__
    return type(args[0]).__name__ if name.endswith(".__init__") and args else name


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)
