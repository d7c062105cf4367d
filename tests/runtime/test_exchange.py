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


TWO = pytest.mark.parametrize("found", [2], indirect=True)


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("synced") / "found.json"
    finished(torchrun(request.param, "-m", "tests.parallel.synced", path))
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("found", "name"),
    [(number, name) for number in (2, 4) for name in CASES if number == 2 or name not in LONG],
    indirect=["found"],
)
def test_as_one_process(found, name):
    case = found[name]
    bound = ROUNDED if name == "mixed precision" else WEIGHTS
    states = {n: v for n, v in case["apart"].items() if not n.startswith("ortboost/accumulated")}
    assert max(states.values()) <= bound, max(states.items(), key=lambda pair: pair[1])
    assert case["moved"] > 1e-3
    assert case["loss"] <= 10 * bound
    assert case["told"] == []


@TWO
def test_as_torch_with_the_whole_batch(found):
    assert found["against_torch"].keys() == {"dynamo=False", "dynamo=True"}
    assert max(found["against_torch"].values()) <= WEIGHTS


@TWO
def test_local_statistics_give_other_numbers(found):
    assert found["without"] > 1e-3


@TWO
def test_layers_side_by_side_share_an_exchange(found):
    assert found["exchanges"] == 38
