"""Schedules: values from the literature's formulas, round trips, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import read_config, write_config
from ortboost.training.schedules import (
    Constant,
    Cosine,
    LinearWarmup,
    MultiStep,
    PerStep,
    Polynomial,
    Schedule,
    StepDecay,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "mindspore" / "schedules.npz"

rates = st.floats(0, 10, allow_nan=False)
plain = st.one_of(
    st.builds(Constant, rates),
    st.builds(PerStep, st.lists(rates, min_size=1, max_size=5)),
    st.builds(StepDecay, rates, st.integers(1, 50), st.floats(0, 1)),
    st.builds(
        MultiStep,
        rates,
        st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True).map(sorted),
        st.floats(0, 1),
    ),
    st.builds(lambda lr, n, f: Cosine(lr, n, lr * f), rates, st.integers(1, 99), st.floats(0, 1)),
    st.builds(
        lambda lr, n, f, power: Polynomial(lr, n, lr * f, power),
        rates,
        st.integers(1, 99),
        st.floats(0, 1),
        st.floats(0.1, 3),
    ),
)
schedules = st.one_of(plain, st.builds(LinearWarmup, plain, st.integers(0, 20), st.floats(0, 1)))


@given(schedules)
def test_json_round_trip(schedule):
    data = json.loads(json.dumps(write_config(schedule)))
    again = read_config(Schedule, data)
    assert again == schedule
    assert [again(step) for step in range(120)] == [schedule(step) for step in range(120)]


@given(schedules, st.integers(0, 10**9))
def test_a_rate_is_finite_and_not_negative(schedule, step):
    assert math.isfinite(schedule(step))
    assert schedule(step) >= 0


@given(rates, st.integers(1, 200), st.integers(0, 300))
def test_cosine_falls_and_is_point_symmetric(lr, total, step):
    schedule = Cosine(lr, total, lr / 4)
    assert schedule(step + 1) <= schedule(step) + 1e-12
    if step <= total:
        assert schedule(step) + schedule(total - step) == pytest.approx(lr + lr / 4)


def golden(name):
    with np.load(GOLDEN) as data:
        return data[name]


def test_cosine_and_warmup_match_mindspore():
    # CosineDecayLR(min_lr=0.01, max_lr=0.1, decay_steps=8); WarmUpLR(0.1, warmup_steps=5)
    cosine, warm = Cosine(0.1, 8, 0.01), LinearWarmup(Constant(0.1), 5, 0.0)
    np.testing.assert_allclose([cosine(i) for i in range(12)], golden("CosineDecayLR"), rtol=1e-5)
    np.testing.assert_allclose([warm(i) for i in range(12)], golden("WarmUpLR"), rtol=1e-6)


def test_polynomials_are_those_of_torch():
    """torch 2.13: `PolynomialLR(optimizer, 4, power)` of SGD with lr 0.1, power 1 and 0.9."""
    line = [0.1, 0.075, 0.05, 0.025, 0.0, 0.0]
    curve = [0.1, 0.07718895, 0.05358867, 0.02871746, 0.0, 0.0]
    assert [Polynomial(0.1, 4)(step) for step in range(6)] == pytest.approx(line)
    assert [Polynomial(0.1, 4, power=0.9)(step) for step in range(6)] == pytest.approx(curve)
    assert Polynomial(0.1, 4, min_lr=0.02)(2) == pytest.approx(0.06)


def test_step_decay_and_multi_step():
    # torch.optim.lr_scheduler.StepLR(step_size=3, gamma=0.5), MultiStepLR([2, 5], gamma=0.1)
    assert [StepDecay(1.0, 3, 0.5)(i) for i in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    found = [MultiStep(1.0, (2, 5), 0.1)(i) for i in range(7)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01])


def test_warmup_delays_the_schedule_behind_it():
    warm = LinearWarmup(StepDecay(1.0, 2, 0.5), steps=2, start_factor=0.5)
    assert [warm(i) for i in range(6)] == [0.5, 0.75, 1.0, 1.0, 0.5, 0.5]
    assert LinearWarmup(Constant(1.0), 0)(0) == 1.0


def test_per_step_holds_its_last_value():
    assert [PerStep([0.1, 0.2])(i) for i in (0, 1, 2, 99)] == [0.1, 0.2, 0.2, 0.2]


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: Constant(-1.0), "'lr' is -1"),
        (lambda: Constant(math.nan), "'lr' is nan"),
        (lambda: PerStep(()), "empty"),
        (lambda: PerStep((0.1, math.inf)), "'values' is inf"),
        (lambda: StepDecay(0.1, 0), "'every' is 0"),
        (lambda: MultiStep(0.1, (3, 2)), "are not increasing"),
        (lambda: MultiStep(0.1, (3, 3)), "are not increasing"),
        (lambda: MultiStep(0.1, (0, 3)), "are not increasing"),
        (lambda: MultiStep(0.1, ()), "are not increasing"),
        (lambda: Cosine(0.1, 0), "'total_steps' is 0"),
        (lambda: Cosine(0.1, 9, 0.2), "above 'lr'"),
        (lambda: LinearWarmup(Constant(0.1), -1), "'steps' is -1"),
        (lambda: LinearWarmup(Constant(0.1), 3, 1.5), "'start_factor' is 1.5"),
        (lambda: read_config(Schedule, {"kind": "cosin", "lr": 1}), "did you mean 'cosine'"),
        (lambda: read_config(Schedule, {"kind": "constant", "lrr": 1}), "did you mean 'lr'"),
        (lambda: read_config(Schedule, {"kind": "cosine", "lr": 1}), "'total_steps' is missing"),
        (lambda: read_config(Schedule, {}), "Unknown schedule ''"),
    ],
)
def test_bad_settings_are_refused(build, what):
    with pytest.raises(ConfigError, match=what):
        build()
