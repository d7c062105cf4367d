"""``ortboost list``: a table of the boosts, or the card of one boost."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from ortboost.cli.command import verb
from ortboost.cli.console import Output

__all__ = ["list_boosts"]


@verb(
    "list",
    file=False,
    examples="""\b
Examples:
  ortboost list
  ortboost list grad-freeze
  ortboost list --json""",
)
def list_boosts(
    name: Annotated[str | None, typer.Argument(help="Show the card of this boost.")] = None,
    *,
    printer: Output,
) -> None:
    """List the boosts, or show the card of one boost."""
    from ortboost.api.cards import cards, find_card
    from ortboost.boosts.table import registered

    boosts = {boost.name: boost for boost in registered()}
    if name is not None:
        boost = boosts.get(name.replace("_", "-").lower())
        if boost is not None and boost.card is None:
            text = inspect.cleandoc(boost.__doc__ or boost.__qualname__)
            printer.result({"name": boost.name, "class": boost.__qualname__, "card": text})
            printer.line(text)
            return
        card = find_card((boost and boost.card) or name, boosts)
        printer.result({**card.head, "card": card.text})
        printer.line(card.text)
        return
    rows = {name: {**card.head, "acts_on": ""} for name, card in cards().items()}
    for boost in boosts.values():  # including boosts without a card
        tldr = (boost.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        own = {"name": boost.name, "class": boost.__qualname__, "tldr": tldr}
        row = rows.setdefault(boost.name, {**own, "functional": "", "source": boost.__module__})
        row["acts_on"] = boost.stage
        row["class"] = boost.__qualname__  # our class; the card names MindSpore's
    listed = [rows[name] for name in sorted(boosts)]
    printer.result(listed)
    printer.table(
        ["boost", "class", "acts on", "what it does"],
        [(row["name"], row["class"], row["acts_on"], row["tldr"]) for row in listed],
    )
    printer.line("\n--boost O1 and --boost O2 select sets of boosts: ortboost list auto-boost")
    printer.line(f"next: ortboost list {listed[0]['name'] if listed else 'NAME'}")
