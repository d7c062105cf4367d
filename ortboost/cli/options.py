"""Groups of options that several verbs share, with their help texts; see :mod:`ortboost.cli.command`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortboost.cli.command import option
from ortboost.cli.console import Output
from ortboost.core.errors import UsageError

if TYPE_CHECKING:
    from ortboost.graph.input_config import InputConfig

__all__ = [
    "BatchAxis",
    "Checkpoint",
    "Console",
    "DataFile",
    "DataOptions",
    "Device",
    "Dim",
    "Input",
    "InputOptions",
    "Map",
    "Run",
    "Split",
    "Threads",
    "Tolerances",
    "UpdateBn",
    "given",
    "refuse",
]

_DATA = "Data: .npz, .csv, .parquet, a folder of images (DIR/CLASS/*.png) or .npy files, IDX, CIFAR-10; docs/data.md."
Run = Annotated[Path, typer.Argument(help="Program folder made by 'ortboost convert'.")]
DataFile = Annotated[Path, typer.Option("--data", help=_DATA)]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        "--provider",
        help="auto, cpu, cuda; for inference tensorrt, too. A device asked for is used or refused.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads within an operator.")]
Split = Annotated[str, typer.Option(help="Part of a file with several: train or test.")]
UpdateBn = Annotated[
    Path | None,
    typer.Option(
        "--update-bn",
        help="Of a program: training data to estimate the running statistics of BatchNormalization "
        "anew from.",
    ),
]
Checkpoint = Annotated[
    str, typer.Option(help="best, last, initial, or the path of a checkpoint file.")
]


@dataclass(frozen=True)
class Console:
    """How a verb prints."""

    json: bool = option("Print one JSON object on stdout.", "--json", default=False)
    quiet: bool = option("Print nothing but errors.", "--quiet", "-q", default=False)
    verbose: int = option(
        "Log more; twice for tracebacks.", "--verbose", "-v", default=0, count=True
    )

    def printer(self) -> Output:
        """What prints so."""
        return Output(self.json, self.quiet, self.verbose)


Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="INPUT=KEY", help="Which array of the data feeds an input."),
]


@dataclass(frozen=True)
class DataOptions:
    """How data are read."""

    batch_size: int = option("Samples in a batch.", default=64, min=1)
    mapping: Map = None
    images: str | None = option(
        "Settings of images: resize=256,crop=224,normalize=imagenet; kept with the run.",
        metavar="SETTINGS",
    )

    def arguments(self) -> dict[str, Any]:
        """The arguments of a verb's function."""
        from ortboost.cli.parse import parse_mapping

        return {
            "batch_size": self.batch_size,
            "mapping": parse_mapping(self.mapping or []),
            "images": self.images,
        }


Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=LENGTH",
        help="Fix an open dimension: height=640, or x:2=640 by input and axis (repeatable).",
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="INPUT=VALUE",
        help="Fix an input at a number, a list or the array of a .npy file (repeatable).",
    ),
]
BatchAxis = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-axis",
        metavar="INPUT=AXIS",
        help="Axis of an input that counts the samples, or none: the same for all (repeatable).",
    ),
]


@dataclass(frozen=True)
class InputOptions:
    """What is said of the inputs of a model."""

    dim: Dim = None
    fixed: Input = None
    batch_axis: BatchAxis = None

    def config(self) -> InputConfig:
        """The configuration."""
        from ortboost.cli.parse import parse_inputs

        return parse_inputs(self.dim, self.fixed, self.batch_axis)


@dataclass(frozen=True)
class Tolerances:
    """How far outputs may differ."""

    rtol: list[str] | None = option(
        "Relative tolerance, for all outputs or for one (OUTPUT:1e-4); repeatable.", metavar="TOL"
    )
    atol: list[str] | None = option("Absolute tolerance, in the same way.", metavar="TOL")

    def arguments(self) -> dict[str, Any]:
        """The arguments of a verb's function."""
        from ortboost.cli.parse import parse_tolerances

        relative, relatives = parse_tolerances(self.rtol or [], "--rtol")
        absolute, absolutes = parse_tolerances(self.atol or [], "--atol")
        return {"rtol": relative, "atol": absolute, "rtols": relatives, "atols": absolutes}


def refuse(options: Mapping[str, Any], what: str, where: str, fix: str = "") -> None:
    """Refuse options that say nothing here.

    Args:
        options: Option to its value; those without one were not given.
        what: What they are for.
        where: Where they were given.
        fix: How to fix it, if not by leaving them out.

    Raises:
        UsageError: One was given.
    """
    for name in (name for name, value in options.items() if value):
        raise UsageError(f"{name} is {what}.", where=where, fix=fix or f"Leave {name} out.")


def given(**options: Any) -> str:
    """Options as they are written on a command line; nothing for those that were not given.

    Example:
        >>> given(loss="mse", freeze=["a*"], class_axis=None, shift_labels=True)
        " --loss mse --freeze 'a*' --shift-labels"
    """
    words = ""
    for name, value in options.items():
        option = f" --{name.replace('_', '-')}"
        if value is True:
            words += option
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            words += "".join(f"{option} {quote(str(one))}" for one in values)
    return words
