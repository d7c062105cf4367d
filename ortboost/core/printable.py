"""Text from files as it may reach a terminal: names of a model can hold anything."""

from __future__ import annotations

import re

__all__ = ["count_of", "one_line", "printable"]

# Control characters but tab and newline (escape sequences begin with one), what turns the direction of
# writing or ends a line, halves of surrogate pairs, and what XML 1.0 (section 2.2) does not know.
_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufeff\\ufffe\\uffff]"
)
_LINE_END = re.compile(r"\n(?! {9}\S)")


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun; the plural has an ``s`` if not given.

    Example:
        >>> count_of(1, "node"), count_of(2000, "copy", "copies")
        ('1 node', '2,000 copies')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    r"""The text with control characters as escapes; lines and tabs stay.

    Example:
        >>> printable("conv\x1b[31m")
        'conv\\x1b[31m'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""The same, line ends included: a name cannot pretend to be the next line of an error.

    A line that goes on at the ninth column, as errors write them, stays.

    Example:
        >>> one_line("conv\n  fix: none")
        'conv\\n  fix: none'
    """
    return _LINE_END.sub(r"\\n", printable(text))
