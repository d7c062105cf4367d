"""Pictures of small graphs, with what rewrites made or changed marked.

Example:
    >>> from ortboost.drawing import draw, write
    >>> write(draw("model.opt.onnx", before="model.onnx"), "graph.svg")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ortboost.core.errors import UsageError, require_known
from ortboost.core.files import atomic_path
from ortboost.core.report import Report
from ortboost.drawing.dot import to_dot
from ortboost.drawing.marks import marks_against, marks_of_reports
from ortboost.drawing.picture import Box, Picture, around, picture_of
from ortboost.drawing.svg import to_svg
from ortboost.graph.io import load_model
from ortboost.graph.shape_inference import infer_shapes
from ortboost.program.catalogue import METADATA_KEY, read_catalogue
from ortboost.program.program import Program

__all__ = [
    "EVAL_GRAPH",
    "FORMATS",
    "MAX_NODES",
    "Box",
    "Picture",
    "draw",
    "marks_against",
    "marks_of_reports",
    "picture_of",
    "to_dot",
    "to_svg",
    "write",
]

MAX_NODES = 300
"""More than these are hard to read in one picture."""
EVAL_GRAPH = "eval"
"""The evaluation graph of a program folder; the others have the names of ``Program.graphs``."""
FORMATS = {".svg": to_svg, ".dot": to_dot, ".gv": to_dot}
"""End of a file name to what writes it."""

_LISTED = 6  # names of what is gone


def draw(
    source: str | os.PathLike[str],
    *,
    before: str | os.PathLike[str] | None = None,
    graph: str = EVAL_GRAPH,
    focus: str | None = None,
    hops: int = 3,
    max_nodes: int = MAX_NODES,
) -> Picture:
    """The picture of a model file, or of a graph of a program folder.

    Marked are: with ``before``, the nodes that differ from that model; else, in a program folder,
    what the reports of its rewrites name.

    Args:
        source: ONNX file or program folder.
        before: The model or program that it was made from.
        graph: Which graph of a program folder: ``eval``, ``step``, or another one that it has.
        focus: Only what is near this node.
        hops: How near, in arrows.
        max_nodes: Refuse more nodes than this.

    Raises:
        FileError: A file cannot be read.
        UsageError: Too many nodes; no such node or graph.
    """
    path = Path(source)
    model, reports, weights = _open(path, graph)
    notes: list[str] = []
    marks: Mapping[str, str] = {}
    if before is not None:
        other, _, _ = _open(Path(before), graph)
        marks, gone = marks_against(other, model)
        notes.append(f"compared with {Path(before).name}: {len(marks)} new or different")
        if gone:
            counts = Counter(gone.values()).most_common()
            few = len(gone) <= _LISTED
            items = [f"{name} ({op})" for name, op in gone.items()] if few else []
            notes.append(_listing("gone", items or [f"{count} {op}" for op, count in counts]))
    elif reports:
        marks, missing = marks_of_reports(model, reports)
        if missing:
            names = [f"{rewrite} {count}" for rewrite, count in missing.items()]
            notes.append(_listing("changed too, and not a node here", names))
    title = f"{path.name}: {graph}.onnx" if path.is_dir() else path.name
    picture = picture_of(model, marks=marks, weights=weights, title=title, notes=notes)
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


def write(picture: Picture, path: str | os.PathLike[str]) -> Path:
    """Write a picture; the end of the name says how.

    Args:
        picture: The picture.
        path: A file that ends in ``.svg``, ``.dot`` or ``.gv``.

    Raises:
        UsageError: It ends in something else.
        FileError: The folder is missing or not writable.
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise UsageError(
            f"A graph cannot be drawn as '{target.suffix or target.name}'.",
            where=str(target),
            fix=f"Give a name that ends in {' or '.join(FORMATS)}.",
        )
    text = FORMATS[target.suffix.lower()](picture)
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def _open(path: Path, graph: str) -> tuple[ir.Model, tuple[Report, ...], frozenset[str]]:
    """A model with shapes, what was done to it, and the inputs that are weights."""
    if path.is_dir():
        program = Program.load(path)
        graphs = {EVAL_GRAPH: program.evaluation, **program.graphs}
        require_known(graph, graphs, f"The program has no graph '{graph}'.", f"{path}: --graph")
        model = graphs[graph]
        state = frozenset(entry.name for entry in program.catalogue.state)
        infer_shapes(model)
        return model, program.reports, state
    model = load_model(path)
    state = frozenset[str]()
    if METADATA_KEY in model.metadata_props:
        state = frozenset(entry.name for entry in read_catalogue(model).state)
    infer_shapes(model)
    return model, (), state


def _listing(what: str, items: list[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{what}: {', '.join(items[:_LISTED])}{more}"
