"""The content of a picture of a graph: boxes with a few lines of text, and arrows."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.core.printable import count_of
from ortboost.drawing.captions import cut, family, middle, settings, times, type_text, weight
from ortboost.graph.query import known_shape, label
from ortboost.graph.reach import uses_inside

__all__ = ["Box", "Picture", "around", "part_of", "picture_of"]

_LISTED = 3  # number of weights listed in a box


@dataclass(frozen=True)
class Box:
    """A box of the picture.

    Args:
        key: Name of the node, or of the input or output.
        title: Operator, or name of the input or output.
        lines: Settings, weights, shape.
        kind: ``node``, ``input``, ``output`` or ``more`` (omitted boxes).
        family: Category of the operator, for the color.
        mark: Description of the change, if a rewrite made or changed the node.
    """

    key: str
    title: str
    lines: tuple[str, ...] = ()
    kind: str = "node"
    family: str = ""
    mark: str | None = None


@dataclass(frozen=True)
class Picture:
    """Boxes, and arrows as pairs of indices of boxes; notes are lines below the title."""

    boxes: Sequence[Box]
    arrows: Sequence[tuple[int, int]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)


def picture_of(
    model: ir.Model,
    *,
    marks: Mapping[str, str] | None = None,
    weights: Collection[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
) -> Picture:
    """The picture of the main graph of a model.

    Weights and constants are lines in the boxes of their readers, not separate boxes. A node with
    subgraphs is one box with the number of their nodes.

    ``marks`` describes the changes of nodes, by name; ``weights`` names the graph inputs that are
    weights, as in the graphs of a program.
    """
    marks = marks or {}
    inside = {*model.graph.initializers, *weights}
    boxes: list[Box] = []
    makers: dict[int, int] = {}
    arrows: list[tuple[int, int]] = []

    def end(value: ir.Value, kind: str) -> Box:
        return Box(value.name or "", value.name or "", (type_text(value),), kind)

    for value in model.graph.inputs:
        if value.name not in inside:
            makers[id(value)] = len(boxes)
            boxes.append(end(value, "input"))
    for node in model.graph:
        if node.op_type == "Constant" and not node.outputs[0].is_graph_output():
            continue
        index = len(boxes)
        boxes.append(_box(node, inside, marks))
        # What its branches read counts once each, an input as often as the node reads it.
        sources = [*node.inputs, *dict.fromkeys(uses_inside(node))]
        arrows += [(makers[id(v)], index) for v in sources if v is not None and id(v) in makers]
        makers.update((id(value), index) for value in node.outputs)
    for value in model.graph.outputs:
        if id(value) in makers:
            arrows.append((makers[id(value)], len(boxes)))
            boxes.append(end(value, "output"))
    return Picture(boxes, arrows, title, tuple(notes))


def around(picture: Picture, name: str, hops: int) -> Picture:
    """The neighbourhood of a box, ``hops`` arrows wide; omitted boxes are shown as a dashed box.

    Raises:
        UsageError: There is no box with this name.
    """
    found = [index for index, box in enumerate(picture.boxes) if box.key == name]
    if not found:
        close = difflib.get_close_matches(name, [box.key for box in picture.boxes], n=3, cutoff=0.5)
        raise UsageError(
            f"The graph has no node '{name}'.",
            where="--around",
            fix=(f"Similar names: {', '.join(close)}. " if close else "")
            + "'ortboost inspect FILE --layers' lists the nodes.",
        )
    near, front = set(found), set(found)
    for _ in range(hops):
        ends = [(s, t) for s, t in picture.arrows if s in front or t in front]
        front = {end for pair in ends for end in pair} - near
        near |= front
    part = part_of(picture, sorted(near))
    nodes = sum(box.kind == "node" for box in picture.boxes)
    shown = sum(box.kind == "node" for box in part.boxes)
    note = f"{shown} of {nodes} nodes: within {count_of(hops, 'step')} of {middle(name)}"
    return Picture(part.boxes, part.arrows, picture.title, (note, *picture.notes))


def part_of(picture: Picture, kept: Sequence[int], names: Sequence[str] | None = None) -> Picture:
    """Some boxes of a picture, with dashed boxes for their omitted neighbours.

    Args:
        picture: The whole picture.
        kept: Indices of the boxes.
        names: Name of each box of the picture when omitted; omitted boxes with the same name become
            one box. Without names, each box has one for all omitted predecessors and one for all
            omitted successors.
    """
    place = {old: new for new, old in enumerate(kept)}
    arrows = [(place[s], place[t]) for s, t in picture.arrows if s in place and t in place]
    # Dashed boxes by (name, whether it follows, kept box), to the kept boxes at their arrows. With
    # names, kept boxes share them (0); without, each has its own.
    outside: dict[tuple[str, bool, int], list[int]] = {}
    for source, target in picture.arrows:
        if (source in place) != (target in place):
            after = source in place
            inner, outer = (source, target) if after else (target, source)
            key = (names[outer], after, 0) if names else ("", after, inner)
            outside.setdefault(key, []).append(place[inner])
    boxes = [picture.boxes[index] for index in kept]
    for (name, after, _), ends in outside.items():
        arrows += [(n, len(boxes)) if after else (len(boxes), n) for n in dict.fromkeys(ends)]
        where = f"to {name}" if after else f"from {name}"
        boxes.append(Box("", where if names else f"{len(ends)} more", kind="more"))
    return Picture(boxes, arrows, picture.title)


def _box(node: ir.Node, inside: Collection[str], marks: Mapping[str, str]) -> Box:
    name = label(node)
    domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
    lines = [settings(node)]
    held = [line for line in (weight(v, inside) for v in node.inputs) if line]
    if len(held) > _LISTED + 1:  # "and 1 more" would be as long as the line it replaces
        held = [*held[:_LISTED], f"and {len(held) - _LISTED} more"]
    lines += held
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            count = sum(1 for _ in attribute.as_graph().all_nodes())
            lines.append(f"{attribute.name}: {count_of(count, 'node')}")
    shape = known_shape(node.outputs[0]) if node.outputs else None
    if shape is not None:
        lines.append("→ " + (times(shape) or "scalar"))
    lines.append(middle(name))
    return Box(
        name,
        domain + node.op_type,
        tuple(cut(line) for line in lines if line),
        family=family(node.op_type),
        mark=marks.get(name),
    )
