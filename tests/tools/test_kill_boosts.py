"""A few kills; ``python -m tools.kill_boosts --times 5`` does more."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.support import ROOT
from tools import kill_boosts

pytestmark = pytest.mark.slow


def test_killed_trainings_are_resumed_to_the_same_bits():
    words = ["-m", "tools.kill_boosts", "--only", "thor,dim-reduce,freeze-windows"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(", 0 not resumed to the same bits")
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 4  # some come after the last step


def test_any_bit_is_a_difference():
    whole = {"last": {"w": np.zeros(2, np.float32)}, "losses": [(1, 0.5)]}
    assert kill_boosts.difference(whole, whole) is None
    for other in (
        {**whole, "last": {"w": np.float32([0, -0.0])}},
        {**whole, "losses": [(1, 0.5), (1, 0.5)]},
    ):
        assert kill_boosts.difference(other, whole)
