"""The one line on how well a run went."""

from __future__ import annotations

import json

import pytest

from ortboost.training.run_state import RunState
from ortboost.training.summary import TrainSummary, health


@pytest.mark.parametrize(
    ("steps", "skips", "healthy"),
    [(100, 0, True), (1000, 3, True), (40, 20, True), (1000, 51, False), (20, 20, False)],
)
def test_health(steps, skips, healthy):
    state = RunState(step=steps, applied_steps=steps - skips, total_skips=skips, loss_scale=64.0)
    well, line = health(state)
    assert well is healthy
    assert line.startswith("healthy: " if healthy else "not healthy: ")
    assert line.endswith("scale 64")
    if skips:
        assert f"{skips} of {steps} steps skipped" in line


def test_a_summary_is_strict_json():
    summary = TrainSummary("done", 1, 2, 2, 0, 2, 0.5, 4.0, 1.0, {"train_loss": float("nan")})
    data = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert data["metrics"] == {"train_loss": None}
    assert data["reason"] == "done"
    assert data["log"] is None
