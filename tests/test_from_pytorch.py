"""The loop and the metric of docs/from-pytorch.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

ROOT = Path(__file__).parent.parent


def run_block(naming: str) -> dict[str, object]:
    page = (ROOT / "docs" / "from-pytorch.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if naming in c)
    Path("models").symlink_to(ROOT / "models")
    found: dict[str, object] = {}
    exec(code, found)
    return found


def test_the_metric_of_the_page_is_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_block("kappa")
    assert "kappa" in capsys.readouterr().out.splitlines()[-1]


def test_the_loop_of_the_page_trains_and_exports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_block("trained.onnx")
    assert found["result"].updated
    assert found["scores"].shape == (8, 10)
    before = {i.name: i.raw_data for i in onnx.load(ROOT / "models/mlp.onnx").graph.initializer}
    after = {i.name: i.raw_data for i in onnx.load("trained.onnx").graph.initializer}
    assert not before.items() & after.items()  # all trained
