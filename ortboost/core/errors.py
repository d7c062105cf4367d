"""One error family: what went wrong, where, and how to fix it.

Every error that a user can cause is an :class:`OrtBoostError`. Its text always has three lines; the
command line prints them and exits with the ``exit_status`` of the class. Any other exception that
escapes is a bug in ortboost and exits with status 1.
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
    "all_lines",
    "first_line",
    "nearest",
    "require_known",
]


class OrtBoostError(Exception):
    """Base of all errors that ortboost raises on purpose.

    Args:
        what: One sentence that says what went wrong.
        where: The file, node, tensor, key or argument concerned.
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
        """The message with command-line options; ``str`` gives it with Python arguments instead."""
        lines = [one_line(self.what)]
        if self.where:
            lines.append(f"  where: {one_line(self.where)}")
        if self.fix:
            lines.append(f"  fix:   {one_line(self.fix)}")
        return "\n".join(lines)


class UsageError(OrtBoostError):
    """An argument or a combination of arguments is invalid.

    Example:
        >>> import ortboost as ob
        >>> try:
        ...     ob.check("models/mlp.onnx", target="abacus")
        ... except ob.UsageError as error:
        ...     print(error.exit_status, error.what)
        2 The target 'abacus' has no checker.
    """

    exit_status = 2


class ArgumentTypeError(UsageError, TypeError):
    """An argument has the wrong type."""


class ArgumentValueError(UsageError, ValueError):
    """An argument has the right type but an invalid value."""


class ConfigError(OrtBoostError):
    """A configuration value or file is invalid.

    Example:
        >>> import ortboost as ob
        >>> try:
        ...     ob.TrainConfig(epochs=0)
        ... except ob.ConfigError as error:
        ...     print(error.exit_status, error.what)
        3 'epochs' is 0; a whole number of 1 or more is needed.
    """

    exit_status = 3


class ModelError(OrtBoostError):
    """The model cannot be trained or converted as it is.

    Example:
        >>> import ortboost as ob
        >>> try:
        ...     ob.build_program("models/mlp.onnx", ob.ProgramConfig(freeze=("*",)))
        ... except ob.ModelError as error:
        ...     print(error.exit_status, error.what)
        4 There is nothing to train.
    """

    exit_status = 4


class ParityError(OrtBoostError):
    """The outputs of two graphs differ, or an accuracy is below the required one.

    Example:
        >>> import ortboost as ob
        >>> try:
        ...     ob.export("models/mlp.onnx", "mlp.fp16.onnx", precision="fp16", rtol=0.0, atol=0.0)
        ... except ob.ParityError as error:
        ...     print(error.exit_status, error.what.partition(":")[0])
        5 The exported graph gives different outputs
    """

    exit_status = 5


class DivergedError(OrtBoostError):
    """Training stopped because values stayed non-finite.

    Example:
        >>> DivergedError("Training diverged.").exit_status
        6
    """

    exit_status = 6


class DependencyError(OrtBoostError):
    """A required package, library or device is missing or broken.

    Example:
        >>> DependencyError("There is no onnxruntime.", fix="pip install onnxruntime").exit_status
        7
    """

    exit_status = 7


class FileError(OrtBoostError):
    """A file is missing, damaged, not writable, or not one of ortboost's.

    Example:
        >>> import ortboost as ob
        >>> try:
        ...     ob.inspect("none.onnx")
        ... except ob.FileError as error:
        ...     print(error.exit_status, error.what)
        8 The model file does not exist.
    """

    exit_status = 8


class LostProcessError(OrtBoostError):
    """A process of a distributed run has died or does not respond.

    Example:
        >>> LostProcessError("Rank 1 does not respond.").exit_status
        9
    """

    exit_status = 9


def first_line(error: BaseException) -> str:
    """The first line of the message of an exception; its class if it has no message.

    Example:
        >>> first_line(OSError(28, "No space left on device")), first_line(MemoryError())
        ('[Errno 28] No space left on device', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def all_lines(error: BaseException, most: int = 200) -> str:
    r"""The message of an exception as one line, of which ``most`` characters are kept.

    Example:
        >>> all_lines(ValueError("The header is damaged:\n  it has no end"), 25)
        'The header is damaged: it'
    """
    return " ".join(str(error).split())[:most]


def nearest(name: str, choices: Iterable[str]) -> str:
    """List the valid choices for an unknown name, and suggest the nearest one.

    Example:
        >>> nearest("momentun", ["sgd", "momentum"])
        "did you mean 'momentum'? (choices: sgd, momentum)"
        >>> nearest("val", ["data", "validation"])
        "did you mean 'validation'? (choices: data, validation)"
    """
    known = list(choices)
    listed = f"choices: {', '.join(known)}"
    close = difflib.get_close_matches(name, known, n=1)
    close = close or [choice for choice in known if name and choice.startswith(name)]
    return f"did you mean '{close[0]}'? ({listed})" if close else listed


def require_known(
    name: str,
    choices: Iterable[str],
    what: str,
    where: str,
    error: type[OrtBoostError] = UsageError,
) -> None:
    """Raise an error of this class for a name that is not one of the choices; suggest the nearest.

    Example:
        >>> require_known("tset", ["train", "test"], "Unknown split 'tset'.", "split")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.UsageError: Unknown split 'tset'.
          where: split
          fix:   did you mean 'test'? (choices: train, test)
    """
    known = list(choices)
    if name not in known:
        raise error(what, where=where, fix=nearest(str(name), known))
