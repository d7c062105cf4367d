"""``ortboost train`` and ``eval``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ortboost.cli.console import Output
from ortboost.cli.options import (
    BatchAxis,
    BatchSize,
    Checkpoint,
    Device,
    Input,
    Json,
    Map,
    Quiet,
    Run,
    Threads,
    Verbose,
)

__all__ = ["VERBS", "evaluate", "train"]

_DIAGNOSES = 8  # the 128th skipped step is the last that is diagnosed
_DATA = "Data: .npz, a folder or file of IDX (MNIST) or CIFAR-10 binaries."


def train(
    run: Run,
    data: Annotated[Path, typer.Option(help=_DATA)],
    val: Annotated[Path | None, typer.Option(help="Validation data.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 10,
    batch_size: BatchSize = 64,
    lr: Annotated[
        str | None, typer.Option("--lr", help="Schedule: 0.05, cosine:0.1,warmup=50, ...")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start anew and remove the checkpoints that are there."),
    ] = False,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps.")] = None,
    validate_every: Annotated[int, typer.Option(min=0, help="Validate every N steps too.")] = 0,
    checkpoint_every: Annotated[int, typer.Option(min=0, help="Save every N steps too.")] = 0,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints to keep.")] = 3,
    early_stop: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Stop after N validations without a gain."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="accuracy or topK (repeatable).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of shuffling and dropout.")] = 0,
    prefetch: Annotated[int, typer.Option(min=0, help="Batches to read ahead.")] = 2,
    debug_overflow: Annotated[
        bool,
        typer.Option(
            "--debug-overflow",
            help="Say where skipped steps overflowed: the 1st, 2nd, 4th, 8th ... of the run.",
        ),
    ] = False,
    progress: Annotated[str, typer.Option(help="auto, bar, plain or off.")] = "auto",
    mapping: Map = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Train a program."""
    from ortboost import api
    from ortboost.cli.parse import parse_mapping
    from ortboost.training import make_progress

    printer = Output(json, quiet, verbose)
    asked: dict[str, Any] = {"metrics": tuple(metric)} if metric else {}
    summary = api.train(
        run,
        data,
        val,
        batch_size=batch_size,
        learning_rate=lr,
        resume=resume,
        mapping=parse_mapping(mapping or []),
        device=device,
        threads=threads,
        keep=keep,
        early_stop=early_stop,
        progress=make_progress(progress, quiet=quiet),
        epochs=epochs,
        max_steps=max_steps,
        validate_every=validate_every,
        checkpoint_every=checkpoint_every,
        seed=seed,
        prefetch=prefetch,
        debug_overflow=_DIAGNOSES if debug_overflow else 0,
        overwrite=overwrite,
        **asked,
    )
    printer.result(summary.to_dict())
    best = {name: entry["value"] for name, entry in summary.best.items()}
    printer.pairs(
        [
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
    )
    verify = f" --verify {quote(str(val))}" if val else ""
    verify += "".join(f" --map {quote(text)}" for text in (mapping or ()) if val)
    printer.line(f"\nnext: ortboost export {quote(str(run))} -o model.opt.onnx{verify}")


def evaluate(
    target: Annotated[Path, typer.Argument(help="Program folder or ONNX file.")],
    data: Annotated[Path, typer.Option(help=_DATA)],
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="accuracy or topK (repeatable).")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Part of a file with several: train or test.")
    ] = "test",
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
    batch_size: BatchSize = 64,
    mapping: Map = None,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Measure a trained program or an ONNX file on data."""
    from ortboost import api
    from ortboost.cli.parse import parse_inputs, parse_mapping

    printer = Output(json, quiet, verbose)
    found = api.evaluate(
        target,
        data,
        batch_size=batch_size,
        metrics=tuple(metric) if metric else None,
        checkpoint=checkpoint,
        mapping=parse_mapping(mapping or []),
        output=output,
        class_axis=class_axis,
        ignore_index=ignore_index,
        shift_labels=shift_labels,
        inputs=parse_inputs(None, fixed, batch_axis) if fixed or batch_axis else None,
        split=split,
        device=device,
        threads=threads,
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
\b
Ctrl-C saves and leaves with exit status 130; --resume goes on to the same bits.
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
