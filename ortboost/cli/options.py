"""Options that several verbs share, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BatchAxis",
    "BatchSize",
    "Checkpoint",
    "Device",
    "Dim",
    "Input",
    "Json",
    "Map",
    "Quiet",
    "Run",
    "Threads",
    "Verbose",
]

Run = Annotated[Path, typer.Argument(help="Program folder made by 'ortboost convert'.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Log more; twice for tracebacks.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        "--provider",
        help="auto, cpu, cuda, or tensorrt (inference). A device asked for is used or refused.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads within an operator.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples in a batch.")]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="INPUT=KEY", help="Which array of the data feeds an input."),
]
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
Checkpoint = Annotated[
    str, typer.Option(help="best, last, initial, or the path of a checkpoint file.")
]
