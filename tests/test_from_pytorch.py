"""The loop of docs/from-pytorch.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

ROOT = Path(__file__).parent.parent


def test_the_loop_of_the_page_trains_and_exports(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "from-pytorch.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (c for c in blocks if "mlp.onnx" in c and "ob.Stepper" in c)
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(code, found)
    assert found["result"].updated
    assert found["scores"].shape == (8, 10)
    before = {i.name: i.raw_data for i in onnx.load(ROOT / "models/mlp.onnx").graph.initializer}
    after = {i.name: i.raw_data for i in onnx.load("trained.onnx").graph.initializer}
    assert not before.items() & after.items()  # all trained
