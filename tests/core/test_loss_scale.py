"""The scale state machines against a slow reimplementation and MindSpore's own results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
    initial_state,
    update,
)
from ortboost.mindspore.amp import DynamicLossScaleManager
from ortboost.mindspore.core.arguments import ArgumentRuntimeError

GOLDEN = Path(__file__).parents[1] / "golden" / "mindspore" / "loss_scale.npz"

configs = st.builds(
    DynamicScaleConfig,
    init_scale=st.sampled_from([1.0, 5.0, 2.0**10, 2.0**24]),
    scale_factor=st.sampled_from([2.0, 3.0, 1.5, 4.0]),
    scale_window=st.integers(1, 6),
    min_scale=st.sampled_from([1.0, 0.25]),
    max_scale=st.sampled_from([2.0**24, 2.0**24 + 2, None]),
)
overflows = st.lists(st.booleans(), max_size=60)


def run(config, pattern):
    state, states = initial_state(config), []
    for overflow in pattern:
        state = update(state, overflow, config)
        states.append(state)
    return states


def slow_law(config, pattern):
    """A reimplementation that counts steps since the last overflow or growth one by one."""
    f32 = np.float32
    scale, good, scales = f32(config.init_scale), 0, []
    inverse = f32(np.float64(1.0) / np.float64(f32(config.scale_factor)))
    for overflow in pattern:
        good += 1  # MindSpore counts the step itself, whether it overflows or not
        ripe = good >= config.scale_window
        if overflow:
            scale = max(f32(scale * inverse), f32(config.min_scale))
            good = 0
        elif ripe:
            with np.errstate(over="ignore"):
                scale = f32(scale * f32(config.scale_factor))
            if config.max_scale is not None and scale > f32(config.max_scale):
                scale = f32(config.max_scale)
            good = 0
        scales.append(scale)
    return scales


@given(configs, overflows)
def test_agrees_with_the_slow_law(config, pattern):
    scales = [state.scale for state in run(config, pattern)]
    assert scales == slow_law(config, pattern)
    assert all(isinstance(scale, np.float32) for scale in scales)


@given(configs, overflows)
def test_stays_between_its_bounds(config, pattern):
    for state in run(config, pattern):
        assert state.scale >= config.min_scale
        assert config.max_scale is None or state.scale <= config.max_scale


@given(st.integers(1, 30))
def test_grows_first_on_the_window_th_good_step(window):
    config = DynamicScaleConfig(init_scale=8.0, scale_window=window)
    scales = [float(state.scale) for state in run(config, [False] * (window + 1))]
    assert scales[: window - 1] == [8.0] * (window - 1)
    assert scales[window - 1] == 16.0


@given(st.integers(1, 10), st.integers(0, 20))
def test_after_an_overflow_it_grows_after_another_window(window, before):
    config = DynamicScaleConfig(init_scale=2.0**20, scale_window=window)
    scales = [s.scale for s in run(config, [False] * before + [True] + [False] * window)]
    assert scales[before : before + window] == [scales[before]] * window
    assert scales[-1] == scales[before] * 2


@given(configs, overflows)
def test_counts_skips(config, pattern):
    states = run(config, pattern)
    for index, state in enumerate(states):
        assert state.total_skips == sum(pattern[: index + 1])
        assert state.skipped_last == pattern[index]
        tail = 0
        for overflow in reversed(pattern[: index + 1]):
            if not overflow:
                break
            tail += 1
        assert state.consecutive_skips == tail
        assert state.cur_iter == index + 2


def test_an_overflow_that_meets_a_due_growth_only_shrinks():
    config = DynamicScaleConfig(init_scale=8.0, scale_window=2)
    assert [float(s.scale) for s in run(config, [False, True, False, False])] == [8, 4, 4, 8]


def test_a_start_below_the_minimum_stays_until_an_overflow_lifts_it():
    config = DynamicScaleConfig(init_scale=0.5, scale_window=100)
    assert [float(s.scale) for s in run(config, [False, True])] == [0.5, 1.0]


def test_factor_three_multiplies_with_the_rounded_reciprocal():
    # 5 * fl(1/3) rounds up to 1.6666667461, which is what MindSpore's cell gives.
    state = run(DynamicScaleConfig(init_scale=5.0, scale_factor=3.0), [True])[0]
    assert state.scale == np.float32(5) * (np.float32(1) / np.float32(3))


@pytest.mark.parametrize("config", [FixedScaleConfig(128.0), NO_SCALE])
def test_the_other_scales_never_change_but_count(config):
    states = run(config, [True, True, False])
    assert {state.scale for state in states} == {initial_state(config).scale}
    assert [state.consecutive_skips for state in states] == [1, 2, 0]
    assert states[-1].total_skips == 2


@pytest.mark.parametrize(
    "change",
    [
        {"init_scale": 0.0},
        {"init_scale": float("nan")},
        {"scale_factor": 1.0},
        {"scale_factor": float("inf")},
        {"scale_window": 0},
        {"min_scale": 0.0},
        {"init_scale": 2.0, "max_scale": 1.0},
        {"init_scale": 1.0, "min_scale": 4.0, "max_scale": 2.0},
    ],
)
def test_bad_settings_are_refused(change):
    with pytest.raises(ConfigError, match="'"):
        DynamicScaleConfig(**change)
    with pytest.raises(ConfigError):
        FixedScaleConfig(-1.0)


def golden_combos():
    with np.load(GOLDEN) as data:
        return sorted(
            json.loads(str(data["meta"][()] if data["meta"].ndim == 0 else data["meta"][0]))[
                "combos"
            ].items()
        )


@pytest.mark.parametrize(("key", "combo"), golden_combos())
def test_matches_mindspore_exactly(key, combo):
    start, factor, window = combo
    config = DynamicScaleConfig(start, factor, window, max_scale=None)
    with np.load(GOLDEN) as data:
        pattern, cell = data["overflow"], data[f"{key}/cell"]
        manager = data.get(f"{key}/manager")
    scales = np.array([state.scale for state in run(config, pattern.tolist())])
    np.testing.assert_array_equal(scales, cell)
    if manager is None:  # MindSpore's manager rejects this start
        assert start < 1
        return
    law, found = DynamicLossScaleManager(start, factor, window), []
    for overflow in pattern.tolist():
        law.update_loss_scale(overflow)
        found.append(law.get_loss_scale())
    np.testing.assert_array_equal(np.array(found), manager)


def test_fixed_matches_mindspore():
    with np.load(GOLDEN) as data:
        cell = data["fixed/cell"]
        pattern = data["overflow"][: len(cell)].tolist()
    scales = [state.scale for state in run(FixedScaleConfig(128.0), pattern)]
    np.testing.assert_array_equal(np.array(scales), cell)


@given(overflows, st.integers(1, 6), st.sampled_from([2.0, 4.0]))
def test_host_and_device_law_agree_for_powers_of_two(pattern, window, factor):
    config = DynamicScaleConfig(2.0**12, factor, window, max_scale=None)
    law = DynamicLossScaleManager(2.0**12, factor, window)
    for overflow, device in zip(pattern, run(config, pattern), strict=True):
        law.update_loss_scale(overflow)
        # float64 continues where float32 is infinite
        assert np.float32(law.get_loss_scale()) == device.scale


@pytest.mark.parametrize("init", [np.float32(4096), np.int64(4096), 4096, (4096.0,), [4096, 4096]])
def test_groups_start_at_numbers_of_any_kind(init):
    assert GroupedScaleConfig(init).starts().tolist() == [4096, 4096]


def test_the_host_law_endures_a_thousand_overflows_and_no_more():
    law = DynamicLossScaleManager(2.0**24)
    for _ in range(1000):
        law.update_loss_scale(True)
    assert law.get_loss_scale() == 1.0
    with pytest.raises(ArgumentRuntimeError, match="1001 times"):
        law.update_loss_scale(True)
    law.update_loss_scale(False)
    law.update_loss_scale(True)  # counted from the start again
