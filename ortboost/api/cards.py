"""The cards: what each boost does, how to use it, and its measured benefits and costs.

A card is a Markdown file in ``docs/cards/`` (in the package itself when installed) that begins with
metadata between two lines ``---``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ortboost.core.errors import FileError, require_known

__all__ = ["HEADINGS", "Card", "cards", "find_card"]

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "_cards", _PACKAGE.parent / "docs" / "cards")  # installed, checkout
_KEYS = ("name", "class", "functional", "tldr", "source")
HEADINGS = (
    "What it does",
    "The algebra",
    "How to use it",
    "Hyper-parameters",
    "What it was measured to give and cost",
    "When not to use it",
    "How it differs from MindSpore",
)
"""The sections of every card, in order."""


@dataclass(frozen=True)
class Card:
    """One card.

    Args:
        head: The metadata: ``name`` of the boost on the command line, its ``class``, the function
            that implements it (``functional``), a one-line summary (``tldr``), and the method's
            ``source``.
        text: The Markdown text without the metadata.
    """

    head: Mapping[str, str]
    text: str


def cards() -> dict[str, Card]:
    """All cards by name, in alphabetical order.

    Raises:
        FileError: The folder is missing, or a card has no metadata.

    Example:
        >>> "grad-accumulation" in cards()
        True
    """
    folder = next((path for path in _FOLDERS if path.is_dir()), None)
    if folder is None:
        raise FileError(
            "The cards are missing.",
            where=f"{_FOLDERS[0]}",
            fix="Install ortboost again.",
        )
    return {card.head["name"]: card for card in map(_read, sorted(folder.glob("*.md")))}


def find_card(name: str, also: Collection[str] = ()) -> Card:
    """Look up the card of a boost; an error lists ``also``, further names that exist."""
    known = cards()
    wanted = name.replace("_", "-").lower()
    require_known(wanted, sorted({*known, *also}), f"Unknown boost '{name}'.", "ortboost list")
    return known[wanted]


def _read(path: Path) -> Card:
    head: Mapping[str, str] = {}
    parts = path.read_text(encoding="utf-8").split("---\n", 2)
    if len(parts) == 3 and not parts[0].strip():
        pairs = (line.partition(":") for line in parts[1].splitlines() if line.strip())
        head = {key.strip(): value.strip() for key, _, value in pairs}
    for key in _KEYS:
        if not head.get(key):
            raise FileError(
                f"The card has no '{key}'.",
                where=str(path),
                fix=f"Begin it with the keys {', '.join(_KEYS)} between two lines ---.",
            )
    return Card({key: head[key] for key in _KEYS}, parts[2].lstrip())
