"""The pages of the API reference; that links are right, a strict build shows (`make docs`)."""

from __future__ import annotations

import re

import ortboost
from tests.support import ROOT

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
# Modules with MindSpore's names are shown where they are defined.
MODULES = {"amp", "boost", "communication", "dtype", "nn"}


def documented(prefix: str) -> list[str]:
    """The names below ``prefix`` that the pages show, in all their places."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return re.findall(rf"^::: {prefix}\.(\w+)$", text, re.MULTILINE)


def test_every_public_name_has_one_place_on_the_pages():
    found = documented("ortboost")
    assert len(found) == len(set(found))
    types = re.findall(r"`ob\.(\w+)`", (ROOT / "docs/api/mindspore.md").read_text(encoding="utf-8"))
    assert {*found, *types} | MODULES == set(ortboost.__all__)


def test_every_module_with_names_of_mindspore_is_shown():
    assert set(documented(r"ortboost\.mindspore")) == MODULES - {"dtype"}
