"""Check the arguments of functions against their annotations, and the names that classes take.

Public functions are called from notebooks, where nothing checks types: a dict where a configuration
belongs would otherwise end in an AttributeError deep inside. The annotations give types, choices
and ranges; each function checks the rest itself (whether a file exists, which options go together).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, nearest
from ortboost.core.field_types import check_value
from ortboost.core.field_words import UnfitError, describe_type, describe_value

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Configuration", "check_argument", "checked"]

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Reject arguments that do not match the annotations of a function.

    The rules are those of configurations, see :func:`ortboost.core.field_types.check_kinds`. The
    function raises an :class:`ArgumentTypeError` for a wrong type, and an
    :class:`ArgumentValueError` for a number outside its ``Range`` or a string that is not one
    of the choices.

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
        owner = _owner(function, args)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise _misfit(owner, str(error), signature, kwargs) from None
        hints = _hints(function)  # not at decoration: annotations may name what is defined later
        for name, value in given.items():
            kind = signature.parameters[name].kind
            # The annotations of *args and **kwargs are those of an element.
            variadic = kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            if name in hints and not variadic:
                check_argument(owner, name, value, hints[name])
        return function(*args, **kwargs)

    return wrapper


class Configuration:
    """Base of the configurations, which are dataclasses: reject unknown arguments by name.

    Attributes:
        elsewhere: Arguments that users expect here but that belong somewhere else, and the fix.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Window(Configuration):
        ...     size: int = 1
        >>> Window(sise=2)
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ArgumentTypeError: Unknown argument 'sise'.
          where: Window
          fix:   did you mean 'size'? (choices: size)
    """

    elsewhere: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: object, **given: object) -> Self:
        """Check the names here: each dataclass has an ``__init__`` of its own."""
        parameters = _parameters(cls.__init__)
        unknown = [name for name in given if name not in parameters]
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            known = list(parameters)[1:]  # without self
            fix = nearest(unknown[0], known) if known else "It takes none."
            raise ArgumentTypeError(
                f"Unknown argument '{unknown[0]}'.",
                where=cls.__name__,
                fix=cls.elsewhere.get(unknown[0], fix),
            )
        return super().__new__(cls)


def check_argument(owner: str, name: str, value: object, hint: Any) -> None:
    """Check one value as :func:`checked` does: a part of an argument, or a type known only later.

    The error names its ``owner``, the function or class that the user called.

    Raises:
        ArgumentTypeError: The value has the wrong type.
        ArgumentValueError: The value is out of range, or not one of the choices.

    Example:
        >>> check_argument("SGD", "nesterov", True, bool)
    """
    try:
        check_value(value, hint)
    except UnfitError as unfit:
        error = ArgumentValueError if unfit.type_fits else ArgumentTypeError
        raise error(
            f"'{name}' is {describe_value(value)}; {describe_type(hint)} is needed.",
            where=f"{owner}, {name}",
            fix=f"Give {describe_type(hint)}.",
        ) from None


def _misfit(
    owner: str, reason: str, signature: inspect.Signature, given: Mapping[str, object]
) -> ArgumentTypeError:
    """The error for a call that does not match the signature, with the nearest known name."""
    known = [name for name in signature.parameters if name != "self"]
    unknown = next((name for name in given if name not in known), None)
    # All names are known: one is missing, or there are too many values without a name.
    if unknown is None:
        return ArgumentTypeError(
            f"The arguments do not match the signature: {reason}.",
            where=owner,
            fix=f"Arguments: {', '.join(known)}.",
        )
    return ArgumentTypeError(
        f"Unknown argument '{unknown}'.", where=owner, fix=nearest(unknown, known)
    )


def _owner(function: Callable[..., Any], args: Sequence[Any]) -> str:
    """The name that the user called; for a constructor, the class, which may have inherited it."""
    name = function.__qualname__
    return type(args[0]).__name__ if name.endswith(".__init__") and args else name


@functools.cache
def _parameters(init: Callable[..., None]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(init).parameters


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)
