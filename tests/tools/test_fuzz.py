"""A fixed sample of damaged files; ``python -m tools.fuzz`` tries more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ortboost.autodiff.native.engine import NativeEngine
from tests.support import ROOT
from tools.fuzz import forks
from tools.fuzz.__main__ import Found
from tools.fuzz.damage import damage_text
from tools.fuzz.files import COMMANDS, damage_file


@pytest.mark.each_runtime
def test_damaged_files_end_with_a_documented_status(tmp_path):
    """100 cases with `make test`, which runs one half with each runtime."""
    first = "51" if NativeEngine().unavailable() else "1"
    words = ["-m", "tools.fuzz", "--what", "models", "files", "--first", first, "--cases", "50"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words, "--out", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("50 cases in ")
    assert done.stdout.endswith(" 0 failed\n")


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ("raise ValueError", "exit 1"),
        ("os.kill(os.getpid(), signal.SIGFPE)", "signal SIGFPE"),
        ("time.sleep(60)", "hang"),
        ("bytearray(3 << 30)", "exit 1"),
        ("print('done')", "exit 0"),
    ],
)
def test_how_a_case_ends(body, end, tmp_path, monkeypatch):
    def command(words):
        exec(body, {"os": os, "signal": signal, "time": time})
        return 0

    monkeypatch.setattr(forks, "ortboost", command)
    found, _ = forks.run_case([], tmp_path / "said.txt", seconds=3, gigabytes=2)
    assert found == end


def test_what_is_a_fault():
    told = "error: It is damaged.\n  where: x\n  fix:   y\n"
    for said, end in (("", "exit 0"), (told, "exit 8"), ("a table", "exit 5")):
        assert Found().add("1-1", "x", end, said) is False
    faults = [("", "exit 8"), (told, "exit 1"), (told, "hang"), (told, "signal SIGSEGV")]
    faults += [("Traceback (most recent call last)\n" + told, "exit 8")]
    for said, end in faults:
        assert Found().add("1-1", "x", end, said) is True


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
