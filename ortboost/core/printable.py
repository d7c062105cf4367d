"""Escaping of text from files for a terminal: names in a model can hold any character."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["count_of", "first_of", "one_line", "printable"]

# Control characters other than tab and newline (escape sequences begin with one), marks of text
# direction, line separators, surrogate halves, and characters that XML 1.0 (section 2.2) does not
# allow.
_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufeff\\ufffe\\uffff]"
)
# Not before a continuation line of an error, see one_line.
_LINE_END = re.compile(r"\n(?! {9}\S)")


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun; the plural has an ``s`` if not given.

    Example:
        >>> count_of(1, "node"), count_of(2000, "copy", "copies")
        ('1 node', '2,000 copies')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def first_of(items: Sequence[str], most: int) -> str:
    """The first items as text, and how many more there are.

    Example:
        >>> first_of(["conv1", "conv2", "fc"], 2)
        'conv1, conv2 and 1 more'
    """
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def printable(text: str) -> str:
    r"""Escape control characters in a text; newlines and tabs are kept.

    Example:
        >>> printable("conv\x1b[31m")
        'conv\\x1b[31m'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""Escape newlines too, so that a name cannot fake the next line of an error.

    Continuation lines indented by nine spaces, as errors write them, are kept.

    Example:
        >>> one_line("conv\n  fix: none")
        'conv\\n  fix: none'
    """
    return _LINE_END.sub(r"\\n", printable(text))
