"""``ortboost eval``: the loss and the metrics of a program or an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output, number_text
from ortboost.cli.options import (
    BatchAxis,
    Checkpoint,
    DataFile,
    DataOptions,
    Device,
    Input,
    Metric,
    Split,
    Threads,
    UpdateBn,
)

__all__ = ["evaluate"]


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Arguments of :func:`ortboost.evaluate`."""

    metrics: Metric = None
    split: Split = "test"
    update_bn: UpdateBn = None
    output: str | None = option("Output with the scores, or the loss.")
    class_axis: int | None = option("For an ONNX file: class axis, -1 for the last.")
    ignore_index: int | None = option("For an ONNX file: label to ignore.")
    shift_labels: bool = option(
        "For an ONNX file: compare each position with the next label.",
        "--shift-labels",
        default=False,
    )
    checkpoint: Checkpoint = "best"
    device: Device = "auto"
    threads: Threads = None


@verb(
    "eval",
    "Evaluate a program or an ONNX file on data.",
    examples="""\b
Examples:
  ortboost eval run --data val.npz
  ortboost eval model.onnx --data val.npz --metric accuracy --metric top5 --json""",
)
def evaluate(
    target: Annotated[Path, typer.Argument(help="Program folder or ONNX file.")],
    data: DataFile,
    options: EvaluateOptions,
    fixed: Input = None,
    batch_axis: BatchAxis = None,
    *,
    reading: DataOptions,
    printer: Output,
) -> None:
    """Evaluate a trained program or an ONNX file on data."""
    from ortboost import api
    from ortboost.cli.parse import parse_inputs

    found = api.evaluate(
        target,
        data,
        inputs=parse_inputs(None, fixed, batch_axis) if fixed or batch_axis else None,
        **options.given(),
        **reading.given(),
    )
    printer.result(found)
    printer.pairs((name, number_text(value)) for name, value in found.items())
