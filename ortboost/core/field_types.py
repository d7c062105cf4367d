"""Whether the fields of a configuration hold what their annotations say.

Configurations are written by hand and read from JSON: a text where a number belongs would otherwise be found
somewhere in the middle of a conversion. Ranges are for each class to check.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from ortboost.core.errors import ConfigError, nearest

__all__ = ["check_kinds", "read_config"]

T = TypeVar("T")
_INT64: Final = 2**63  # what a graph can hold
_DOUBLE: Final = 2**1023  # a larger int is no float
_UNIONS = (typing.Union, types.UnionType)
_WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
}


def check_kinds(config: Any, where: str) -> None:
    """Refuse a dataclass whose fields hold values of other kinds than their annotations.

    A float field takes a whole number and a tuple field a list; a bool is no number, and 2.0 not whole. Literals are texts here, and ``Any`` is anything.

    Args:
        config: A dataclass instance, in its ``__post_init__``.
        where: What it is, for the error.

    Raises:
        ConfigError: The first field that does not fit.

    Example:
        >>> @dataclasses.dataclass
        ... class Window:
        ...     size: int = 1
        >>> check_kinds(Window("ten"), "window")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.ConfigError: 'size' is 'ten'; a whole number is needed.
          where: window, size
          fix:   Give a whole number.
    """
    kind: Any = type(config)
    for name, hint in _fields(kind):
        value = getattr(config, name)
        if isinstance(value, str) and _is_list(hint):  # it would be taken letter by letter
            raise ConfigError(
                f"'{name}' is one text, '{value}'; a list is needed.",
                where=f"{where}, {name}",
                fix=f"Write ('{value}',).",
            )
        if not _fits(value, hint):
            shown = repr(value)
            raise ConfigError(
                f"'{name}' is {shown if len(shown) < 60 else shown[:57] + '...'}; "
                f"{_said(hint)} is needed.",
                where=f"{where}, {name}",
                fix=f"Give {_said(hint)}.",
            )


def read_config(kind: type[T], data: Mapping[str, Any], where: str, more: Iterable[str] = ()) -> T:
    """Build a configuration of plain data; keys may stay out, lists become tuples.

    Args:
        kind: The dataclass, which checks its values.
        data: Its fields.
        where: What is read, for the error.
        more: Keywords that it takes besides its fields.

    Raises:
        ConfigError: An unknown key (the nearest one is named), a missing one, or a value that does not fit.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{data!r} has no keys.", where=where, fix="Give an object of keys and values."
        )
    names = [*(item.name for item in dataclasses.fields(kind)), *more]  # type: ignore[arg-type]
    for key in data:
        if key not in names:
            raise ConfigError(f"Unknown key {key!r}.", where=where, fix=nearest(str(key), names))
    try:
        return kind(**{key: _as_tuple(value) for key, value in data.items()})
    except TypeError as error:  # a missing key, or a value that cannot even be looked at
        raise ConfigError(
            "A key is missing, or a value is of another type than is needed.",
            where=f"{where}: {error}",
            fix="Give every key that it needs, each with a value of its type.",
        ) from error


def _as_tuple(value: Any) -> Any:
    """JSON lists as tuples, at any depth."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in dataclasses.fields(kind))


def _fits(value: object, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in _UNIONS:
        return any(_fits(value, one) for one in inner)
    if origin is typing.Literal:
        return isinstance(value, str)
    if origin is tuple:
        if not isinstance(value, tuple | list):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(_fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _fits(part, one)
            for item in value.items()
            for part, one in zip(item, inner, strict=True)
        )
    if hint in (int, float):
        return _is_number(value, whole=hint is int)
    return isinstance(value, hint)


def _is_list(hint: Any) -> bool:
    one_of = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return any(typing.get_origin(one) is tuple for one in one_of)


def _is_number(value: Any, *, whole: bool) -> bool:
    kind: Any = type(value)
    if kind is bool or not issubclass(kind, numbers.Integral if whole else numbers.Real):
        return False
    if whole:
        return bool(abs(value) < _INT64)
    return not issubclass(kind, int) or abs(value) < _DOUBLE


def _said(hint: Any) -> str:
    """An annotation in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(_said(one) for one in inner))
    if hint is type(None):
        return "None"
    if origin is typing.Literal:
        return " or ".join(f"'{one}'" for one in inner)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return f"a list of {_said(inner[0]).removeprefix('a ').removeprefix('an ')}s"
        return f"a list of {len(inner)} item"
    if origin is Mapping:
        return f"an object with {_said(inner[1]).removeprefix('a ')} values"
    named = str(getattr(hint, "__name__", hint))
    return _WORDS.get(hint, f"{'an' if named[0] in 'AEIOU' else 'a'} {named}")
