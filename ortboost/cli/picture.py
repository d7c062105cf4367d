"""``ortboost plot``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.options import Console
from ortboost.core.errors import UsageError

__all__ = ["plot"]


@verb(
    "plot",
    "Draw a graph, or the curves of a training run.",
    examples="""\b
Examples:
  ortboost plot model.onnx -o graph.svg
  ortboost plot model.opt.onnx -o graph.svg --before model.onnx
  ortboost plot run -o graph.svg
  ortboost plot run -o step.html --graph step
  ortboost plot run -o near.svg --graph step --around conv1 --hops 2
  ortboost plot run -o curves.png
\b
.html for a page that shows layers, and the nodes of the one that is clicked; .svg for a browser, .dot for
Graphviz. Of a program, what the rewrites changed is marked. Graphs that train are drawn as layers.""",
)
def plot(
    source: Annotated[Path, typer.Argument(help="ONNX file or program folder.")],
    out: Path | None = option(
        "graph.html, .svg or .dot; of a trained program curves.png.", "--out", "-o"
    ),
    before: Path | None = option("Mark what differs from this model or program."),
    graph: str = option("Graph of a program folder: eval, step, ...", default="eval"),
    around: str | None = option("Draw only what is near this node.", metavar="NODE"),
    hops: int = option("How near, in arrows.", default=3, min=0),
    max_nodes: int = option("Refuse to draw more nodes.", default=300, min=1),
    whole: bool = option("Draw all nodes, not layers.", "--whole", default=False),
    *,
    console: Console,
) -> None:
    """Draw a graph with the rewritten nodes marked, or the curves of a training run."""
    from ortboost.api import plot as draw

    printer = console.printer()
    if out is None and not source.is_dir():
        raise UsageError(
            "There is no name for the picture.",
            where="--out",
            fix=f"ortboost plot {quote(str(source))} -o graph.svg",
        )
    drawing = draw(
        source,
        out,
        before=before,
        graph=graph,
        around=around,
        hops=hops,
        max_nodes=max_nodes,
        whole=whole,
    )
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
