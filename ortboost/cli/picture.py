"""``ortboost plot``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output
from ortboost.cli.options import Console
from ortboost.core.errors import FileError, UsageError

__all__ = ["plot"]


@verb(
    "plot",
    "Draw a graph, or the curves of a training run.",
    examples="""\b
Examples:
  ortboost plot model.onnx -o graph.svg
  ortboost plot model.opt.onnx -o graph.svg --before model.onnx
  ortboost plot run -o graph.svg
  ortboost plot run -o step.svg --graph step --around conv1 --hops 2
  ortboost plot run -o curves.png
\b
.svg for a browser, .dot for Graphviz. Of a program, what the rewrites changed is marked.""",
)
def plot(
    source: Annotated[Path, typer.Argument(help="ONNX file or program folder.")],
    out: Path | None = option(
        "graph.svg or graph.dot; of a trained program curves.png.", "--out", "-o"
    ),
    before: Path | None = option("Mark what differs from this model or program."),
    graph: str = option("Graph of a program folder: eval, step, ...", default="eval"),
    around: str | None = option("Draw only what is near this node.", metavar="NODE"),
    hops: int = option("How near, in arrows.", default=3, min=0),
    max_nodes: int = option("Refuse to draw more nodes.", default=300, min=1),
    *,
    console: Console,
) -> None:
    """Draw a graph with the rewritten nodes marked, or the curves of a training run."""
    printer = console.printer()
    if source.is_dir() and (out is None or out.suffix.lower() == ".png"):
        _curves(printer, source, out)
        return
    from ortboost.drawing import draw, write

    if out is None:
        raise UsageError(
            "There is no name for the picture.",
            where="--out",
            fix=f"ortboost plot {quote(str(source))} -o graph.svg",
        )
    picture = draw(source, before=before, graph=graph, focus=around, hops=hops, max_nodes=max_nodes)
    write(picture, out)
    marked = {box.key: box.mark for box in picture.boxes if box.mark}
    nodes = sum(box.kind == "node" for box in picture.boxes)
    printer.result(
        {"path": str(out), "nodes": nodes, "marked": marked, "notes": list(picture.notes)}
    )
    printer.pairs([("picture", out), ("nodes", nodes), ("marked", len(marked))])
    for note in picture.notes:
        printer.line(f"note: {note}")


def _curves(printer: Output, run: Path, out: Path | None) -> None:
    from ortboost.api.run_folder import LOG, PLOT
    from ortboost.training.plot import plot_log

    if not (run / LOG).is_file():
        raise FileError(
            "The program has not been trained yet: there are no curves.",
            where=str(run / LOG),
            fix=f"Train it, or draw its graph: ortboost plot {quote(str(run))} -o graph.svg",
        )
    path = plot_log(run / LOG, out or run / PLOT)
    printer.result({"path": str(path)})
    printer.pairs([("curves", path)])
