"""The command line: verbs that call :mod:`ortboost.api`, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Final, NoReturn

__all__ = ["interrupt_once", "leave_if_interrupted", "main", "print_error"]

_INTERRUPTED = 130
_MISSING, _FILE = 7, 8
_interrupts: list[int] = []


def interrupt_once(number: int, frame: object) -> NoReturn:
    """Raise ``KeyboardInterrupt`` once; a second Ctrl-C must not interrupt the shutdown."""
    _interrupts.append(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # an ignored handler is reset when Python shuts down
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt


def leave_if_interrupted(unraisable: sys.UnraisableHookArgs) -> None:
    """End the process if Ctrl-C was raised in a destructor, which cannot propagate it."""
    if unraisable.exc_type is KeyboardInterrupt and _interrupts:
        os._exit(_interrupted(sys.argv[1:]))
    sys.__unraisablehook__(unraisable)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The command-line arguments; default ``sys.argv[1:]``.

    Returns:
        The exit status; see the README.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    verbose = sum(word.count("v") for word in words if word in ("-v", "-vv", "-vvv"))
    verbose += words.count("--verbose")
    try:
        from ortboost.cli.app import run
        from ortboost.cli.plugins import import_plugins

        import_plugins()
        return run(words)
    except KeyboardInterrupt:
        return _interrupted(words)
    except BrokenPipeError:  # the reader (head, less) closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if _interrupts:  # some libraries turn Ctrl-C into another error during import
            return _interrupted(words)
        from ortboost.core.errors import OrtBoostError

        if verbose >= 2:
            traceback.print_exc()
        if isinstance(error, OrtBoostError):
            _to_stderr(f"error: {error.in_options()}")
            return error.exit_status
        if isinstance(error, OSError) and error.errno is not None:  # permissions, a full disk
            what = f"File system error: {error.strerror}."
            fix = "Check the permissions of the folder and the free disk space."
            file = None if error.filename is None else str(error.filename)
            return print_error(what, words, fix, _FILE, file)
        if isinstance(error, MemoryError):
            fix = "Use a smaller batch, or data that are read on demand (.npy, Parquet, images)."
            what = "There is not enough memory."
            return print_error(what, words, fix, _MISSING, str(error) or None)
        package = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if package and package.partition(".")[0] != "ortboost":
            fix = "Install ortboost again, with the packages that it needs: pip install ortboost."
            return print_error(f"The package '{package}' is missing.", words, fix, _MISSING)
        if hasattr(error, "format_message"):  # raised by the argument parser
            return print_error(error.format_message(), words, _usage(error, words), 2)
        what = f"Unexpected {type(error).__name__}: {error}"
        fix = "This is a bug in ortboost; please report it with the output of -vv."
        return print_error(what, words, fix, 1)


_MEANT: Final = {
    "learning-rate": "--lr",
    "validation": "--val",
    "mapping": "--map",
    "dims": "--dim",
    "shapes": "--dim",
    **{device: f"--device {device}" for device in ("cpu", "cuda")},
    "gpu": "--device cuda",
    **{precision: f"--precision {precision}" for precision in ("fp16", "bf16", "int8")},
    "amp": "--precision fp16",
    "half": "--precision fp16",
    "quantize": "--precision int8",
}
"""Options of other tools, and arguments in Python, to those of this command line."""


def _usage(error: Exception, words: Sequence[str]) -> str:
    """How to fix a command that the argument parser rejected."""
    from ortboost.boosts import registered

    option = str(getattr(error, "option_name", "")).removeprefix("--")
    unknown = hasattr(error, "possibilities")  # otherwise a known option lacks its value
    if unknown and option in {boost.name for boost in registered()}:
        return f"It is a boost: ortboost convert MODEL -o RUN --boost {option}"
    context = getattr(error, "ctx", None)
    if context is not None:
        meant = _MEANT.get(option, "")
        known = [name for parameter in context.command.params for name in parameter.opts]
        if unknown and meant.partition(" ")[0] in known:
            return f"Write {meant}; see '{context.command_path} --help'."
        return f"See '{context.command_path} --help'."
    verb = words[0] if words and not words[0].startswith("-") else ""
    return f"See '{f'ortboost {verb}'.strip()} --help'."


def _interrupted(words: Sequence[str]) -> int:
    if words[:1] == ["watch"]:  # its usual end, also while it starts
        return _INTERRUPTED
    fix = "Run it again; files are written whole or not at all."
    return print_error("Interrupted.", words, fix, _INTERRUPTED)


def print_error(
    what: str, words: Sequence[str], fix: str, status: int, where: str | None = None
) -> int:
    """Print an error in three lines, by default of the command, and return its exit status."""
    from ortboost.core.printable import one_line

    _to_stderr(
        f"error: {one_line(what)}",
        f"  where: {one_line(where or ' '.join(['ortboost', *words]))}",
        f"  fix:   {fix}",
    )
    return status


def _to_stderr(*lines: str) -> None:
    """Print lines; if that is impossible (a full disk), the exit status still tells the error."""
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", file=sys.stderr, flush=True)
