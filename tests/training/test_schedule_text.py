"""The text form of schedules."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import ConfigError
from ortboost.training.schedule_text import SCHEDULE_FORMS, parse_schedule, schedule_text
from ortboost.training.schedules import (
    Constant,
    Cosine,
    LinearWarmup,
    MultiStep,
    PerStep,
    Polynomial,
    StepDecay,
)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("0.1", Constant(0.1)),
        (" 1e-3 ", Constant(0.001)),
        ("constant:0.1", Constant(0.1)),
        ("0.1,warmup=5", None),
        ("constant:0.1,warmup=5,warmup-factor=0", LinearWarmup(Constant(0.1), 5, 0.0)),
        ("cosine:0.1,steps=1000,warmup=50", LinearWarmup(Cosine(0.1, 1000), 50)),
        ("cosine:0.1,steps=1000,min=0.01", Cosine(0.1, 1000, 0.01)),
        ("linear:0.1,steps=9,min=0.01", Polynomial(0.1, 9, 0.01)),
        ("polynomial:0.1,steps=9,power=0.9", Polynomial(0.1, 9, power=0.9)),
        ("step:0.1,every=500,gamma=0.5", StepDecay(0.1, 500, 0.5)),
        ("multistep:0.1,at=5/8", MultiStep(0.1, (5, 8))),
        ("list:0.3/0.2, warmup=2", LinearWarmup(PerStep((0.3, 0.2)), 2)),
        ("cosine:0.30000000000000004,steps=12345678901", Cosine(0.1 + 0.2, 12345678901)),
    ],
)
def test_forms(text, schedule):
    if schedule is None:
        with pytest.raises(ConfigError, match=r"Unknown schedule '0\.1,warmup=5'"):
            parse_schedule(text)
    else:
        assert parse_schedule(text) == schedule
        assert parse_schedule(schedule_text(schedule)) == schedule


@pytest.mark.parametrize("rate", [0.5, np.float64(0.5), np.float32(0.5), 1])
def test_numbers(rate):
    assert parse_schedule(rate) == Constant(float(rate))


def test_every_documented_form_parses():
    for kind, text in SCHEDULE_FORMS.items():
        assert text.startswith(f"{kind}:")
        assert parse_schedule(text)(0) > 0


@pytest.mark.parametrize(
    ("kind", "schedule"), [("cosine", Cosine), ("linear", Polynomial), ("polynomial", Polynomial)]
)
def test_what_falls_ends_with_the_run(kind, schedule):
    assert parse_schedule(f"{kind}:0.1", total_steps=100) == schedule(0.1, 100)
    warm = parse_schedule(f"{kind}:0.1,warmup=20", total_steps=100)
    assert warm == LinearWarmup(schedule(0.1, 80), 20)
    assert warm(100) == pytest.approx(0.0)
    assert parse_schedule(f"{kind}:0.1,steps=7", total_steps=100) == schedule(0.1, 7)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("cosin:0.1,steps=5", "did you mean 'cosine'"),
        ("cosine:0.1,step=5", "did you mean 'steps'"),
        ("constant:0.1,every=5", "no option 'every'"),
        ("cosine:0.1", "'steps' is missing, since the data do not tell the length of the run"),
        ("step:0.1", "'every' is missing"),
        ("multistep:0.1,gamma=0.1", "'at' is missing"),
        ("multistep:0.1,at=5/x", "'at' has no valid value"),
        ("cosine:0.1,steps=many", "'steps' has no valid value"),
        ("cosine:fast,steps=5", "'fast' is not a number"),
        ("list:0.1/x", "'x' is not a number"),
        ("cosine:0.1,steps=5,steps=6", "'steps' is given twice"),
        ("0.1,warmup=10", "Unknown schedule"),
        ("constant:0.1,warmup-factor=0.5", "'warmup' is missing"),
        ("constant:0.1,warmup=-1", "'warmup' is -1; 0 or more"),
        ("cosine:,steps=5", "The rate is missing"),
        ("cosine", "The rate is missing"),
        ("cosine:warmup=5", "The rate is missing"),
        ("", "Unknown schedule ''"),
        ("-0.1", "'lr' is -0.1"),
    ],
)
def test_bad_texts_are_refused_in_three_lines(text, what):
    with pytest.raises(ConfigError, match=what) as caught:
        parse_schedule(text)
    assert len(str(caught.value).splitlines()) == 3
