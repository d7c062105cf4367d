"""Whether the fields of a configuration hold what their annotations say.

Configurations are written by hand and read from JSON: a text where a number belongs would otherwise
be found
somewhere in the middle of a conversion. Ranges are for each class to check.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from ortboost.core.arguments import described, fits, is_union
from ortboost.core.errors import ConfigError

__all__ = ["check_kinds"]


def check_kinds(config: Any, where: str) -> None:
    """Refuse a dataclass whose fields hold values of other kinds than their annotations.

    A float field takes a whole number and a tuple field a list; a bool is no number, and 2.0 not
    whole. Literals are texts here, and ``Any`` is anything.

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
        if not fits(value, hint):
            shown = repr(value)
            raise ConfigError(
                f"'{name}' is {shown if len(shown) < 60 else shown[:57] + '...'}; "
                f"{described(hint)} is needed.",
                where=f"{where}, {name}",
                fix=f"Give {described(hint)}.",
            )


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in dataclasses.fields(kind))


def _is_list(hint: Any) -> bool:
    one_of = typing.get_args(hint) if is_union(hint) else (hint,)
    return any(typing.get_origin(one) is tuple for one in one_of)
