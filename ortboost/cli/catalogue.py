"""``ortboost list``: the boosts, one line each, or the card of one."""

from __future__ import annotations

from typing import Annotated

import typer

from ortboost.cli.command import verb
from ortboost.cli.options import Console

__all__ = ["VERBS", "list_boosts"]


@verb(file=False)
def list_boosts(
    name: Annotated[str | None, typer.Argument(help="Show the card of this one.")] = None,
    *,
    console: Console,
) -> None:
    """List the boosts, or show the card of one."""
    from ortboost.api.cards import cards, find_card

    printer = console.printer()
    if name is not None:
        card = find_card(name)
        printer.result({**card.to_dict(), "card": card.text})
        printer.line(card.text)
        return
    known = cards()
    printer.result([card.to_dict() for card in known.values()])
    printer.table(
        ["boost", "class", "what it does"],
        [(card.name, card.title, card.tldr) for card in known.values()],
    )
    printer.line(f"\nnext: ortboost list {next(iter(known), 'NAME')}")


VERBS = (
    (
        "list",
        list_boosts,
        """\b
Examples:
  ortboost list
  ortboost list grad-freeze
  ortboost list --json""",
    ),
)
"""Verb, function, examples."""
