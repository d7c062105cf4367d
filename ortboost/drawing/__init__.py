"""Drawings of graphs, with the nodes that rewrites made or changed highlighted.

Example:
    >>> from ortboost.drawing import draw, write
    >>> write(draw("model.opt.onnx", before="model.onnx"), "graph.svg")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ortboost.core.errors import UsageError, require_known
from ortboost.core.files import atomic_path
from ortboost.core.printable import first_of
from ortboost.core.report import Report
from ortboost.drawing.collapse import Part, collapse
from ortboost.drawing.dot import to_dot
from ortboost.drawing.marks import BOOKKEEPING, marks_against, marks_of_reports
from ortboost.drawing.picture import Box, Picture, around, picture_of
from ortboost.drawing.svg import to_html, to_svg
from ortboost.graph.build import Builder
from ortboost.graph.io import load_model
from ortboost.graph.query import label
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.catalogue import METADATA_KEY, Catalogue, read_catalogue
from ortboost.program.program import Program

__all__ = [
    "EVAL_GRAPH",
    "FORMATS",
    "MAX_NODES",
    "Box",
    "Part",
    "Picture",
    "draw",
    "draw_parts",
    "marks_against",
    "marks_of_reports",
    "picture_of",
    "to_dot",
    "to_html",
    "to_svg",
    "write",
]

MAX_NODES = 300
"""More nodes than this are hard to read in one picture."""
EVAL_GRAPH = "eval"
"""Name of a program's evaluation graph; the others are the keys of ``Program.graphs``."""
FORMATS = (".html", ".svg", ".dot", ".gv")
"""File name extensions that :func:`write` supports."""

_LISTED = 6  # number of removed nodes listed by name


def draw(
    source: str | os.PathLike[str],
    *,
    before: str | os.PathLike[str] | None = None,
    graph: str = EVAL_GRAPH,
    focus: str | None = None,
    hops: int = 3,
    max_nodes: int = MAX_NODES,
) -> Picture:
    """The picture of a model file, or of a graph of a program folder, with all nodes.

    Marked nodes are those that differ from ``before``; without it, in a program folder, those that
    the reports of its rewrites name.

    Args:
        source: ONNX file or program folder.
        before: The original model or program to compare with.
        graph: Which graph of a program folder: ``eval``, ``step``, or another one that it has.
        focus: Draw only the neighbourhood of this node.
        hops: Size of the neighbourhood, in arrows.
        max_nodes: Refuse more nodes than this.

    Raises:
        FileError: A file cannot be read.
        UsageError: There are too many nodes, or the node or graph is unknown.
    """
    path = Path(source)
    picture = _whole(path, graph, before, _open(path, graph))
    if focus is not None:
        picture = around(picture, focus, hops)
    count = sum(box.kind == "node" for box in picture.boxes)
    if count > max_nodes:
        raise UsageError(
            f"The picture would have {count} nodes, more than {max_nodes}.",
            where=str(path),
            fix=f"Draw a part of it with --around NODE, or all of it with --max-nodes {count}.",
        )
    return picture


def draw_parts(
    source: str | os.PathLike[str],
    *,
    before: str | os.PathLike[str] | None = None,
    graph: str = EVAL_GRAPH,
) -> tuple[Picture, list[Part]]:
    """A picture of the layers of a graph, and one of each; arguments as for :func:`draw`.

    See :mod:`ortboost.drawing.collapse`.
    """
    path = Path(source)
    opened = _open(path, graph)
    whole = _whole(path, graph, before, opened, missed=False)  # collapse() counts them itself
    changed: dict[str, list[str]] = {}
    if before is not None:
        changed["new or different"] = [box.key for box in whole.boxes if box.mark]
    else:
        for report in opened.reports:
            if report.rewrite not in BOOKKEEPING:
                changed.setdefault(report.rewrite, []).extend(report.changed)
        if graph != EVAL_GRAPH and opened.catalogue:
            # These boosts report no nodes. They are counted where the next parameters are made.
            made = [entry.next for entry in opened.catalogue.entries("parameter") if entry.next]
            changed |= dict.fromkeys(opened.update_boosts, made)
    batch = opened.catalogue.batch if opened.catalogue else ()
    labels = [spec.name for spec in batch if spec.classes is not None]
    return collapse(
        opened.model,
        whole,
        weights={*opened.weights, *opened.model.graph.initializers},
        loss="loss" if batch else None,
        labels=labels[0] if labels else None,
        changed=changed,
    )


def _whole(
    path: Path,
    graph: str,
    before: str | os.PathLike[str] | None,
    opened: _Opened,
    *,
    missed: bool = True,
) -> Picture:
    notes: list[str] = []
    marks: Mapping[str, str] = {}
    if before is not None:
        other = _open(Path(before), graph).model
        marks, gone = marks_against(other, opened.model)
        notes.append(f"compared with {Path(before).name}: {len(marks)} new or different")
        if gone:
            items = [f"{name} ({op})" for name, op in gone.items()]
            if len(items) > _LISTED:  # too many to name: count them by operator
                items = [f"{count} {op}" for op, count in Counter(gone.values()).most_common()]
            notes.append(f"removed: {first_of(items, _LISTED)}")
    elif opened.reports:
        marks, missing = marks_of_reports(opened.model, opened.reports)
        if missing and missed:
            names = [f"{rewrite} {count}" for rewrite, count in missing.items()]
            also = first_of(names, _LISTED)
            notes.append(f"also changed, but not a node of this graph: {also}")
    title = f"{path.name}: {graph}.onnx" if path.is_dir() else path.name
    return picture_of(opened.model, marks=marks, weights=opened.weights, title=title, notes=notes)


def write(picture: Picture, path: str | os.PathLike[str], parts: Sequence[Part] = ()) -> Path:
    """Write a picture in the format of the file name extension, one of :data:`FORMATS`.

    In HTML, a click on a box opens its part.

    Raises:
        UsageError: The extension is unknown.
        FileError: The folder is missing or not writable.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in FORMATS:
        raise UsageError(
            f"A graph cannot be drawn as '{target.suffix or target.name}'.",
            where=str(target),
            fix=f"Use a name that ends in {' or '.join(FORMATS)}.",
        )
    if kind == ".html":
        text = to_html(picture, parts)
    else:
        text = to_svg(picture) if kind == ".svg" else to_dot(picture)
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


@dataclass(frozen=True)
class _Opened:
    """What is read from a file or a program folder."""

    model: ir.Model  # with inferred shapes
    reports: tuple[Report, ...] = ()
    catalogue: Catalogue | None = None  # of a step
    update_boosts: tuple[str, ...] = ()  # on gradients or in the update; they report no nodes

    @property
    def weights(self) -> set[str]:
        """Inputs that are states."""
        return {entry.name for entry in self.catalogue.state} if self.catalogue else set()


def _open(path: Path, graph: str) -> _Opened:
    if path.is_dir():
        program = Program.load(path)
        graphs = {EVAL_GRAPH: program.evaluation, **program.graphs}
        require_known(graph, graphs, f"The program has no graph '{graph}'.", f"{path}: --graph")
        model, reports, catalogue = graphs[graph], program.reports, program.catalogue
        reported = {report.rewrite for report in reports}
        enabled = program.config.enabled_boosts
        late = [boost.name for boost in enabled if boost.stage in ("gradients", "update")]
        # Reports are named like functions: less_bn for the boost less-bn.
        boosts = tuple(n for name in late if (n := name.replace("-", "_")) not in reported)
    else:
        model, reports, catalogue, boosts = load_model(path), (), None, ()
        if METADATA_KEY in model.metadata_props:
            catalogue = read_catalogue(model)
    infer_shapes(model)
    _make_labels_unique(model)
    return _Opened(model, reports, catalogue, boosts)


def _make_labels_unique(model: ir.Model) -> None:
    """Rename nodes with the label of an earlier one: boxes and parts are known by their labels."""
    names, seen = Builder(model.graph, ""), set[str]()
    for node in model.graph:
        if label(node) in seen:
            node.name = names.unique(label(node))
        seen.add(label(node))
