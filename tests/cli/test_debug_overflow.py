from __future__ import annotations

import json

import pytest

from ortboost.cli import main
from ortboost.training.logs import read_log
from tests.support import ENGINES, MODELS, model_path

DIGITS = str(MODELS / "digits.npz")


@pytest.mark.parametrize("engine", ENGINES)
def test_skipped_steps_are_explained(engine, tmp_path, capsys):
    # Near the end of float32 the sum over the batch overflows until the scale has shrunk.
    run = str(tmp_path / "run")
    words = ["convert", str(model_path("lenet5")), "-o", run, "--engine", engine, "-q"]
    words += ["--reduction", "sum", "--lr", "0.0005"]
    assert main([*words, "--loss-scale", "dynamic:init=1.7e38,max_scale=none"]) == 0
    capsys.readouterr()
    train = ["train", run, "--data", DIGITS, "--epochs", "2", "--debug-overflow", "--json"]
    assert main(train) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    skips = summary["skipped_steps"]
    assert skips >= 4
    assert summary["healthy"]
    assert f"all within the first {skips}, while the scale settled" in summary["health"]
    events = read_log(tmp_path / "run" / "log.jsonl")
    found = [event for event in events if event["event"] == "diagnosis"]
    assert [event["step"] for event in found] == [n for n in (1, 2, 4, 8) if n <= skips]
    for event in found:
        first = event["findings"][0]
        assert first["where"] == "backward"
        assert first["tensor"]["inf"] > 0
        assert first["tensor"]["limit"] < 3.5e38
        assert all(stats["inf"] == 0 for stats in first["inputs"])
        assert event["loss_scale"] == pytest.approx(1.7e38 / 2 ** (event["step"] - 1))
    assert captured.err.count("overflow, first in backward: '") == len(found)
    scales = [event for event in events if event["event"] == "scale"]
    assert [event["change"] for event in scales] == ["shrink"] * skips
    assert scales[0]["before"] == pytest.approx(1.7e38)
