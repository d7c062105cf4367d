"""A collapsed picture as an HTML page: a click on a part shows its nodes.

The page has no scripts and no external resources.
"""

from __future__ import annotations

from collections.abc import Sequence

from ortboost.drawing.collapse import Part
from ortboost.drawing.picture import Picture
from ortboost.drawing.svg import escape, to_svg

__all__ = ["to_html"]

_MOST = 400  # maximum number of nodes of a part
# A link sets the fragment of the address, and ":target" shows the section that it names.
_STYLE = """
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


def to_html(picture: Picture, parts: Sequence[Part]) -> str:
    """Write the page.

    Args:
        picture: The picture of the parts.
        parts: The parts; a box without a part has no link.

    Returns:
        A complete HTML file with the parts on the left and the nodes of the selected part on the
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
            f"<title>{escape(picture.title or 'graph')}</title>"
            f"<style>{_STYLE}</style></head><body>",
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
    return f"<p>{count} nodes are too many to read. Use --around NODE to draw a part of them.</p>"
