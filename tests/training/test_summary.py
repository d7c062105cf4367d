"""The one line on how well a run went."""

from __future__ import annotations

import json

import pytest

from ortboost.training.run_state import RunState
from ortboost.training.summary import TrainSummary, health


@pytest.mark.parametrize(
    ("steps", "skips", "healthy"),
    [
        (100, 0, True),
        (1000, 3, True),
        (40, 20, True),
        (1000, 51, False),
        (20, 20, False),
        (23, 22, False),
    ],
)
def test_health(steps, skips, healthy):
    state = RunState(step=steps, applied_steps=steps - skips, total_skips=skips, loss_scale=64.0)
    well, line = health(state)
    assert well is healthy
    assert line.startswith("healthy: " if healthy else "not healthy: ")
    assert line.endswith("scale 64")
    if skips:
        assert f"{skips} of {steps} steps skipped" in line


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_run_in_which_most_steps_are_skipped_is_not_healthy(dynamic):
    """Early skips too, which are the dynamic scale's search for its place."""
    state = RunState(step=23, applied_steps=1, total_skips=22, loss_scale=4.0)
    for step in range(1, 24):
        state.skips.add(step, step != 5)
    well, line = health(state, dynamic=dynamic)
    assert not well
    assert line.startswith("not healthy: 22 of 23 steps skipped (95.7 %)")
    assert ("most of them changed nothing" if dynamic else "cannot shrink") in line
    assert "lower the learning rate" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metrics_that_are_not_finite_are_not_healthy(value):
    state = RunState(step=9, applied_steps=9, metrics={"train_loss": 1.0, "val_loss": value})
    well, line = health(state)
    assert not well
    assert line.startswith(f"not healthy: val_loss is {value}")


def test_a_summary_is_strict_json():
    summary = TrainSummary("done", 1, 2, 2, 0, 2, 0.5, 4.0, 1.0, {"train_loss": float("nan")})
    data = json.loads(json.dumps(summary.to_dict(), allow_nan=False))
    assert data["metrics"] == {"train_loss": None}
    assert data["reason"] == "done"
    assert data["log"] is None
