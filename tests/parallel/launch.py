"""Several processes for a test: torchrun on a free port, bounded in time."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="needs torch: pip install 'ortboost[distributed]'",
)
SECONDS = 240  # a machine may be busy; a hanging test must end


def environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def torchrun(number: int, *arguments: str | Path, restarts: int = 0) -> subprocess.CompletedProcess:
    """Run a module (``-m name``) or a file in several processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(number), "--max-restarts", str(restarts)]
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def finished(result: subprocess.CompletedProcess) -> str:
    """What it said, if all went well."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
