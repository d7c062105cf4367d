"""``ortboost compare``: the outputs of two models on the same inputs, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import Checkpoint, DataOptions, Device, InputOptions, Split, Tolerances
from ortboost.core.printable import count_of

if TYPE_CHECKING:
    from ortboost.api import Comparison

__all__ = ["compare"]


@dataclass(frozen=True)
class CompareOptions(Options):
    """Arguments of :func:`ortboost.compare`."""

    data: Path | None = option("Data to compare on; synthetic inputs if not given.")
    bisect: bool = option(
        "Find the first intermediate tensor of equal name that differs.", "--bisect", default=False
    )
    checkpoint: Checkpoint = "best"
    split: Split = "test"
    device: Device = "auto"


@verb(
    "compare",
    "Compare the outputs of two models.",
    examples="""\b
Examples:
  ortboost compare model.onnx model.opt.onnx --data val.npz
  ortboost compare run1 run2 --data val.npz
  ortboost compare run model.opt.onnx --data val.npz --rtol 1e-3 --atol logits:1e-5
  ortboost compare a.onnx b.onnx --bisect --json
\b
Exit status 5 if an output exceeds the tolerance.""",
)
def compare(
    one: Annotated[Path, typer.Argument(help="ONNX file or program folder: the reference.")],
    other: Annotated[Path, typer.Argument(help="What to compare with it.")],
    options: CompareOptions,
    tolerances: Tolerances,
    inputs: InputOptions,
    reading: DataOptions,
    printer: Output,
) -> None:
    """Compare the outputs of two models on the same inputs.

    Without --rtol and --atol, a file exported in fp16, bf16 or int8 may differ as much as its
    export allowed.
    """
    from ortboost import api

    found = api.compare(
        one,
        other,
        inputs=inputs.config(),
        **options.given(),
        **tolerances.given(),
        **reading.given(),
    )
    printer.result(found.to_dict())
    _show(printer, found)
    if not found.parity.ok:
        raise typer.Exit(5)


def _show(printer: Output, found: Comparison) -> None:
    printer.table(
        ["output", "max difference", "relative", "worst sample", "within"],
        [
            (
                d.output,
                f"{d.max_abs:.3g}",
                f"{d.max_rel:.3g}",
                d.sample,
                "yes" if d.within else "NO",
            )
            for d in found.parity.differences
        ],
    )
    where = "synthetic inputs" if found.synthetic else "data"
    samples = count_of(found.parity.samples, "sample")
    printer.line(f"\n{samples} of {where}, {found.parity.tolerance}")
    for name, (before, after) in found.metrics.items():
        printer.line(f"{name}: {before:.4f} and {after:.4f}")
    for note in found.notes:
        printer.line(f"note: {note}")
    if found.searched:
        printer.line(found.first_text())
