"""A state divided among real processes: the numbers of one, in memory only the own rows."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

from tests.parallel.launch import finished, torchrun
from tests.parallel.sharded import CASES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 3, 4])
def found(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("sharded") / "found.json"
    finished(torchrun(request.param, "-m", "tests.parallel.sharded", path))
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_as_one_process(found, name):
    case = found[name]
    own = {n: v for n, v in case["apart"].items() if n.startswith("ortboost/")}
    weights = {n: v for n, v in case["apart"].items() if n not in own}
    assert max(weights.values()) <= 1e-6, weights
    assert max(own.values()) <= 1e-5, own  # B and its products: sizes of 1 / curvature
    assert own["ortboost/dim_reduce/basis"] == own["ortboost/dim_reduce/rows"] == 0
    assert case["moved"] > 0.1
    assert case["loss"] <= 1e-5
    assert case["told"] == []


def test_rows_are_divided_and_none_is_lost(found):
    rows = found["held"]["rows"]
    assert sum(rows) == 5
    assert max(rows) - min(rows) <= 1


def test_the_state_is_whole(found):
    assert found["held"]["whole"] is True
    assert found["held"]["read"] is True


def test_a_run_goes_on_with_any_number_of_processes(found):
    assert found["held"]["resumed"] is True
    assert found["held"]["resharded"] <= 1e-6
    assert found["held"]["moved"] > 1e-2


@pytest.mark.parametrize("how", ["other basis", "set"])
def test_other_components_are_refused(found, how):
    assert "'ortboost/dim_reduce/basis' is shared by the processes" in found["held"][how]


def test_an_overflow_is_located_in_each_process(found):
    for names, alone in found["diagnosed"]:
        assert names == alone
        assert names


def test_more_processes_than_rows_are_refused(found):
    assert "processes cannot share the" in found["few"]
