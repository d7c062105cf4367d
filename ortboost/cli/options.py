"""Option groups shared by several commands; see :mod:`ortboost.cli.command`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortboost.cli.command import Options, Read, option
from ortboost.core.errors import UsageError

if TYPE_CHECKING:
    from ortboost.graph.shapes.input_config import InputConfig

__all__ = [
    "BatchAxis",
    "Checkpoint",
    "DataFile",
    "DataOptions",
    "Device",
    "Dim",
    "Input",
    "InputOptions",
    "Map",
    "Metric",
    "Run",
    "Shape",
    "Split",
    "Threads",
    "Tolerances",
    "UpdateBn",
    "given",
    "refuse",
]

_DATA = (
    "Data: .npz, .csv, .parquet, a folder of images (DIR/CLASS/*.png) or .npy files, IDX, "
    "CIFAR-10; see docs/data.md."
)
Run = Annotated[Path, typer.Argument(help="Program folder made by 'ortboost convert'.")]
DataFile = Annotated[Path, typer.Option("--data", help=_DATA)]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        "--provider",
        help="auto, cpu or cuda; for inference also tensorrt. An unavailable device is an error.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Intra-op threads.")]
Split = Annotated[str, typer.Option(help="Split of a data file that has several: train or test.")]
UpdateBn = Annotated[
    Path | None,
    typer.Option(
        "--update-bn",
        help="For a program: training data from which to re-estimate the running statistics of "
        "BatchNormalization.",
    ),
]
Metric = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="accuracy, top5, f1, precision, recall, iou, auc, perplexity, binary-accuracy, mae, "
        "mse (repeatable).",
    ),
]
Checkpoint = Annotated[str, typer.Option(help="best, last, initial, a step, or a checkpoint file.")]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map", metavar="INPUT=KEY", help="Array of the data that feeds an input (repeatable)."
    ),
    Read("cli.parse.parse_mapping"),
]


@dataclass(frozen=True)
class DataOptions(Options):
    """How to read data."""

    batch_size: int = option("Samples in a batch.", default=64, min=1)
    mapping: Map = None
    images: str | None = option(
        "Image preprocessing: resize=256,crop=224,normalize=imagenet; saved with the run.",
        metavar="SETTINGS",
    )


Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=LENGTH",
        help="Fix a dynamic dimension: height=640, or x:2=640 by input and axis (repeatable).",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT:Nx3x32x32", help="As --dim.", hidden=True),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="INPUT=VALUE",
        help="Fix an input to a number, a list or the array of a .npy file (repeatable).",
    ),
]
BatchAxis = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-axis",
        metavar="INPUT=AXIS",
        help="Batch axis of an input; none if all samples share the input (repeatable).",
    ),
    Read("cli.parse.parse_axes"),
]


@dataclass(frozen=True)
class InputOptions(Options):
    """Settings of a model's inputs."""

    dim: Dim = None
    fixed: Input = None
    batch_axis: BatchAxis = None

    def config(self) -> InputConfig:
        """The configuration."""
        from ortboost.cli.parse import parse_inputs

        return parse_inputs(self.dim, self.fixed, self.batch_axis)


@dataclass(frozen=True)
class Tolerances(Options):
    """How much outputs may differ."""

    rtol: list[str] | None = option(
        "Relative tolerance, for all outputs or for one, OUTPUT:1e-4 (repeatable).", metavar="TOL"
    )
    atol: list[str] | None = option("Absolute tolerance, in the same form.", metavar="TOL")

    def given(self) -> dict[str, Any]:
        """The arguments: the general tolerances, and those of single outputs."""
        from ortboost.cli.parse import parse_tolerances

        relative, relatives = parse_tolerances(self.rtol or [], "--rtol")
        absolute, absolutes = parse_tolerances(self.atol or [], "--atol")
        return {"rtol": relative, "atol": absolute, "rtols": relatives, "atols": absolutes}


def refuse(options: Mapping[str, Any], what: str, where: str, fix: str = "") -> None:
    """Raise a ``UsageError`` if an option was given: its value is true.

    ``what`` says what the options apply to, with a preposition; by default the fix is to leave the
    option out.
    """
    for name in (name for name, value in options.items() if value):
        raise UsageError(
            f"{name} applies only {what}.", where=where, fix=fix or f"Leave {name} out."
        )


def given(options: Mapping[str, Any]) -> str:
    """Format options for a command line; options that were not given are left out.

    Example:
        >>> given({"--loss": "mse", "--freeze": ["a*"], "--opset": None, "--shift-labels": True})
        " --loss mse --freeze 'a*' --shift-labels"
    """
    words = ""
    for name, value in options.items():
        if value is True:
            words += f" {name}"
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            words += "".join(f" {name} {quote(str(one))}" for one in values)
    return words
