"""A collapsed picture as one HTML page: a click on a part shows its nodes. No script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from ortboost.drawing.collapse import Part
from ortboost.drawing.picture import Picture
from ortboost.drawing.svg import escape, to_svg

__all__ = ["to_html"]

_MOST = 400  # nodes of a part
_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; display: flex; height: 100vh; font: 14px ui-monospace, Menlo, Consolas, monospace; }
main, aside { overflow: auto; padding: 8px; box-sizing: border-box; }
main { flex: 1 1 45%; } aside { flex: 1 1 55%; border-left: 2px solid #8c959f; }
section { display: none; } section:target { display: block; }
aside:has(section:target) .hint { display: none; }
main svg { max-width: max(100%, 900px); height: auto; }
h2 { font-size: 16px; margin: 8px; }
"""


def to_html(picture: Picture, parts: Sequence[Part]) -> str:
    """Write the page.

    Args:
        picture: The picture of the parts.
        parts: The parts; a part of none is drawn as what it is, without a link.

    Returns:
        A complete HTML file: the parts to the left, the nodes of the one that was clicked to the
            right.
    """
    links = {part.key: f"#part{index}" for index, part in enumerate(parts)}
    sections = [
        f'<section id="part{index}"><h2>{escape(part.key)}</h2>\n{_drawn(part)}</section>'
        for index, part in enumerate(parts)
    ]
    hint = '<p class="hint">Click on a part to see its nodes.</p>' if parts else ""
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(picture.title or 'graph')}</title><style>{_STYLE}</style></head><body>",
            f"<main>{to_svg(picture, links)}</main>",
            f"<aside>{hint}",
            *sections,
            "</aside></body></html>",
            "",
        ]
    )


def _drawn(part: Part) -> str:
    count = sum(box.kind == "node" for box in part.picture.boxes)
    if count <= _MOST:
        return to_svg(part.picture)
    return (
        f"<p>These are {count} nodes: too many to read. --around NODE draws what is near one.</p>"
    )
