"""Several processes with sync-bn give the numbers of one, and those of torch."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")
pytest.importorskip("onnxscript", reason="needs onnxscript, for torch's exporter")

from tests.parallel.launch import finished, torchrun
from tests.parallel.synced import CASES, LONG

pytestmark = pytest.mark.slow

# Sums come in another order. Gradients of a mixed-precision step are rounded to float16 part by
# part.
WEIGHTS, ROUNDED = 1e-6, 2e-3


def results(number, tmp_path_factory):
    path = tmp_path_factory.mktemp("synced") / "found.json"
    finished(torchrun(number, "-m", "tests.parallel.synced", path))
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return results(2, tmp_path_factory)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return results(4, tmp_path_factory)


def assert_as_one_process(case, bound):
    states = {n: v for n, v in case["apart"].items() if not n.startswith("ortboost/accumulated")}
    assert max(states.values()) <= bound, max(states.items(), key=lambda pair: pair[1])
    assert case["moved"] > 1e-3
    assert case["loss"] <= 10 * bound
    assert case["told"] == []


@pytest.mark.parametrize("name", CASES)
def test_two_processes_as_one(two, name):
    assert_as_one_process(two[name], ROUNDED if name == "mixed precision" else WEIGHTS)


def test_as_torch_with_the_whole_batch(two):
    assert two["against_torch"].keys() == {"dynamo=False", "dynamo=True"}
    assert max(two["against_torch"].values()) <= WEIGHTS


def test_local_statistics_give_other_numbers(two):
    assert two["without"] > 1e-3


def test_layers_side_by_side_share_an_exchange(two):
    assert two["exchanges"] == 38


@pytest.mark.parametrize("name", [name for name in CASES if name not in LONG])
def test_four_processes_as_one(four, name):
    assert_as_one_process(four[name], ROUNDED if name == "mixed precision" else WEIGHTS)
