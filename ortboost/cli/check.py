"""``ortboost check``: what prevents training a model, or running it on a target, as a table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.check_target import TargetOptions, run_check
from ortboost.cli.command import verb
from ortboost.cli.console import Output
from ortboost.cli.options import InputOptions, given, refuse
from ortboost.cli.program_options import Engine, LossOptions, TrainedOptions, merge_config
from ortboost.core.errors import ModelError, OrtBoostError
from ortboost.core.printable import count_of

__all__ = ["check"]


@verb(
    "check",
    "Check whether a model can be trained, or run on a target.",
    examples="""\b
Examples:
  ortboost check model.onnx
  ortboost check model.onnx --freeze 'backbone.*' --json
  ortboost check model.onnx --for tensorrt=11 --shape x:1,8,32x3x224x224
  ortboost check model.onnx --for tensorrt=10 --fix -o fixed.onnx
  ortboost check run --for cuda
\b
Exit status 4 if the model cannot be trained, or cannot run on the target, as is.""",
)
def check(
    model: Annotated[
        Path, typer.Argument(help="ONNX file, or program folder (for training and --for cuda).")
    ],
    loss: LossOptions,
    inputs: InputOptions,
    trained: TrainedOptions,
    target: TargetOptions,
    engine: Engine = None,
    *,
    printer: Output,
) -> None:
    """List everything that prevents training a model, or running it on a target."""
    from ortboost import api

    options = given({**loss.named(), **trained.named(), **inputs.named()})
    if target.target != "train":
        # The first option of training that was given, if any.
        refuse(dict.fromkeys(options.split()[:1], True), "to training", f"--for {target.target}")
        raise typer.Exit(run_check(model, target, printer))
    target.refuse_without_target()
    chosen = {} if engine is None else {"engine": engine}
    settled = merge_config(None, inputs, loss.given(), {}, {**trained.given(), **chosen})
    try:
        report = api.check(model, settled)
    except ModelError as error:
        if loss.name is not None:
            raise
        # Whether the default loss is all that does not fit.
        try:
            other = dataclasses.replace(settled.loss, name="mse")
            settled = dataclasses.replace(settled, loss=other)
            report = api.check(model, settled)
        except OrtBoostError:
            raise error from None
        note = f"the default loss does not fit: {error.what} Choose another with --loss: mse for "
        note += "numbers, bce-with-logits for two classes."
        report = dataclasses.replace(report, notes=(note, *report.notes))
    printer.result(report.to_dict())
    if report.blockers:
        rows = [(b.node, b.op, b.reason, b.fix) for b in report.blockers]
        printer.table(["blocker", "op", "reason", "fix"], rows)
    if report.rewrites:
        rewritten = [(node, what) for r in report.rewrites for node, what in r.changed.items()]
        printer.table(
            ["will be rewritten", "how"], rewritten if printer.verbose else _folded(rewritten)
        )
    for note in report.notes:
        printer.line(f"note: {note}")
    if report.blockers or report.rewrites or report.notes:
        printer.line()
    if report.blockers:
        printer.line(f"{count_of(len(report.blockers), 'problem')} found for training.")
        raise typer.Exit(4)
    # The next command names the loss once, also if it was left to the default.
    options = options.replace(given({"--loss": loss.name}), "", 1)
    options = given({"--loss": settled.loss.name}) + options + given({"--engine": engine})
    printer.line(
        "This model can be trained."
        f"\nnext: ortboost convert {quote(str(model))} -o {'tuned' if model.is_dir() else 'run'}"
        f"{options}"
    )


def _folded(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Fold nodes that are rewritten in the same way into one row; ``-v`` lists each."""
    nodes: dict[str, list[str]] = {}
    for node, what in rows:
        nodes.setdefault(what, []).append(node)
    return [
        (found[0] if len(found) == 1 else f"{found[0]} and {len(found) - 1} more", what)
        for what, found in nodes.items()
    ]
