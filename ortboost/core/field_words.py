"""Annotations in words: ranges, and why a value does not match its annotation."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np

from ortboost.core.errors import ConfigError, nearest

__all__ = [
    "FAMILIES",
    "UNIONS",
    "Family",
    "OnlyFloat",
    "Range",
    "UnfitError",
    "describe_type",
    "describe_value",
    "field_error",
    "without_alias",
]

_SHOWN: Final = 60
UNIONS: Final = (typing.Union, types.UnionType)
"""The origins of the two ways to write a union."""

_WORDS: Final[Mapping[Any, str]] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    bytes: "a bytes object",
    os.PathLike: "a path",
    np.ndarray: "an array",
    types.NoneType: "None",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The finite numbers that a field may hold, as part of its annotation.

    Args:
        least: The smallest value allowed.
        most: The largest value allowed.
        above: An exclusive lower bound.
        below: An exclusive upper bound.

    Example:
        >>> Range(1).text, Range(above=0, below=1).text
        ('1 or more', 'a number above 0 and below 1')
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether a number is finite and in the range."""
        inside = self.least <= value <= self.most and self.above < value < self.below
        return bool(inside and math.isfinite(value))

    @property
    def text(self) -> str:
        """The range in words."""
        if math.isfinite(self.least) and math.isinf(self.most) and math.isinf(self.below):
            return f"{_number(self.least)} or more"
        bounds = {"from": self.least, "above": self.above, "to": self.most, "below": self.below}
        ends = [f"{word} {_number(end)}" for word, end in bounds.items() if math.isfinite(end)]
        if not ends:
            return "a finite number"
        return "a number " + " and ".join(ends).replace(" and to ", " to ")


class OnlyFloat:
    """A marker in an annotation: an int is not accepted as a float, as in MindSpore."""


class Family(typing.NamedTuple):
    """A choice of configuration classes: a field holds an instance of one of them.

    Args:
        words: A description: ``an optimizer``.
        data: Sample data.
        kinds: Name to class.
    """

    words: str
    data: Mapping[str, str]
    kinds: Mapping[str, type[Any]]


FAMILIES: Final[dict[Any, Family]] = {}
"""Base class to its family, filled by :func:`~ortboost.core.field_types.describe_family`."""


class UnfitError(Exception):
    """A value does not match its annotation.

    Args:
        value: The value.
        hint: The annotation.
        type_fits: Whether the type is right, and only the range or the choice is not.
    """

    def __init__(self, value: object, hint: Any, *, type_fits: bool = False) -> None:
        super().__init__()
        self.value, self.hint, self.type_fits = value, hint, type_fits


def field_error(name: str, unfit: UnfitError, where: str) -> ConfigError:
    """The error for an invalid field: the value found, what is allowed, the nearest choice."""
    value, hint = unfit.value, unfit.hint
    expected = describe_type(hint)
    if isinstance(value, float) and not math.isfinite(value) and expected.endswith("or more"):
        expected = f"a finite number of {expected}"
    members = _members_of(hint)
    sequences = (tuple, Sequence)  # as a string is, of letters
    if isinstance(value, str) and any(typing.get_origin(one) in sequences for one in members):
        return ConfigError(
            f"'{name}' is one string, '{value}'; a list is needed.",
            where=where,
            fix=f"Write ('{value}',).",
        )
    choices = [c for one in members for c in typing.get_args(one) if isinstance(c, str)]
    config = next(
        (c for c in (hint, *members) if c in FAMILIES or dataclasses.is_dataclass(c)), None
    )
    fix = f"Give {expected}."
    if isinstance(value, str) and choices:
        fix = nearest(value, choices)
    elif config is not None:
        data = f"{{'{name}': {FAMILIES[config].data if config in FAMILIES else '{...}'}}}"
        fix = f"Write {name}={_call(config, value)}, or give plain data to from_dict: {data}."
    return ConfigError(
        f"'{name}' is {describe_value(value)}; {expected} is needed.", where=where, fix=fix
    )


def _call(kind: Any, value: object) -> str:
    """The expression that was meant, as far as it is known: ``Adam()``, ``LossConfig('mse')``."""
    if kind in FAMILIES:
        kinds = FAMILIES[kind].kinds
        said = value.__name__ if isinstance(value, type) else str(value)
        near = difflib.get_close_matches(said.lower(), kinds, n=1)
        if near:
            return f"{kinds[near[0]].__name__}()"
        return f"{next(iter(kinds.values())).__name__}(...)"
    with contextlib.suppress(ConfigError, TypeError):
        if isinstance(value, str | int | float) and kind(value):
            return f"{kind.__name__}({describe_value(value)})"
    return f"{kind.__name__}(...)"


def _members_of(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in UNIONS else (hint,)


def describe_value(value: object) -> str:
    """A value in an error message: its repr, or its type if the repr is long."""
    text = repr(value)
    short = len(text) < _SHOWN and "\n" not in text
    return text if short else f"of type {type(value).__name__}"


def without_alias(hint: Any) -> Any:
    """Resolve the alias of a ``type`` statement; numpy 2.5 defines ``NDArray`` by one."""
    alias = typing.get_origin(hint) or hint
    return without_alias(alias.__value__) if hasattr(alias, "__value__") else hint


def describe_type(hint: Any) -> str:
    """An annotation in words; a class may give its own as ``in_words``.

    Example:
        >>> describe_type(int | None), describe_type(tuple[str, ...])
        ('a whole number or None', 'a list of strings')
    """
    hint = without_alias(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    # Before unions, because a family may be one.
    if hint in FAMILIES:
        return FAMILIES[hint].words
    if origin in UNIONS:
        members = list(dict.fromkeys(describe_type(one) for one in inner))
        return (", or " if any(" or " in one for one in members) else " or ").join(members)
    if origin is Annotated:
        noun = "a float" if OnlyFloat in inner else describe_type(inner[0])
        words = next((mark.text for mark in inner[1:] if isinstance(mark, Range)), noun)
        bare = words.endswith("or more") and noun != "a number"
        return f"{noun} of {words}" if bare else words.replace("a number", noun)
    if origin is Literal:
        return " or ".join(f"'{one}'" for one in inner)
    if origin is Sequence or (origin is tuple and len(inner) == 2 and inner[1] is Ellipsis):
        return f"a list of {_plural(describe_type(inner[0]))}"
    if origin is tuple:
        return f"a list of {len(inner)} items"
    if origin is Mapping:
        values = "values" if inner[1] is Any else _plural(describe_type(inner[1]))
        return f"a mapping of names to {values}"
    if hasattr(hint, "in_words"):
        return str(hint.in_words)
    named = str(getattr(origin or hint, "__name__", hint))
    return _WORDS.get(origin or hint, f"{'an' if named[0] in 'AEIOU' else 'a'} {named}")


def _plural(words: str) -> str:
    # "0 or more" -> "numbers, 0 or more each"; "a list of strings" -> "lists of strings"
    if words[0].isdigit():
        return f"numbers, {words} each"
    members = words.split(" or ")
    if len(members) > 1 and all(re.fullmatch(r"(a|an) \w+", one) for one in members):
        return " or ".join(map(_plural, members))
    words = words.removeprefix("a ").removeprefix("an ")
    nouns = ("list", "number", "float", "whole number")
    noun = next((noun for noun in nouns if words.startswith(f"{noun} ")), words)
    return words.replace(noun, f"{noun}s", 1)


def _number(value: float) -> str:
    return f"{value:.10g}"
