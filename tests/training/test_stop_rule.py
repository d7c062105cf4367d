"""When to warn and when to give up."""

from __future__ import annotations

import json
import math

import pytest

from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.core.step_result import StepResult
from ortboost.training.config import TrainConfig
from ortboost.training.stop_rule import StopRule

DYNAMIC = DynamicScaleConfig(init_scale=8, min_scale=2)


def result(overflow, scale=1.0, loss=1.0, applied=1):
    return StepResult(loss, overflow, scale, applied, 0, 0)


def rule(scale, **options):
    return StopRule(TrainConfig(loss_scale=scale, **{"max_skips_at_min": 3, **options}))


@pytest.mark.parametrize(
    ("scale", "steps", "diverged"),
    [
        (DYNAMIC, [result(True, 2.0)] * 3, True),
        (DYNAMIC, [result(True, 4.0)] * 9, False),
        (DYNAMIC, [result(True, 2.0)] * 2 + [result(False, 2.0)] + [result(True, 2.0)] * 2, False),
        (DYNAMIC, [result(False, 2.0, loss=math.inf)] * 9, False),
        (DYNAMIC, [result(True, math.inf)] * 3, True),  # nothing brings it back
        (FixedScaleConfig(8), [result(True, 8.0)] * 3, True),
        (FixedScaleConfig(8), [result(True, 8.0)] * 2, False),
        (NO_SCALE, [result(True)] * 3, True),
        (NO_SCALE, [result(False, loss=math.nan)] * 3, True),
        (NO_SCALE, [result(False)] * 9, False),
    ],
)
def test_hopeless_steps_in_a_row(scale, steps, diverged):
    watch = rule(scale)
    for step, item in enumerate(steps, 1):
        assert not watch.diverged
        watch.observe(step, item)
    assert watch.diverged is diverged


def scales(watch, values, applied=1, start=1):
    warnings = []
    for step, value in enumerate(values, start):
        warnings.append(watch.observe(step, result(True, value, applied=applied)))
    return warnings


def test_it_warns_when_the_scale_shrinks_often_within_a_window():
    watch = rule(DynamicScaleConfig(), warn_halvings=3, warn_window=10)
    warnings = scales(watch, [64.0, 32.0, 32.0, 16.0, 8.0, 4.0])
    assert [warning is not None for warning in warnings] == [False] * 4 + [True, False]
    assert "shrank 3 times within 10 steps, to 8" in warnings[4]


def test_shrinking_slowly_or_in_the_beginning_is_no_news():
    slow = rule(DynamicScaleConfig(), warn_halvings=2, warn_window=3)
    assert not any(scales(slow, [64, 64, 32, 32, 32, 16, 16, 16, 8]))
    first = rule(DynamicScaleConfig(), warn_halvings=2, warn_window=50)
    assert not any(scales(first, [2.0**-i for i in range(20)], applied=0))


def test_a_restart_changes_no_decision():
    values = [64.0, 32.0, 16.0, 8.0, 4.0, 2.0]
    options = {"warn_halvings": 4, "warn_window": 10, "max_skips_at_min": 1}
    whole = rule(DYNAMIC, **options)
    expected = scales(whole, values)
    for cut in range(len(values) + 1):
        first, second = rule(DYNAMIC, **options), rule(DYNAMIC, **options)
        before = scales(first, values[:cut])
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + scales(second, values[cut:], start=cut + 1) == expected
        assert second.diverged is whole.diverged is True


def test_groups_are_given_up_when_any_scale_must_be_at_its_end():
    law = GroupedScaleConfig(16.0, 2, shrink=0.5, min_scale=1.0, max_scale=64.0)
    watch, steps = rule(law), 0
    while not watch.diverged:
        steps += 1
        watch.observe(steps, StepResult(1.0, True, 16.0, 0, steps, steps))
    assert steps == 6 + 3  # from 64 to 1, and three more
