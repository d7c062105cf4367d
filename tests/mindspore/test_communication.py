"""``communication``, ``set_auto_parallel_context`` and ``AdaSum`` with real processes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

from tests.parallel.launch import finished, torchrun

pytestmark = pytest.mark.slow


def test_a_cell_shares_its_steps(tmp_path):
    finished(torchrun(2, "-m", "tests.parallel.cells", tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["apart"] <= 1e-6
    assert max(found["reduced_apart"]) <= 1e-6
    assert found["held"] == [5, 2]  # rows of the components: all, or those of the first process
    assert "whether they are divided differs" in found["refused"]["partly_divided"]
    assert "Process 0 of 1 is not this one" in found["refused"]["rank_size"]
    assert found["joined"] == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-6)
    assert "init() first" in found["refused"]["before"]
    assert "there are 2 processes" in found["refused"]["device_num"]
    assert "not in this version" in found["refused"]["parallel_mode"]
    assert "not in this version" in found["refused"]["gradients_mean"]
