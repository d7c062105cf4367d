"""The site of `make docs`: all public names are shown; a build, whose warnings are errors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

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


def test_the_site_has_all_pages_and_no_dead_link(tmp_path):
    pytest.importorskip("mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
