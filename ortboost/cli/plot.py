"""``ortboost plot``: draw a graph, or the curves of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.command import Options, option, verb
from ortboost.cli.console import Output
from ortboost.core.errors import UsageError

__all__ = ["plot"]


@dataclass(frozen=True)
class PlotOptions(Options):
    """Arguments of :func:`ortboost.plot`."""

    before: Path | None = option("Mark the differences from this model or program.")
    graph: str = option("Graph of the program: eval, step, ...", default="eval")
    around: str | None = option("Draw only the neighborhood of this node.", metavar="NODE")
    hops: int = option("Radius of the neighborhood, in edges.", default=3, min=0)
    max_nodes: int = option("Refuse to draw more nodes than this.", default=300, min=1)
    whole: bool = option("Draw all nodes, not layers.", "--whole", default=False)


@verb(
    "plot",
    "Draw a graph, or plot the curves of a training run.",
    examples="""\b
Examples:
  ortboost plot model.onnx -o graph.svg
  ortboost plot model.opt.onnx -o graph.svg --before model.onnx
  ortboost plot run -o graph.svg
  ortboost plot run -o step.html --graph step
  ortboost plot run -o near.svg --graph step --around conv1 --hops 2
  ortboost plot run -o curves.png
\b
.html is a page of layers that open on a click; .svg is for browsers, .dot for Graphviz.
For a program, the nodes that the rewrites changed are marked. Training graphs are drawn as layers.
""",
)
def plot(
    source: Annotated[Path, typer.Argument(help="ONNX file or program folder.")],
    out: Path | None = option(
        "graph.html, .svg or .dot; for a trained program curves.png.", "--out", "-o"
    ),
    *,
    options: PlotOptions,
    printer: Output,
) -> None:
    """Draw a graph with the rewritten nodes marked, or plot the curves of a training run."""
    from ortboost.api import plot as draw

    if out is None and not source.is_dir():
        raise UsageError(
            "--out is required for an ONNX file.",
            where="--out",
            fix=f"ortboost plot {quote(str(source))} -o graph.svg",
        )
    drawing = draw(source, out, **options.given())
    if drawing.picture is None:
        printer.result({"path": str(drawing.path)})
        printer.pairs([("curves", drawing.path)])
        return
    printer.result(
        {
            "path": str(drawing.path),
            "nodes": drawing.nodes,
            "marked": drawing.marked,
            "notes": list(drawing.notes),
        }
    )
    printer.pairs(
        [("picture", drawing.path), ("boxes", drawing.nodes), ("marked", len(drawing.marked))]
    )
    for note in drawing.notes:
        printer.line(f"note: {note}")
