"""``ortboost train``: train a program, in one process or several; the summary."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output, number_text
from ortboost.cli.options import (
    BatchAxis,
    DataFile,
    DataOptions,
    Device,
    Metric,
    Run,
    Threads,
    given,
    refuse,
)

if TYPE_CHECKING:
    from ortboost.training import TrainSummary

__all__ = ["train"]

_DIAGNOSES = 8  # the last diagnosed skipped step is the 128th


@dataclass(frozen=True)
class TrainOptions(Options):
    """Arguments of :func:`ortboost.train`."""

    validation: Path | None = option("Validation data.", "--val")
    val_split: float | None = option(
        "Instead of --val: fraction of the training data to hold out, drawn with the seed.",
        metavar="FRACTION",
    )
    augment: str | None = option(
        "Augmentation of training images: flip,crop=4 or resized-crop,flip,brightness=0.4.",
        metavar="SETTINGS",
    )
    learning_rate: str | None = option("Schedule: 0.05, cosine:0.1,warmup=50, ...", "--lr")
    resume: bool = option("Continue from the newest checkpoint.", "--resume", default=False)
    keep: int = option("Checkpoints to keep.", default=3, min=1)
    early_stop: int | None = option(
        "Stop after N validations without improvement.", min=1, metavar="N"
    )
    tensorboard: Path | None = option(
        "Write TensorBoard event files to a subfolder named after the run.", metavar="FOLDER"
    )
    batch_axes: BatchAxis = None
    device: Device = "auto"
    threads: Threads = None
    cuda_graph: bool = option(
        "On CUDA, do not capture steps as CUDA graphs: slower, but less memory.",
        "--no-cuda-graph",
        default=False,
        read=operator.not_,
    )


@dataclass(frozen=True)
class RunOptions(Options):
    """Fields of a :class:`~ortboost.training.TrainConfig`."""

    epochs: int = option("Passes over the data.", default=10, min=1)
    max_steps: int | None = option(
        "Stop after N steps; a cosine or linear schedule still spans all epochs.", min=1
    )
    validate_every: int = option("Also validate every N steps.", default=0, min=0)
    checkpoint_every: int = option("Also save a checkpoint every N steps.", default=0, min=0)
    metrics: Metric = None
    seed: int = option("Seed of shuffling and dropout.", default=0, min=0)
    prefetch: int = option("Batches to prefetch.", default=2, min=0)
    workers: int | None = option(
        "Threads that read data; default one, for images one per core. The batches do not "
        "depend on it.",
        min=1,
        metavar="N",
    )
    debug_overflow: bool = option(
        "Locate the overflow of skipped steps: the 1st, 2nd, 4th, 8th ... of the run.",
        "--debug-overflow",
        default=False,
        read=lambda wanted: _DIAGNOSES if wanted else 0,
    )
    overwrite: bool = option(
        "Start over and remove the existing checkpoints.", "--overwrite", default=False
    )


@dataclass(frozen=True)
class SharedOptions(Options):
    """Arguments of :func:`ortboost.train` for several processes; see docs/scale.md."""

    exchange_dtype: str = option(
        "Type in which gradients are exchanged: float32, float16 or bfloat16.", default="float32"
    )
    check_sync: int = option(
        "Compare the parameters of all processes every N steps.", default=0, min=0
    )
    segments: int | None = option(
        "Split the backward pass into N segments to overlap it with the gradient exchange.", min=1
    )
    timeout: float = option("Seconds that a process waits for the others.", default=600.0, min=1)


@verb(
    "train",
    examples="""\b
Examples:
  ortboost train run --data train.npz --val val.npz --epochs 20 --batch-size 64
  ortboost train run --data train.npz --val-split 0.1
  ortboost train run --data mnist/ --val mnist/ --lr cosine:0.05,warmup=100
  ortboost train run --data photos/ --images resize=256,normalize=imagenet --augment flip
  ortboost train run --data train.npz --map x=images --resume
  ortboost train run --data train.npz --debug-overflow
  ortboost train run --data train.npz --tensorboard boards
  ortboost train run --data train.npz --processes 2
\b
Ctrl-C saves and exits with status 130; --resume continues, bit-identically on a CPU.
Exit status 6 if training diverged.""",
)
def train(
    run: Run,
    data: DataFile,
    options: TrainOptions,
    progress: str = option("auto, bar, plain or off.", default="auto"),
    *,
    reading: DataOptions,
    settings: RunOptions,
    processes: int | None = option(
        "Split each batch among N processes on this machine (torchrun).", min=1
    ),
    max_restarts: int = option(
        "Restart the processes after a failure up to N times.", default=0, min=0
    ),
    sharing: SharedOptions,
    printer: Output,
) -> None:
    """Train a program."""
    from ortboost import api
    from ortboost.api.processes import in_torchrun, torchrun
    from ortboost.training import make_progress

    if processes is not None and not in_torchrun():
        command = torchrun(processes, sys.argv[1:], restarts=max_restarts)
        os.execv(command[0], command)  # does not return: torchrun starts this command again
    alone = processes is None and not in_torchrun()
    refuse({"--max-restarts": alone and max_restarts}, "with --processes", "train")
    summary = api.train(
        run,
        data,
        progress=make_progress(progress, quiet=printer.quiet),
        **options.given(),
        **reading.given(),
        **settings.given(),
        **sharing.given(),
    )
    if int(os.environ.get("RANK", 0)):  # only the first process prints
        return
    printer.result(summary.to_dict())
    printer.pairs(_rows(summary))
    verify = given({"--verify": options.validation or data, "--map": reading.mapping})
    printer.line(f"\nnext: ortboost export {quote(str(run))} -o model.opt.onnx{verify}")


def _balance(counts: Sequence[int]) -> str:
    """The numbers of labels of the rarest and the most frequent class."""
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    text = f"{least:,} (class {counts.index(least)}) to {most:,} (class {counts.index(most)})"
    return f"{len(counts)}, {text if least < most else most:} labels each"


def _pace(rate: float) -> str:
    """Steps per second in parentheses: none for a resumed run without steps, decimals below 10."""
    return f" ({rate:.{0 if rate >= 10 else 2}f} a second)" if rate else ""


def _rows(summary: TrainSummary) -> list[tuple[str, Any]]:
    best = {name: entry["value"] for name, entry in summary.best.items()}
    return [
        ("ended", summary.reason),
        *((name, number_text(value)) for name, value in summary.metrics.items()),
        *((f"best {name}", number_text(value)) for name, value in best.items()),
        ("steps", f"{summary.steps}{_pace(summary.steps_per_second)}"),
        ("seconds", f"{summary.seconds:.3g}"),
        ("waited for data", f"{summary.data_wait:.1%} of the time of steps"),
        ("classes", _balance(summary.class_counts)),
        ("loss scale", summary.health),
        (
            "best checkpoint" if summary.best_checkpoint else "checkpoint",
            summary.best_checkpoint or summary.checkpoint,
        ),
        *(("note", note) for note in summary.notes),
        ("log", summary.log),
        ("curves", summary.plot),
    ]
