"""AdaSum: closed forms, simulated servers in float64, overflow in one server, invalid counts."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

from tests.parallel.launch import finished, torchrun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[4, 8])
def found(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("joins") / "found.json"
    finished(torchrun(request.param, "-m", "tests.parallel.joins", path))
    return json.loads(path.read_text())


def test_closed_forms(found):
    assert found["closed"] == {"same": 0.0, "axes": 0.0, "alone": 0.0, "one": 0.0}


@pytest.mark.parametrize("case", ["momentum", "adam", "every", "overflow"])
def test_as_simulated(found, case):
    assert found[case]["apart"] <= 1e-6
    assert found[case]["moved"] > 0.1


def test_factors_of_thor_are_those_of_all_servers(found):
    assert found["factors"]["apart"] <= 1e-5  # inverses, of the size of 1 / damping
    assert found["factors"]["moved"] > 0.01


def test_one_server_is_refused(found):
    assert "are 1 servers" in found["refused"]
