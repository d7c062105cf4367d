"""``communication``, ``set_auto_parallel_context`` and ``AdaSum``, also with real processes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ortboost import ParallelMode, Parameter, Tensor, set_auto_parallel_context
from ortboost.mindspore import communication
from ortboost.mindspore.boost import adasum
from tests.parallel.launch import finished, torchrun
from tests.support import assert_three_lines


@pytest.fixture
def two_processes(monkeypatch):
    """This process believes to be the first of two."""
    monkeypatch.setattr(communication._Process, "group", SimpleNamespace(rank=0, size=2))
    yield
    communication.reset_auto_parallel_context()


def test_the_number_of_processes_is_checked_in_every_mode(two_processes, monkeypatch):
    set_auto_parallel_context(device_num=2)
    for size, group in ((2, communication._Process.group), (1, None)):
        monkeypatch.setattr(communication._Process, "group", group)
        with pytest.raises(ValueError, match=f"device_num is 8, but .* {size} process") as raised:
            set_auto_parallel_context(device_num=8)
        assert_three_lines(raised.value)


def test_a_mean_that_is_not_asked_for_is_told(two_processes):
    with pytest.warns(UserWarning, match="gradients_mean is not given"):
        set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL)
    set_auto_parallel_context(device_num=2)
    set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean=True)
    set_auto_parallel_context(parallel_mode=ParallelMode.STAND_ALONE)


def test_adasum_refuses_other_parameters_than_its_own(two_processes, monkeypatch):
    monkeypatch.setattr(adasum, "SharedAdaSum", lambda *_: SimpleNamespace(join=dict))
    set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean=True)
    own = [Parameter(np.ones(2, np.float32), name) for name in "ab"]
    with pytest.raises(TypeError, match="device_number"):
        adasum.AdaSum(0, "1", 2, own)
    join = adasum.AdaSum(0, 1, 2, own)
    deltas, old = ([Tensor(np.full(2, value, np.float32))] * 2 for value in (0.25, 1.0))
    for given in ((deltas, own[::-1], old), (deltas[:1], own, old), (deltas, own, old[:1])):
        with pytest.raises(ValueError, match="parameters differ") as raised:
            join(*given)
        assert_three_lines(raised.value)
    join(deltas, own, old)
    assert own[1].asnumpy().tolist() == [0.75, 0.75]


@pytest.mark.slow
def test_a_cell_shares_its_steps(tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")
    finished(torchrun(2, "-m", "tests.parallel.cells", tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["apart"] <= 1e-6
    assert max(found["reduced_apart"]) <= 1e-6
    assert found["held"] == [5, 2, 2]  # rows of the components: all, or those of the first process
    assert "pca_mat_local differs" in found["refused"]["partly_divided"]
    assert "Process 0 of 1 is not this one" in found["refused"]["rank_size"]
    assert found["joined"] == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-6)
    assert "init() first" in found["refused"]["before"]
    assert "there are 2 processes" in found["refused"]["device_num"]
    assert "not in this version" in found["refused"]["parallel_mode"]
    assert "not in this version" in found["refused"]["gradients_mean"]
