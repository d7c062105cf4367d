"""One error family: what went wrong, where, and how to fix it.

Every error that a user can cause is an :class:`OrtBoostError`. Its text is always three lines; the
command line prints them and leaves with the ``exit_status`` of the class. Anything else that
escapes is a bug of ortboost and leaves with status 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from ortboost.core.printable import one_line
from ortboost.core.python_words import in_python

__all__ = [
    "ArgumentTypeError",
    "ArgumentValueError",
    "ConfigError",
    "DependencyError",
    "DivergedError",
    "FileError",
    "LostProcessError",
    "ModelError",
    "OrtBoostError",
    "ParityError",
    "UsageError",
    "nearest",
    "require_known",
]


class OrtBoostError(Exception):
    """Base of all errors that ortboost raises on purpose.

    Args:
        what: One sentence, what went wrong.
        where: The file, node, tensor, key or argument it is about.
        fix: What the user can do about it.

    Example:
        >>> print(OrtBoostError("It broke.", where="net.onnx: node 'c1'", fix="Fix it."))
        It broke.
          where: net.onnx: node 'c1'
          fix:   Fix it.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        return in_python(self.in_options())

    def in_options(self) -> str:
        """The lines for the command line, whose options they speak of; as text they speak of arguments."""
        lines = [one_line(self.what)]
        if self.where:
            lines.append(f"  where: {one_line(self.where)}")
        if self.fix:
            lines.append(f"  fix:   {one_line(self.fix)}")
        return "\n".join(lines)


class UsageError(OrtBoostError):
    """An argument or a combination of arguments makes no sense."""

    exit_status = 2


class ArgumentTypeError(UsageError, TypeError):
    """An argument has the wrong type."""


class ArgumentValueError(UsageError, ValueError):
    """An argument has the right type and a value that makes no sense."""


class ConfigError(OrtBoostError):
    """A configuration value or file is invalid."""

    exit_status = 3


class ModelError(OrtBoostError):
    """The model cannot be trained or converted as it is."""

    exit_status = 4


class ParityError(OrtBoostError):
    """Two graphs that should answer alike do not, or an accuracy is below what was asked for."""

    exit_status = 5


class DivergedError(OrtBoostError):
    """Training stopped because values stayed non-finite."""

    exit_status = 6


class DependencyError(OrtBoostError):
    """A package, library or device that is needed is missing or broken."""

    exit_status = 7


class FileError(OrtBoostError):
    """A file is missing, damaged, foreign or not writable."""

    exit_status = 8


class LostProcessError(OrtBoostError):
    """A process of a run with several is gone, or does not answer."""

    exit_status = 9


def nearest(name: str, choices: Iterable[str]) -> str:
    """Phrase the valid choices for an unknown name, the nearest one first.

    Example:
        >>> nearest("momentun", ["sgd", "momentum"])
        "did you mean 'momentum'? (choices: sgd, momentum)"
    """
    known = list(choices)
    listed = f"choices: {', '.join(known)}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'? ({listed})" if close else listed


def require_known(
    name: str,
    choices: Iterable[str],
    what: str,
    where: str,
    error: type[OrtBoostError] = UsageError,
) -> None:
    """Refuse a name that is none of the choices; the nearest one is named.

    Args:
        name: The name.
        choices: Those that there are.
        what: What is wrong with another name, one sentence.
        where: Where it was given.
        error: What to raise.

    Example:
        >>> require_known("tset", ["train", "test"], "There is no split 'tset'.", "split")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.UsageError: There is no split 'tset'.
          where: split
          fix:   did you mean 'test'? (choices: train, test)
    """
    known = list(choices)
    if name not in known:
        raise error(what, where=where, fix=nearest(str(name), known))
