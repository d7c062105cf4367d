"""``ortboost plot`` as a function: draw a graph, or the curves of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ortboost.api.run_folder import LOG, PLOT
from ortboost.core.arguments import checked
from ortboost.core.errors import FileError, UsageError
from ortboost.core.field_types import Range
from ortboost.drawing import EVAL_GRAPH, MAX_NODES, Part, Picture, draw, draw_parts, to_svg, write
from ortboost.training.plot import plot_log

__all__ = ["Drawing", "plot"]


@dataclass(frozen=True)
class Drawing:
    """A picture, which a notebook displays.

    Args:
        path: The file, if one was written.
        nodes: Number of graph nodes, or of layers, in it; 0 for curves.
        marked: Marked node to what was done to it.
        notes: Further remarks.
        picture: Boxes and arrows; ``None`` for curves.

    Example:
        >>> import ortboost as ob
        >>> ob.plot("models/mlp.onnx", "mlp.svg").nodes
        3
    """

    path: Path | None
    nodes: int = 0
    marked: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    picture: Picture | None = field(default=None, repr=False)

    def _repr_svg_(self) -> str | None:
        return None if self.picture is None else to_svg(self.picture)

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.picture is None and self.path else None


@checked
def plot(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    before: str | os.PathLike[str] | None = None,
    graph: str = EVAL_GRAPH,
    around: str | None = None,
    hops: Annotated[int, Range(0)] = 3,
    max_nodes: Annotated[int, Range(1)] = MAX_NODES,
    whole: bool = False,
) -> Drawing:
    """Draw a graph with the rewritten nodes marked, or the curves of a training run.

    Args:
        source: ONNX file or program folder.
        out: The file: ``.html``, ``.svg``, ``.dot`` or ``.gv`` for a graph, ``.png`` for the curves
            of a run. If not given, a model is only displayed, and the curves of a folder are drawn.
            A page shows layers, and the nodes of a layer when it is clicked.
        before: Mark differences from this model or program.
        graph: The graph of a program folder: ``eval``, ``step``, ...
        around: Draw only the neighborhood of this node.
        hops: Maximum distance from ``around``, in arrows.
        max_nodes: Refuse to draw more nodes than this.
        whole: Draw all nodes where layers would be drawn: of graphs that train, and in pages.

    Raises:
        FileError: A file cannot be read or written, or the run has no curves yet.
        UsageError: There are too many nodes, a node or graph is unknown, the file type is not
            supported, or settings of a graph are given for curves.
        DependencyError: Curves need matplotlib.

    Example:
        >>> plot("model.opt.onnx", "graph.svg", before="model.onnx").nodes  # doctest: +SKIP
        7
    """
    file = None if out is None else Path(out)
    run = Path(source)
    if run.is_dir() and (file is None or file.suffix.lower() == ".png"):
        if not (run / LOG).is_file():
            raise FileError(
                "The program has not been trained yet: there are no curves.",
                where=str(run / LOG),
                fix="Train it, or draw its graph: give a file that ends in .svg.",
            )
        if before is not None or graph != EVAL_GRAPH or around is not None or whole:
            raise UsageError(
                "Settings of a graph are given, but curves are drawn.",
                where="--before, --graph, --around or --whole",
                fix="Leave them out, or give a file that ends in .svg.",
            )
        return Drawing(plot_log(run / LOG, file or run / PLOT))
    page = file is not None and file.suffix.lower() == ".html"
    parts: list[Part] = []
    if (graph != EVAL_GRAPH or page) and around is None and not whole:
        picture, parts = draw_parts(run, before=before, graph=graph)
    else:
        picture = draw(
            run, before=before, graph=graph, focus=around, hops=hops, max_nodes=max_nodes
        )
    return Drawing(
        None if file is None else write(picture, file, parts),
        sum(box.kind == "node" for box in picture.boxes),
        {box.key: box.mark for box in picture.boxes if box.mark},
        tuple(picture.notes),
        picture,
    )
