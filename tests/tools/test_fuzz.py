"""A fixed sample of damaged files; ``python -m tools.fuzz`` tries more."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support import ROOT
from tools.fuzz.damage import damage_text
from tools.fuzz.files import COMMANDS, damage_file


@pytest.mark.parametrize(("what", "cases"), [("models", 60), ("files", 60)])
def test_damaged_files_end_with_a_documented_status(what, cases, tmp_path):
    words = ["-m", "tools.fuzz", "--what", what, "--cases", str(cases), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{cases} cases, 0 failed" in done.stdout
    assert "not made" not in done.stdout


def test_text_is_damaged_where_values_stand():
    for seed in range(200):
        damaged = damage_text(b'{"key": [1.5, "text"]}', np.random.default_rng(seed))
        assert damaged.decode().endswith("}")


def test_every_kind_of_file_is_damaged(tmp_path):
    for name in COMMANDS:
        path = tmp_path / name.replace("/", "-")
        seen = set()
        for seed in range(20):
            path.write_bytes(b'{"a": 1}' if path.suffix != ".onnx" else b"\x08\x0a")
            damage_file(path, np.random.default_rng(seed))
            seen.add(path.read_bytes())
        assert len(seen) > 5, name
