"""Whether a value is of the type that an annotation names, and a decorator that asks it of arguments.

Public functions are called from notebooks, where nothing checks types: a dict where a configuration
belongs would otherwise end in an AttributeError somewhere in the middle. What the values mean (ranges,
files that exist) is for each function to check.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from ortboost.core.errors import ArgumentTypeError

__all__ = ["checked", "described", "fits", "is_union"]

P = ParamSpec("P")
R = TypeVar("R")
_INT64: Final = 2**63  # what a graph can hold
_DOUBLE: Final = 2**1023  # a larger int is no float
_SHOWN: Final = 60
_WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    types.NoneType: "None",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments of other types than the annotations of a function name.

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
            if variadic or name not in hints or fits(value, hints[name]):
                continue
            owner = function.__qualname__.removesuffix(".__init__")
            raise ArgumentTypeError(
                f"'{name}' is {_shown(value)}; {described(hints[name])} is needed.",
                where=f"{owner}, {name}",
                fix=f"Give {described(hints[name])}.",
            )
        return function(*args, **kwargs)

    return wrapper


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def _shown(value: object) -> str:
    text = repr(value)
    short = len(text) < _SHOWN and "\n" not in text
    return text if short else f"of type {type(value).__name__}"


def is_union(hint: Any) -> bool:
    """Whether an annotation is ``A | B``.

    Example:
        >>> is_union(int | None), is_union(int)
        (True, False)
    """
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the type that an annotation names.

    A float takes a whole number, and a tuple a list; a bool is no number, and 2.0 is not whole.
    Literals are texts here, and ``Any`` is anything. The items of a sequence or mapping are looked at.

    Args:
        value: The value.
        hint: The annotation, resolved.

    Example:
        >>> fits(1, float | None), fits(True, int), fits(["a", 1], tuple[str, ...])
        (True, False, False)
    """
    hint = _without_alias(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if is_union(hint):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return isinstance(value, str)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is collections.abc.Sequence:
        listed = isinstance(value, collections.abc.Sequence) and not isinstance(value, str | bytes)
        return listed and all(fits(item, inner[0]) for item in typing.cast("list[Any]", value))
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(
            fits(part, one) for item in value.items() for part, one in zip(item, inner, strict=True)
        )
    if hint in (int, float):
        return _is_number(value, whole=hint is int)
    return isinstance(value, origin or hint)


def _without_alias(hint: Any) -> Any:
    """What a ``type`` statement stands for; numpy 2.5 defines ``NDArray`` by one."""
    while True:
        alias = typing.get_origin(hint) or hint
        if not hasattr(alias, "__value__"):
            return hint
        hint = alias.__value__


def _is_number(value: Any, *, whole: bool) -> bool:
    kind: Any = type(value)
    if kind is bool or not issubclass(kind, numbers.Integral if whole else numbers.Real):
        return False
    if whole:
        return bool(abs(value) < _INT64)
    return not issubclass(kind, int) or abs(value) < _DOUBLE


def described(hint: Any) -> str:
    """An annotation in words.

    Example:
        >>> described(int | None), described(tuple[str, ...])
        ('a whole number or None', 'a list of texts')
    """
    hint = _without_alias(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        return " or ".join(dict.fromkeys(described(one) for one in inner))
    if origin is typing.Literal:
        return " or ".join(f"'{one}'" for one in inner)
    if origin is collections.abc.Sequence or (origin is tuple and inner[1:] == (Ellipsis,)):
        item = described(inner[0]).removeprefix("a ").removeprefix("an ")
        nested = item.startswith("list of ")
        return f"a list of {item.replace('list', 'lists', 1) if nested else f'{item}s'}"
    if origin is tuple:
        return f"a list of {len(inner)} items"
    if origin is collections.abc.Mapping:
        return f"an object with {described(inner[1]).removeprefix('a ')} values"
    named = str(getattr(origin or hint, "__name__", hint))
    if named == "PathLike":
        return "a path"
    return _WORDS.get(hint, f"{'an' if named[0] in 'AEIOU' else 'a'} {named}")
