"""A picture as text for Graphviz."""

from __future__ import annotations

from ortboost.core.printable import printable
from ortboost.drawing.picture import Box, Picture

__all__ = ["to_dot"]

_COLORS = {"dense": "#2563a8", "norm": "#8250df", "activation": "#2f855a", "layout": "#6e7781"}


def to_dot(picture: Picture) -> str:
    """Write a picture in the DOT language.

    Returns:
        A complete file; ``dot -Tpdf graph.dot -o graph.pdf`` draws it.
    """
    lines = [
        "digraph model {",
        '  graph [rankdir=TB, fontname="monospace", labelloc=t, labeljust=l,',
        f"         label={_quoted(chr(10).join((picture.title, *picture.notes)), left=True)}];",
        '  node [shape=box, style="rounded,filled", fillcolor="#f6f8fa", color="#8c959f",',
        '        fontname="monospace", fontsize=10];',
        '  edge [color="#8c959f", arrowsize=0.7];',
    ]
    lines += [f"  n{index} [{_attributes(box)}];" for index, box in enumerate(picture.boxes)]
    lines += [f"  n{source} -> n{target};" for source, target in picture.arrows]
    return "\n".join([*lines, "}", ""])


def _attributes(box: Box) -> str:
    text = "\n".join((box.title, *box.lines, *((box.mark,) if box.mark else ())))
    attributes = [f"label={_quoted(text)}", f"tooltip={_quoted(box.key)}"]
    if box.kind in ("input", "output"):
        attributes.append('shape=ellipse, fillcolor="#eef4ff"')
    if box.kind == "more":
        attributes.append('style="dashed"')
    if box.mark:
        attributes.append('color="#d97706", fillcolor="#fff4e0", penwidth=2.5')
    elif box.family in _COLORS:
        attributes.append(f'color="{_COLORS[box.family]}"')
    return ", ".join(attributes)


def _quoted(text: str, *, left: bool = False) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\l" if left else "\\n") + ("\\l" if left else "") + '"'
