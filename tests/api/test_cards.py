"""Every boost has a card, every card has its sections, and the command line shows them."""

from __future__ import annotations

import json
import re

import pytest

import ortboost.api.cards as module
from ortboost.api.cards import HEADINGS, cards, find_card
from ortboost.boosts import registered
from ortboost.cli.app import run
from ortboost.core.errors import FileError, UsageError
from tests.support import ROOT, assert_three_lines

WITHOUT_CARD = {"clip", "full-norm-head"}  # an option of every trainer; a part of less-bn


@pytest.mark.parametrize("name", sorted(cards()))
def test_a_card_has_all_sections_in_their_order(name):
    card = cards()[name]
    found = re.findall(r"^## (.+)$", card.text, re.MULTILINE)
    assert tuple(found) == HEADINGS
    assert "@" not in re.sub(r"`[^`]*`|```.*?```", "", card.text, flags=re.DOTALL)
    assert len(card.head["tldr"]) < 90
    assert (ROOT / "docs" / "cards" / f"{name}.md").is_file()


def test_every_boost_has_a_card():
    assert {boost.name for boost in registered()} - WITHOUT_CARD <= set(cards())
    assert {boost.card for boost in registered()} - {None} <= set(cards())


def test_the_list_shows_all(capsys):
    assert run(["list"]) == 0
    table, _, hints = capsys.readouterr().out.partition("\n\n")
    assert {f"{boost.name} " in table for boost in registered()} == {True}
    assert "auto-boost" not in table  # a level, which is no boost
    assert "ortboost list auto-boost" in hints


def test_one_card_is_shown(capsys):
    assert run(["list", "grad_freeze"]) == 0
    assert "## The algebra" in capsys.readouterr().out


def test_the_list_as_json(capsys):
    assert run(["list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in data] == sorted(boost.name for boost in registered())
    assert all(entry["tldr"] and entry["source"] for entry in data)


def test_an_unknown_boost_names_those_without_a_card():
    with pytest.raises(UsageError, match="clop") as caught:
        run(["list", "clop"])
    assert "did you mean 'clip'" in str(caught.value)


def test_an_unknown_card_names_the_nearest():
    with pytest.raises(UsageError, match="grad-frezee") as caught:
        find_card("grad-frezee")
    assert_three_lines(caught.value)
    assert "grad-freeze" in str(caught.value)


@pytest.mark.parametrize("text", ["no metadata", "---\nname: x\n---\n# x\n"])
def test_a_card_without_metadata_is_an_error(text, tmp_path, monkeypatch):
    (tmp_path / "x.md").write_text(text)
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path,))
    with pytest.raises(FileError) as caught:
        cards()
    assert_three_lines(caught.value)


def test_no_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FOLDERS", (tmp_path / "none",))
    with pytest.raises(FileError) as caught:
        cards()
    assert_three_lines(caught.value)
