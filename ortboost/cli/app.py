"""The commands: each parses its options, calls one function of the API and prints the result."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence
from typing import Annotated

import typer

import ortboost
from ortboost.cli import (
    bench,
    check,
    compare,
    convert,
    doctor,
    evaluate,
    export,
    inspect,
    list_boosts,
    pca,
    plot,
    runs,
    train,
    watch,
)
from ortboost.core.errors import UsageError

__all__ = ["app", "run"]

_INTERRUPTED = 128 + signal.SIGINT  # exit status

app = typer.Typer(
    name="ortboost",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn an ONNX model into a boosted training program, train it with ONNX Runtime, and "
    "export an optimized inference graph.",
    epilog="Start with: ortboost check MODEL.onnx",
)


def _show_version(requested: bool) -> None:
    if requested:
        print(f"ortboost {ortboost.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Global options."""


# In the order of the help.
for _verb in (
    check.check,
    convert.convert,
    train.train,
    pca.pca,
    watch.watch,
    runs.list_runs,
    evaluate.evaluate,
    export.export,
    compare.compare,
    bench.bench,
    inspect.inspect,
    doctor.doctor,
    plot.plot,
    list_boosts.list_boosts,
):
    app.command(_verb.name, epilog=_verb.epilog, short_help=_verb.short)(_verb.command)


def run(words: Sequence[str]) -> int:
    """Run the command with these words and return its exit status."""
    command = typer.main.get_command(app)
    if not words:
        typer.echo(command.get_help(command.make_context("ortboost", [], resilient_parsing=True)))
        return 2
    # An empty path would be the current folder.
    empty = next((word for word in words if not word or re.fullmatch("--[a-z-]+=", word)), None)
    if empty is not None:
        raise UsageError(
            f"The value of {empty.rstrip('=')} is empty." if empty else "An argument is empty.",
            where=f"ortboost {shlex.join(words)}",
            fix="Give a value; perhaps a shell variable is not set.",
        )
    try:
        status = command.main(args=list(words), prog_name="ortboost", standalone_mode=False)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # the parser turns it into exit status 1
            raise left.__context__ from None
        raise
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C in older versions of the parser
            raise KeyboardInterrupt from None
        raise
    if status == _INTERRUPTED:  # Ctrl-C in newer versions, which print nothing
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0
