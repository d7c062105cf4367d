"""The verbs. Each reads its options, calls one function of :mod:`ortboost.api`, prints the result."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Annotated

import typer

import ortboost
from ortboost.cli import (
    catalogue,
    check,
    components,
    convert,
    deploy,
    examine,
    measure,
    picture,
    use,
)

__all__ = ["app", "run"]

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


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"ortboost {ortboost.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


_INTERRUPTED = 128 + signal.SIGINT

_SHORT = {
    "check": "Can a model be trained, or run by a target? All findings at once.",
    "convert": "Turn a model into a training program.",
    "train": "Train a program.",
    "pca": "Find the principal components of the weights of a run.",
    "eval": "Measure a program or an ONNX file on data.",
    "export": "Write an optimized inference graph that is checked.",
    "compare": "Compare the outputs of two models.",
    "bench": "Measure latency, memory and size of models side by side.",
    "inspect": "Show what is in a file or program, or how two differ.",
    "doctor": "Say what this machine can do, and how to mend the rest.",
    "plot": "Draw a graph, or the curves of a training run.",
    "list": "List the boosts, or show the card of one.",
}
"""A line for each in the list of verbs, where a longer one would be cut off."""

for _verb, _function, _epilog in (
    *check.VERBS,
    *convert.VERBS,
    *use.VERBS,
    *components.VERBS,
    *deploy.VERBS,
    *measure.VERBS,
    *examine.VERBS,
    *picture.VERBS,
    *catalogue.VERBS,
):
    app.command(_verb, epilog=_epilog, short_help=_SHORT[_verb])(_function)


def run(words: Sequence[str]) -> int:
    """Run the command with these words and return its exit status."""
    command = typer.main.get_command(app)
    if not words:
        typer.echo(command.get_help(command.make_context("ortboost", [], resilient_parsing=True)))
        return 2
    try:
        status = command.main(args=list(words), prog_name="ortboost", standalone_mode=False)
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # the parser hides it behind a status 1
            raise left.__context__ from None
        raise
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # what older parsers make of Ctrl-C
            raise KeyboardInterrupt from None
        raise
    if status == _INTERRUPTED:  # what newer ones make of it: no word is said
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0
