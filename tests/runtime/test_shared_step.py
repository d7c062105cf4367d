"""Several processes give the numbers of one: each optimizer, each boost, overflow, uneven parts."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

from tests.parallel.launch import finished, torchrun
from tests.parallel.steps import CASES, SEGMENTED

pytestmark = pytest.mark.slow

# Sums come in another order. Gradients of a mixed-precision step are rounded to float16 part by
# part.
WEIGHTS, ROUNDED = 1e-6, 2e-3
SLOTS = ("ortboost/slot", "ortboost/dim", "ortboost/thor")


@pytest.fixture(scope="module", params=[2, 4])
def found(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "found.json"
    finished(torchrun(request.param, "-m", "tests.parallel.steps", path))
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", CASES)
def test_as_one_process(found, name):
    case = found[name]
    bound = ROUNDED if name == "mixed precision" else WEIGHTS
    states = {n: v for n, v in case["apart"].items() if not n.startswith("ortboost/accumulated")}
    slots = {n: v for n, v in states.items() if n.startswith(SLOTS)}
    assert max(v for n, v in states.items() if n not in slots) <= bound
    assert (
        max(slots.values(), default=0.0) <= 10 * bound
    )  # momentum is ten gradients long, B and the inverses are of the size of 1 / curvature
    assert case["moved"] > 1e-3
    # A batch of one sample: its loss moves by more than the weights are apart.
    assert case["loss"] <= (10 * WEIGHTS if name == "reduced" else max(bound, 5e-7))
    assert case["metrics"] <= 1e-6
    assert case["told"] == []  # overflow, scale, counters, which group: of every step


def test_an_overflow_in_one_process_skips_in_all(found):
    assert found["overflow"]["skips"] == found["accumulated overflow"]["skips"] == 3
    assert found["overflow"]["updates"] == 7
    assert found["grouped"]["skips"] > 0


def test_a_large_gradient_in_one_process_skips_in_all(found):
    assert found["large gradients"]["skips"] == 2
    assert found["large gradients, accumulated"]["skips"] == 2


def test_sums_that_overflow_together_are_told(found):
    assert (
        "The sum of an accumulation window overflowed: 'ortboost/accumulated/w1'"
        in found["summed_window"]
    )


def test_segments_change_no_number(found, request):
    """With two processes not by a bit; with more, the order of summation depends on the buckets."""
    two = request.node.callspec.params["found"] == 2
    assert found["segmented"].keys() == {*SEGMENTED}
    assert max(found["segmented"].values()) <= (0.0 if two else 10 * WEIGHTS)


def test_a_small_step_is_one_message(found):
    assert found["messages"] == {"at once": 1, "in turn": 3}


def test_running_statistics_are_averaged(found):
    assert found["statistics"] <= 1e-6


def test_narrow_types_travel(found):
    assert 1e-6 < found["narrow"]["float16"] < 1e-3
    assert found["narrow"]["float16"] < found["narrow"]["bfloat16"] < 1e-2


def test_a_window_goes_on_from_a_checkpoint(found):
    assert found["window"] is True


def test_a_step_without_samples_is_refused_in_all(found):
    assert found["no_samples"] == ["The batch is empty in all processes.", True]


def test_drift_is_found(found):
    assert "have diverged: 'w2' differs" in found["drifted"]


def test_another_program_is_refused(found):
    assert "the program differs" in found["other_program"]
    assert "rank 1" in found["other_program"]
