"""``ortboost pca``: the principal components of a run, for DimReduce."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import Run

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
    printer: Output,
) -> None:
    """Compute the principal components of the weights in a run's checkpoints."""
    from ortboost import api

    found = api.pca(run, out, components=components, checkpoints=checkpoints)
    printer.result({"path": str(out), **found})
    explained = f"{found.pop('explained'):.4%} of the variance"
    printer.pairs([*found.items(), ("explained", explained), ("file", out)])
    printer.line(
        "\nnext: ortboost convert MODEL.onnx -o reduced --boost "
        + quote(f"dim-reduce:pca-mat-path={out}")
    )
