"""The notebooks of docs/ run, and their stored outputs are up to date, except for numbers.

They run where the extra `docs` is installed, which `make` does in .venv-stock only: once in `make
test`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import ROOT

nbclient = pytest.importorskip("nbclient", reason="the extra docs is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra docs is not installed")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def answers(cell: Any) -> list[object]:
    """Printed lines and names of facts without numbers; of other outputs the MIME types."""
    found: list[object] = []
    printed = ""
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":  # one print may arrive in several pieces
            printed += output.text
        else:
            assert output.output_type != "error"
            table = re.findall("<(?:th|caption)>(.*?)<", output.data.get("text/html", ""))
            if "notes" in table:  # whether int8 is faster depends on what else the machine does
                table.remove("notes")
            found.append((sorted(output.data), table))
    return found + [re.sub(r"\d\S*", "#", line).split() for line in printed.splitlines()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_answers_as_it_is_stored(path, tmp_path):
    folder = tmp_path / "docs" / "notebooks"
    folder.mkdir(parents=True)
    (tmp_path / "models").symlink_to(ROOT / "models")
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(fresh, timeout=600, resources={"metadata": {"path": folder}}).execute()
    assert [answers(cell) for cell in fresh.cells] == [answers(cell) for cell in stored.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_picture_and_no_place_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    assert '"image/png"' in text or '"image/svg+xml"' in text
    assert not re.search(r"/(?:home|root|tmp|work|usr)/", text)
    assert len(text) < 300_000
