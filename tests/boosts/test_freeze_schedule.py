"""Schedules of gradient freeze: MindSpore's sequences, their distribution, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.boosts.freeze_schedule import (
    CONTINUOUS,
    COST,
    INTERVAL,
    FreezeConfig,
    freeze_schedule,
    generate_freeze_index_sequence,
)
from ortboost.core.errors import ConfigError
from ortboost.program.config import ProgramConfig, step_plan
from tests.support import GOLDEN, assert_three_lines


@pytest.mark.parametrize(
    "case",
    [(10, 1, 0.7, 300), (4, 1, 0.3, 200), (2, 1, 0.5, 50), (10, 0, 0.7, 300), (5, 0, 0.25, 64)],
)
def test_the_numbers_are_those_of_mindspore(case):
    with np.load(GOLDEN / "mindspore" / "freeze_sequences.npz") as golden:
        expected = golden["_".join(map(str, case))]
    np.testing.assert_array_equal(generate_freeze_index_sequence(*case, seed=1234), expected)


@given(
    number=st.integers(2, 12),
    kind=st.sampled_from([INTERVAL, COST]),
    share=st.floats(0, 1),
    steps=st.integers(1, 400),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_the_share_of_full_updates_is_kept_at_every_point(number, kind, share, steps, seed):
    sequence = generate_freeze_index_sequence(number, kind, share, steps, seed)
    assert len(sequence) == int(steps * 1.01)
    assert sequence.min() >= 0
    assert sequence.max() < number
    frozen = np.cumsum(sequence > 0)
    length = np.arange(1, len(sequence) + 1)
    if share < 1:
        assert np.all(np.abs(frozen - (1 - share) * length) <= 1 + 1e-9)


def test_by_cost_all_groups_come_alike():
    sequence = generate_freeze_index_sequence(5, COST, 0.0, 8000)
    counts = np.bincount(sequence, minlength=5)[1:]
    assert np.all(np.abs(counts / counts.sum() - 0.25) < 0.03)


def test_by_interval_shallow_groups_come_more_often():
    counts = np.bincount(generate_freeze_index_sequence(5, INTERVAL, 0.0, 8000), minlength=5)[1:]
    assert np.all(np.abs(counts / counts.sum() - np.array([4, 3, 2, 1]) / 10) < 0.03)


@pytest.mark.parametrize("kind", [CONTINUOUS, INTERVAL, COST])
def test_with_p_of_one_nothing_is_frozen(kind):
    assert not generate_freeze_index_sequence(6, kind, 1.0, 100).any()


def test_the_seed_decides():
    one = freeze_schedule(FreezeConfig(seed=1, total_steps=100))
    np.testing.assert_array_equal(one, freeze_schedule(FreezeConfig(seed=1, total_steps=100)))
    assert not np.array_equal(one, freeze_schedule(FreezeConfig(seed=2, total_steps=100)))


def test_the_random_numbers_of_the_process_are_left_alone():
    np.random.seed(5)  # noqa: NPY002 - the global generator is what must not be touched
    expected = np.random.RandomState(5).rand()
    freeze_schedule(FreezeConfig(total_steps=50))
    assert np.random.rand() == expected  # noqa: NPY002 - see above


def test_the_plan_of_a_program_follows_from_its_configuration():
    config = FreezeConfig(param_groups=3, total_steps=40)
    plan = step_plan(ProgramConfig(grad_freeze=config), ["step", "step.1", "step.2"])
    np.testing.assert_array_equal(plan, freeze_schedule(config))
    np.testing.assert_array_equal(step_plan(ProgramConfig(), ["step"]), [0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"param_groups": 0},
        {"param_groups": 2.5},
        {"param_groups": True},
        {"freeze_type": 3},
        {"freeze_p": -0.1},
        {"freeze_p": 1.1},
        {"freeze_p": float("nan")},
        {"freeze_p": "0.7"},
        {"total_steps": 0},
        {"seed": -1},
        {"groups": ()},
        {"groups": (("a",), ())},
        {"sequence": ()},
        {"sequence": (0, 10)},
        {"groups": (("a",),), "sequence": (1,)},
        {"seed": 2**32},
        {"freeze_type": True},
        {"freeze_type": 2.0},
        {"total_steps": 10**12},
        {"param_groups": 10**12},
        {"groups": 5},
        {"groups": ("ab", "cd")},
        {"groups": ((1,),)},
        {"sequence": 5},
    ],
)
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(ConfigError) as caught:
        FreezeConfig(**arguments)
    assert_three_lines(caught.value)


def test_a_block_that_no_run_comes_to_the_end_of_is_not_made():
    sequence = generate_freeze_index_sequence(3, CONTINUOUS, 1 - 1e-15, 100)
    np.testing.assert_array_equal(sequence, np.zeros(101))


def test_the_configuration_survives_json():
    config = FreezeConfig(groups=(("a", "b"), ("b",)), sequence=(0, 1), freeze_type=0)
    assert FreezeConfig.from_dict(ProgramConfig(grad_freeze=config).to_dict()["grad_freeze"]) == (
        config
    )
    with pytest.raises(ConfigError, match="freeze_prob"):
        FreezeConfig.from_dict({"freeze_prob": 1})
