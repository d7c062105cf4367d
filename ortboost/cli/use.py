"""``ortboost train`` and ``eval``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortboost.cli.command import verb
from ortboost.cli.options import (
    BatchAxis,
    Checkpoint,
    Console,
    DataFile,
    DataOptions,
    Device,
    Input,
    Run,
    Split,
    Threads,
    given,
)

if TYPE_CHECKING:
    from ortboost.training import TrainSummary

__all__ = ["VERBS", "evaluate", "train"]

_DIAGNOSES = 8  # the 128th skipped step is the last that is diagnosed
_Metric = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="accuracy, top5, ... (repeatable).")
]


@dataclass(frozen=True)
class RunOptions:
    """How long, how often, from where."""

    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 10
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None
    validate_every: Annotated[int, typer.Option(min=0, help="Validate every N steps too.")] = 0
    checkpoint_every: Annotated[int, typer.Option(min=0, help="Save every N steps too.")] = 0
    metric: _Metric = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of shuffling and dropout.")] = 0
    prefetch: Annotated[int, typer.Option(min=0, help="Batches to read ahead.")] = 2
    debug_overflow: Annotated[
        bool,
        typer.Option(
            "--debug-overflow",
            help="Say where skipped steps overflowed: the 1st, 2nd, 4th, 8th ... of the run.",
        ),
    ] = False
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start anew and remove the checkpoints that are there."),
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Fields of a :class:`~ortboost.training.TrainConfig`."""
        found = {**vars(self), "debug_overflow": _DIAGNOSES if self.debug_overflow else 0}
        metrics = found.pop("metric")
        return {**found, **({"metrics": tuple(metrics)} if metrics else {})}


@dataclass(frozen=True)
class ProcessOptions:
    """Several processes, see docs/scale.md."""

    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Share each batch among N processes of this machine (torchrun)."),
    ] = None
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Start processes again after a fault, so many times.")
    ] = 0
    exchange_dtype: Annotated[
        str, typer.Option(help="In what gradients travel: float32, float16 or bfloat16.")
    ] = "float32"
    check_sync: Annotated[
        int, typer.Option(min=0, help="Compare the parameters of all processes every N steps.")
    ] = 0
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a process waits for the others.")
    ] = 600.0

    def arguments(self) -> dict[str, Any]:
        """Arguments of ``train``."""
        found = dict(vars(self))
        del found["processes"], found["max_restarts"]
        return found


@verb
def train(
    run: Run,
    data: DataFile,
    val: Annotated[Path | None, typer.Option(help="Validation data.")] = None,
    lr: Annotated[
        str | None, typer.Option("--lr", help="Schedule: 0.05, cosine:0.1,warmup=50, ...")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint.")
    ] = False,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep.")] = 3,
    early_stop: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Stop after N validations without a gain."),
    ] = None,
    progress: Annotated[str, typer.Option(help="auto, bar, plain or off.")] = "auto",
    batch_axis: BatchAxis = None,
    device: Device = "auto",
    threads: Threads = None,
    *,
    reading: DataOptions,
    settings: RunOptions,
    sharing: ProcessOptions,
    console: Console,
) -> None:
    """Train a program."""
    from ortboost import api
    from ortboost.api.processes import in_torchrun, torchrun
    from ortboost.cli.parse import parse_inputs
    from ortboost.training import make_progress

    if sharing.processes is not None and not in_torchrun():
        command = torchrun(sharing.processes, sys.argv[1:], restarts=sharing.max_restarts)
        os.execv(command[0], command)
    summary = api.train(
        run,
        data,
        val,
        learning_rate=lr,
        resume=resume,
        keep=keep,
        early_stop=early_stop,
        progress=make_progress(progress, quiet=console.quiet),
        batch_axes=parse_inputs(None, None, batch_axis).batch_axes,
        device=device,
        threads=threads,
        **reading.arguments(),
        **settings.arguments(),
        **sharing.arguments(),
    )
    if int(os.environ.get("RANK", 0)):
        return
    printer = console.printer()
    printer.result(summary.to_dict())
    printer.pairs(_rows(summary))
    verify = given(verify=val, map=reading.mapping) if val else ""
    printer.line(f"\nnext: ortboost export {quote(str(run))} -o model.opt.onnx{verify}")


def _rows(summary: TrainSummary) -> list[tuple[str, Any]]:
    best = {name: entry["value"] for name, entry in summary.best.items()}
    return [
        ("ended", summary.reason),
        *((name, _number(value)) for name, value in summary.metrics.items()),
        *((f"best {name}", _number(value)) for name, value in best.items()),
        ("steps", f"{summary.steps} ({summary.steps_per_second:.0f} a second)"),
        ("seconds", f"{summary.seconds:.3g}"),
        ("loss scale", summary.health),
        (
            "best checkpoint" if summary.best_checkpoint else "checkpoint",
            summary.best_checkpoint or summary.checkpoint,
        ),
        ("log", summary.log),
        ("curves", summary.plot),
    ]


@verb
def evaluate(
    target: Annotated[Path, typer.Argument(help="Program folder or ONNX file.")],
    data: DataFile,
    metric: _Metric = None,
    split: Split = "test",
    output: Annotated[str | None, typer.Option(help="Output that holds the scores.")] = None,
    class_axis: Annotated[
        int | None, typer.Option(help="Of an ONNX file: axis of the classes, -1 for the last.")
    ] = None,
    ignore_index: Annotated[
        int | None, typer.Option(help="Of an ONNX file: label that does not count.")
    ] = None,
    shift_labels: Annotated[
        bool,
        typer.Option(
            "--shift-labels", help="Of an ONNX file: compare each position with the next label."
        ),
    ] = False,
    fixed: Input = None,
    batch_axis: BatchAxis = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    *,
    reading: DataOptions,
    console: Console,
) -> None:
    """Measure a trained program or an ONNX file on data."""
    from ortboost import api
    from ortboost.cli.parse import parse_inputs

    printer = console.printer()
    found = api.evaluate(
        target,
        data,
        metrics=tuple(metric) if metric else None,
        checkpoint=checkpoint,
        output=output,
        class_axis=class_axis,
        ignore_index=ignore_index,
        shift_labels=shift_labels,
        inputs=parse_inputs(None, fixed, batch_axis) if fixed or batch_axis else None,
        split=split,
        device=device,
        threads=threads,
        **reading.arguments(),
    )
    printer.result(found)
    printer.pairs((name, _number(value)) for name, value in found.items())


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


VERBS = (
    (
        "train",
        train,
        """\b
Examples:
  ortboost train run --data train.npz --val val.npz --epochs 20 --batch-size 64
  ortboost train run --data mnist/ --val mnist/ --lr cosine:0.05,warmup=100
  ortboost train run --data train.npz --map x=images --resume
  ortboost train run --data train.npz --debug-overflow
  ortboost train run --data train.npz --processes 2
\b
Ctrl-C saves and leaves with exit status 130; --resume continues, bit-identically on a CPU.
Exit status 6 if training diverged.""",
    ),
    (
        "eval",
        evaluate,
        """\b
Examples:
  ortboost eval run --data val.npz
  ortboost eval model.onnx --data val.npz --metric accuracy --metric top5 --json""",
    ),
)
"""Verb, function, examples."""
