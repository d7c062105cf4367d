"""The grammar of command-line options, ``KIND:VALUE,KEY=VALUE,...``.

A value is a number, true, false, none, a JSON list, or a string. A malformed argument raises a
``UsageError``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ortboost.core.errors import UsageError

__all__ = ["parse_kind", "parse_pairs", "parse_value", "split_pairs"]

_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "none": None}


def parse_value(text: str) -> Any:
    """Parse a number, true, false, none or a JSON list; anything else stays a string.

    Example:
        >>> parse_value("2**10"), parse_value("none"), parse_value("[1, 2]"), parse_value("fc*")
        (1024.0, None, [1, 2], 'fc*')
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    base, power, exponent = text.partition("**")
    if power and base.isdecimal() and exponent.isdecimal():
        with contextlib.suppress(ValueError, OverflowError):  # more digits than a float has
            return float(base) ** int(exponent)
    for read in (json.loads, float):
        try:
            value = read(text)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, int | float | list) else text  # else a JSON object
    return text


def parse_pairs(
    texts: Sequence[str] | None, option: str, form: str = "KEY=VALUE", example: str = "momentum=0.9"
) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` arguments; see :func:`parse_value` for the values.

    Example:
        >>> parse_pairs(["momentum=0.9", "eps-hat=true"], "--optimizer")
        {'momentum': 0.9, 'eps_hat': True}
    """
    pairs = split_pairs(texts, option, form, example)
    return {key.replace("-", "_"): parse_value(value) for key, value in pairs.items()}


def parse_kind(
    text: str, option: str, example: str, *, first: Mapping[str, str] | str = ""
) -> tuple[str, dict[str, Any]]:
    """Parse ``KIND:VALUE,KEY=VALUE`` into the kind and the values.

    Args:
        text: The argument.
        option: The option that it was given for.
        example: A valid example, for the error message.
        first: The key of a first value without a key, or a mapping from kind to that key.

    Example:
        >>> parse_kind("dynamic:4096,window=10", "--loss-scale", "fixed:8", first="init")
        ('dynamic', {'init': 4096, 'window': 10})
    """
    kind, _, rest = text.strip().partition(":")
    parts = [part for part in rest.split(",") if part]
    key = first if isinstance(first, str) else first.get(kind, "")
    if parts and "=" not in parts[0] and key:
        parts[0] = f"{key}={parts[0]}"
    return kind, parse_pairs(parts, f"{option} {text}", example=f"{option} {example}")


def split_pairs(
    texts: Sequence[str] | None, option: str, form: str, example: str
) -> dict[str, str]:
    """Parse ``NAME=TEXT`` arguments; a name cannot contain ``=``."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(
                f"'{text}' is not of the form {form}.",
                where=option,
                fix=f"For example: {example}.",
            )
        if name.strip() in found:
            raise UsageError(
                f"'{name.strip()}' is given twice.",
                where=f"{option}: {found[name.strip()]} and {value.strip()}",
                fix="Give one of them.",
            )
        found[name.strip()] = value.strip()
    return found
