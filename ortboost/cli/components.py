"""``ortboost pca``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.options import Console, Run

__all__ = ["pca"]


@verb(
    "pca",
    "Compute the principal components of a run's weights.",
    examples="""\b
Examples:
  ortboost train run --data train.npz --checkpoint-every 10 --keep 100
  ortboost pca run -k 32 -o p.npy""",
)
def pca(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npy file to write.")],
    components: int = option("Number of components.", "--components", "-k", default=32, min=1),
    checkpoints: Path | None = option("Folder of checkpoints; default: the run's own."),
    *,
    console: Console,
) -> None:
    """Compute the principal components of the weights in a run's checkpoints."""
    from ortboost import api

    found = api.pca(run, out, components=components, checkpoints=checkpoints)
    printer = console.printer()
    printer.result({"path": str(out), **found})
    printer.pairs([*found.items(), ("file", out)])
    printer.line(
        f"\nnext: ortboost convert MODEL.onnx -o reduced --boost dim-reduce:pca-mat-path={out}"
    )
