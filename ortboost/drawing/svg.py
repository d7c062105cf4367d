"""A picture as SVG or HTML, without scripts and fonts, in the reader's light or dark colors."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from ortboost.core.printable import printable
from ortboost.drawing.collapse import Part
from ortboost.drawing.layout import Point, arrange
from ortboost.drawing.picture import Box, Picture

__all__ = ["to_html", "to_svg"]

_TITLE, _LINE = 13.0, 11.0
_ADVANCE = 0.61  # character width / font size of common monospaced fonts
_LEADING = 1.35  # line height / font size
_PAD, _MARGIN = 10.0, 28.0
_HEAD_LINE = 20.0  # line height of title and notes
_MARK_WIDE = 36  # characters per line of a mark
_NOTE_WIDE = 72  # characters per line below the title
_STYLE = """
svg { color-scheme: light dark; }
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.ground { fill: #ffffff; }
.box { fill: #f6f8fa; stroke: #c4cad1; stroke-width: 1; }
.box.input, .box.output { fill: #eef4ff; stroke: #8fb0e8; }
.box.more { fill: none; stroke: #8c959f; stroke-dasharray: 3 3; }
.box.marked { fill: #fff4e0; stroke: #d97706; stroke-width: 2.5; }
.title { fill: #1f2328; font-weight: bold; }
.line { fill: #57606a; }
.mark { fill: #8a4b00; font-weight: bold; }
.arrow { fill: none; stroke: #8c959f; stroke-width: 1.3; }
.head { fill: #8c959f; }
.strip { fill: #c4cad1; }
.strip.dense { fill: #2563a8; }
.strip.norm { fill: #8250df; }
.strip.activation { fill: #2f855a; }
.strip.layout { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; }
.box { fill: #161b22; stroke: #444c56; }
.box.input, .box.output { fill: #10213d; stroke: #3d6bb5; }
.box.more { stroke: #768390; }
.box.marked { fill: #3a2a10; stroke: #f0a33e; }
.title { fill: #e6edf3; }
.line { fill: #a2abb5; }
.mark { fill: #ffc680; }
.arrow { stroke: #768390; }
.head { fill: #768390; }
.strip { fill: #444c56; }
.strip.dense { fill: #58a6ff; }
.strip.norm { fill: #bc8cff; }
.strip.activation { fill: #56d364; }
.strip.layout { fill: #768390; }
}
"""
_MOST_NODES = 400  # maximum number of nodes of a part
# A link sets the fragment of the address, and ":target" shows the section that it names.
_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; display: flex; height: 100vh;
  font: 14px ui-monospace, Menlo, Consolas, monospace; }
main, aside { overflow: auto; padding: 8px; box-sizing: border-box; }
main { flex: 1 1 45%; } aside { flex: 1 1 55%; border-left: 2px solid #8c959f; }
section { display: none; } section:target { display: block; }
aside:has(section:target) .hint { display: none; }
aside:not(:has(section:target)) { flex: 0 0 auto; border-left: 0; }
main svg { max-width: max(100%, 900px); height: auto; }
h2 { font-size: 16px; margin: 8px; }
"""


def to_svg(picture: Picture, links: Mapping[str, str] | None = None) -> str:
    """Draw a picture; ``links`` has the link targets of boxes, by key of the node.

    Returns:
        A complete SVG file.
    """
    texts = [_lines(box) for box in picture.boxes]
    sizes = [_size(box, lines) for box, lines in zip(picture.boxes, texts, strict=True)]
    layout = arrange(sizes, picture.arrows)
    # Title and notes: text, style and font size of each line, and the room that they take.
    notes = [line for note in picture.notes for line in _wrap(note, _NOTE_WIDE, 4)]
    head = [(picture.title, "title", _TITLE + 3), *((line, "line", _LINE + 1) for line in notes)]
    head = [entry for entry in head if entry[0]]
    room = max((len(text) * _ADVANCE * size for text, _, size in head), default=0.0)
    if any(box.mark for box in picture.boxes):
        head.append(("", "legend", _LINE + 1))
        room = max(room, 330.0)
    top = _MARGIN + _HEAD_LINE * len(head) + (12 if head else 0)
    width = max(layout.width, room) + 2 * _MARGIN
    height = layout.height + top + _MARGIN
    left = (width - layout.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="img">',
        f"<title>{_escape(picture.title or 'graph')}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" width="{_n(width)}" height="{_n(height)}"/>',
        *_head(head),
        f'<g transform="translate({_n(left)} {_n(top)})">',
        *(_arrow(route) for route in layout.routes),
    ]
    for box, lines, size, center in zip(picture.boxes, texts, sizes, layout.centers, strict=True):
        link = (links or {}).get(box.key) if box.kind == "node" else None
        drawn = _draw(box, lines, size, center)
        parts += [f'<a href="{_escape(link)}">', *drawn, "</a>"] if link else drawn
    return "\n".join([*parts, "</g>", "</svg>", ""])


def to_html(picture: Picture, parts: Sequence[Part]) -> str:
    """Draw the picture of some parts as an HTML page, without scripts and external resources.

    Returns:
        A complete HTML file with the parts on the left and the nodes of the part that was clicked
        on the right; a box without a part has no link.
    """
    links = {part.key: f"#part{index}" for index, part in enumerate(parts)}
    sections = [
        f'<section id="part{index}"><h2>{_escape(part.key)}</h2>\n{_nodes_of(part)}</section>'
        for index, part in enumerate(parts)
    ]
    hint = '<p class="hint">Click on a part to see its nodes.</p>' if parts else ""
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{_escape(picture.title or 'graph')}</title>"
            f"<style>{_PAGE_STYLE}</style></head><body>",
            f"<main>{to_svg(picture, links)}</main>",
            f"<aside>{hint}",
            *sections,
            "</aside></body></html>",
            "",
        ]
    )


def _nodes_of(part: Part) -> str:
    count = sum(box.kind == "node" for box in part.picture.boxes)
    if count <= _MOST_NODES:
        return to_svg(part.picture)
    return f"<p>{count} nodes are too many to read. Use --around NODE to draw a part of them.</p>"


def _escape(text: str) -> str:
    """Escape text for XML; characters that are invalid in XML are shown as escapes."""
    return html.escape(printable(text))


def _lines(box: Box) -> list[tuple[str, str]]:
    """Style and text of each line."""
    lines = [("title", box.title), *(("line", line) for line in box.lines)]
    if box.mark:
        lines += [("mark", line) for line in _wrap(box.mark, _MARK_WIDE, 3)]
    return lines


def _wrap(text: str, width: int, most: int) -> list[str]:
    """Wrap text at words; a word that is too long and lines beyond ``most`` are truncated."""
    lines = [""]
    for word in text.split():
        shown = word if len(word) <= width else word[: width - 1] + "…"
        if lines[-1] and len(lines[-1]) + 1 + len(shown) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {shown}".strip()
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: width - 1] + "…"]
    return lines


def _size(box: Box, lines: Sequence[tuple[str, str]]) -> Point:
    wide = max(len(text) * _ADVANCE * _font(style) for style, text in lines)
    tall = sum(_font(style) * _LEADING for style, _ in lines)
    # The 6 are for the colored strip of a node.
    return (max(wide + 2 * _PAD + 6, 60.0), tall + (_PAD if box.kind == "more" else 1.4 * _PAD))


def _font(style: str) -> float:
    return _TITLE if style == "title" else _LINE


def _draw(box: Box, lines: Sequence[tuple[str, str]], size: Point, center: Point) -> list[str]:
    width, height = size
    x, y = center[0] - width / 2, center[1] - height / 2
    marked = " marked" if box.mark else ""
    radius = height / 2 if box.kind in ("input", "output") else 5.0
    radius = min(radius, 18.0)
    whole = " | ".join(text for text in (box.key, *box.lines, box.mark or "") if text)
    parts = [
        "<g>",
        f"<title>{_escape(whole)}</title>",
        _rect(f"box {box.kind}{marked}", x, y, width, height, radius),
    ]
    if box.kind == "node":
        parts.append(_rect(f"strip {box.family}", x + 4, y + 6, 4, height - 12, 2))
    baseline = y + (_PAD / 2 if box.kind == "more" else 0.7 * _PAD)
    shift = 3 if box.kind == "node" else 0  # centered beside the strip
    for style, text in lines:
        font = _font(style)
        baseline += font * _LEADING
        y = baseline - 0.3 * font
        parts.append(_text(style, center[0] + shift, y, font, text, ' text-anchor="middle"'))
    return [*parts, "</g>"]


def _arrow(route: Sequence[Point]) -> str:
    """An arrow: straight down within a layer, a smooth curve between layers, and a head."""
    x, y = route[0]
    path = [f"M{_n(x)} {_n(y)}"]
    for index, (to_x, to_y) in enumerate(route[1:]):
        if index % 2 == 0 or abs(to_x - x) < 0.5:  # within a layer, or straight across the gap
            path.append(f"L{_n(to_x)} {_n(to_y)}")
        else:  # a Bezier curve that begins and ends vertically
            half = (to_y - y) / 2
            path.append(
                f"C{_n(x)} {_n(y + half)} {_n(to_x)} {_n(to_y - half)} {_n(to_x)} {_n(to_y)}"
            )
        x, y = to_x, to_y
    tip = f"M{_n(x)} {_n(y)}L{_n(x - 4)} {_n(y - 8)}L{_n(x + 4)} {_n(y - 8)}Z"
    return f'<path class="arrow" d="{"".join(path)}"/><path class="head" d="{tip}"/>'


def _head(lines: Sequence[tuple[str, str, float]]) -> list[str]:
    parts = []
    y = _MARGIN
    for text, style, size in lines:
        y += _HEAD_LINE
        if style == "legend":
            parts.append(_rect("box marked", _MARGIN, y - 12, 22, 14, 3))
            parts.append(_text("line", _MARGIN + 30, y, size, "new or changed"))
        else:
            parts.append(_text(style, _MARGIN, y, size, text))
    return parts


def _rect(style: str, x: float, y: float, width: float, height: float, radius: float) -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
    return f'<rect class="{style}" {place} rx="{_n(radius)}"/>'


def _text(style: str, x: float, y: float, size: float, text: str, more: str = "") -> str:
    place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{more}'
    return f'<text class="{style}" {place}>{_escape(text)}</text>'


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
