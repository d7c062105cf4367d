"""Several processes end with the exit status of the one that failed, and without a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

import ortboost as ob
from ortboost.program.build import build_program
from tests.parallel.launch import SECONDS, environment
from tests.support import ROOT, small_mlp

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-m", "ortboost.api.launch", "--standalone", "--nproc-per-node", "2"]


def started(*words):
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=ROOT,
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ended(process):
    said, _ = process.communicate(timeout=SECONDS)
    assert "Traceback" not in said
    return process.returncode, said


@pytest.fixture
def folder(tmp_path):
    return build_program(small_mlp(10, 16), ob.ProgramConfig()).save(tmp_path / "run")


def test_the_error_of_the_processes_is_its_own(tmp_path):
    status, said = ended(started("-m", "ortboost", "train", tmp_path / "none", "--data", "x.npz"))
    assert status == 8
    # torchrun ends the other process once one has failed, which may be before it prints the same.
    assert said.count("error: Not a program folder.\n  where: ") in (1, 2)


def test_a_process_that_dies(folder):
    fault = json.dumps({"fault": {"rank": 1, "step": 3}})
    assert ended(started("-m", "tests.parallel.run", folder, fault))[0] == 9


def test_all_went_well(folder):
    assert ended(started("-m", "tests.parallel.run", folder, "{}"))[0] == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_all(folder, number, status):
    process = started("-m", "tests.parallel.run", folder, json.dumps({"epochs": 100_000}))
    log, limit = folder / "log.jsonl", time.monotonic() + SECONDS
    while not (log.exists() and '"step"' in log.read_text()):
        assert time.monotonic() < limit, "no step was logged"
        time.sleep(0.2)
    process.send_signal(number)
    assert ended(process)[0] == status
    assert list((folder / "checkpoints").glob("step-*.json"))
