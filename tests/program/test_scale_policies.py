"""The scale state machine against PyTorch's and DeepSpeed's over long random patterns.

How the files were made, and with which versions: ``tools/golden/scale_laws.py``. MindSpore's are in
``test_loss_scale.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ortboost.core.loss_scale import DynamicScaleConfig, initial_state, update

GOLDEN = Path(__file__).parents[1] / "golden"
FLOOR = float(np.finfo(np.float32).tiny)  # PyTorch's scale has no minimum


def record(oracle):
    with np.load(GOLDEN / oracle / "loss_scale.npz") as data:
        return json.loads(str(data["meta"])), dict(data)


TORCH, TORCH_DATA = record("torch")
DEEPSPEED, DEEPSPEED_DATA = record("deepspeed")


def read(data, case, steps):
    overflow = np.unpackbits(data[f"{case}/overflow"])[:steps].astype(bool)
    return overflow, data[f"{case}/exponent"].astype(float), data[f"{case}/counter"]


@pytest.mark.parametrize("case", TORCH["cases"])
def test_equals_the_grad_scaler_of_pytorch(case):
    arguments = TORCH["cases"][case]
    config = DynamicScaleConfig(
        init_scale=arguments.get("init_scale", 2.0**16),
        scale_factor=arguments.get("growth_factor", 2.0),
        scale_window=arguments.get("growth_interval", 2000),
        min_scale=FLOOR,
        max_scale=2.0**127,  # PyTorch's scale does not grow to infinity
    )
    steps = arguments["steps"]
    overflow, exponent, tracker = read(TORCH_DATA, case, steps)
    applied = np.unpackbits(TORCH_DATA[f"{case}/applied"])[:steps].astype(bool)
    state, scales, good, skipped = initial_state(config), [], [], []
    for flag in overflow.tolist():
        state = update(state, flag, config)
        scales.append(float(state.scale))
        good.append(state.cur_iter - 1 - state.last_overflow_iter)
        skipped.append(state.skipped_last)
    np.testing.assert_array_equal(np.array(scales), 2.0**exponent)
    np.testing.assert_array_equal(np.array(good), tracker)
    np.testing.assert_array_equal(np.array(skipped), ~applied)
    assert state.total_skips == overflow.sum() == steps - applied.sum()


@pytest.mark.parametrize("case", DEEPSPEED["cases"])
def test_equals_deepspeed_with_hysteresis(case):
    arguments = DEEPSPEED["cases"][case]
    given = {**DEEPSPEED["defaults"], **arguments}
    config = DynamicScaleConfig(
        init_scale=given["init_scale"],
        scale_window=given["scale_window"],
        min_scale=given["min_scale"],
        max_scale=None,
        hysteresis=given["delayed_shift"],
        consecutive_hysteresis=given["consecutive_hysteresis"],
        late_growth=True,
    )
    overflow, exponent, tolerated = read(DEEPSPEED_DATA, case, arguments["steps"])
    state, scales, left = initial_state(config), [], []
    for flag in overflow.tolist():
        state = update(state, flag, config)
        scales.append(float(state.scale))
        left.append(state.overflows_left)
    np.testing.assert_array_equal(np.array(scales), 2.0**exponent)
    np.testing.assert_array_equal(np.array(left), tolerated)
    assert state.total_skips == overflow.sum()


@pytest.mark.parametrize("case", ["wild", "three"])
def test_without_hysteresis_the_scale_falls_at_once(case):
    """The oracle fails without it, so the patterns distinguish the two."""
    overflow, exponent, _ = read(DEEPSPEED_DATA, case, DEEPSPEED["cases"][case]["steps"])
    config = DynamicScaleConfig(init_scale=2.0**16, scale_window=3, max_scale=None)
    first = int(np.argmax(overflow))
    state = initial_state(config)
    for flag in overflow[: first + 1].tolist():
        state = update(state, flag, config)
    assert state.scale < 2.0 ** exponent[first]
