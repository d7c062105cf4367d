"""Skipped steps: events of the scale, diagnoses, and whether they look well."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.errors import ModelError, UsageError
from ortboost.core.field_types import read_config, write_config
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.training import EventLog, TrainConfig, Trainer
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.data.sources import ArraySource
from ortboost.training.logs import read_log
from ortboost.training.overflow import SkipHistory, diagnosis_due, first_scale, scale_change
from ortboost.training.progress import QuietProgress
from ortboost.training.run_state import RunState
from ortboost.training.schedules import Constant
from ortboost.training.summary import health


class Screen(QuietProgress):
    def __init__(self):
        super().__init__(None)
        self.lines = []

    def message(self, text):
        self.lines.append(text)


class Found:
    def __str__(self):
        return "first in forward: 'error'"

    def to_dict(self):
        return {"text": str(self), "findings": [], "share": float("inf")}


class Diagnosing(LinearStepper):
    """Tells what it was asked to diagnose."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.asked, self.watched, self.fails = [], False, False

    def watch(self):
        self.watched = True

    def diagnose(self, feeds, hyper, *, seed):
        assert self.watched
        assert seed == self.seeds[-1], "the diagnosis must repeat the step that failed"
        assert hyper["learning_rate"] == self.rates[-1]
        self.asked.append(self.scale.cur_iter - 1)
        if self.fails:
            raise ModelError("No memory.", where="here", fix="Buy some.")
        return Found()


def fit(stepper, tmp_path, *, resume=False, screen=None, steps=40, **settings):
    config = TrainConfig(
        epochs=99,
        max_steps=steps,
        learning_rate=Constant(0.05),
        loss_scale=stepper.config,
        **settings,
    )
    trainer = Trainer(
        stepper,
        LinearEvaluator(stepper),
        config,
        store=CheckpointStore(tmp_path / "c"),
        log=EventLog(tmp_path / "log.jsonl"),
        progress=screen,
    )
    return trainer.fit(ArraySource(make_data(), 10, inputs=stepper.inputs), resume=resume)


def events(tmp_path, kind):
    return [event for event in read_log(tmp_path / "log.jsonl") if event["event"] == kind]


# ---- the scale -----------------------------------------------------------------------------------


def test_every_change_of_the_scale_is_an_event(tmp_path):
    config = DynamicScaleConfig(init_scale=4.0, scale_window=3, min_scale=1.0)
    bad = {1, 2, 3, 10}
    fit(LinearStepper(config, overflow=lambda step: step in bad), tmp_path, steps=12)
    found = [(e["step"], e["change"], e["before"], e["after"]) for e in events(tmp_path, "scale")]
    assert found == [
        (1, "shrink", 4.0, 2.0),
        (2, "shrink", 2.0, 1.0),
        (3, "minimum", 1.0, 1.0),
        (6, "grow", 1.0, 2.0),
        (9, "grow", 2.0, 4.0),
        (10, "shrink", 4.0, 2.0),
    ]


@pytest.mark.parametrize("scale", [FixedScaleConfig(8.0), NO_SCALE])
def test_a_scale_that_cannot_change_has_no_events(scale, tmp_path):
    fit(LinearStepper(scale, overflow=lambda step: step == 2), tmp_path, steps=5)
    assert events(tmp_path, "scale") == []


def test_the_first_scale_is_that_of_the_graph():
    assert first_scale(DynamicScaleConfig(init_scale=1.7e38, max_scale=None)) == float(
        np.float32(1.7e38)
    )
    assert first_scale(FixedScaleConfig(3.0)) == 3.0
    assert first_scale(NO_SCALE) == 1.0
    assert scale_change(1.0, 1.0, False, DynamicScaleConfig()) is None
    patient = DynamicScaleConfig(init_scale=8.0, hysteresis=2)
    assert scale_change(8.0, 8.0, True, patient) == "held"
    groups = GroupedScaleConfig(8.0, 2)
    assert first_scale(groups) == 8.0
    assert scale_change(8.0, 8.01, False, groups) is None
    assert scale_change(8.0, 5.66, True, groups) == "shrink"
    # A scale below its minimum is lifted by an overflow.
    assert scale_change(0.5, 1.0, True, DynamicScaleConfig(init_scale=0.5)) == "grow"


def test_a_resumed_run_knows_the_scale_it_had(tmp_path):
    config = DynamicScaleConfig(init_scale=4.0, scale_window=50)
    overflow = lambda step: step in (2, 6)  # noqa: E731
    fit(LinearStepper(config, overflow=overflow), tmp_path, steps=4)
    fit(LinearStepper(config, overflow=overflow), tmp_path, steps=8, resume=True)
    found = [(e["step"], e["before"], e["after"]) for e in events(tmp_path, "scale")]
    assert found == [(2, 4.0, 2.0), (6, 2.0, 1.0)]


# ---- diagnoses -----------------------------------------------------------------------------------


def test_diagnoses_become_rarer_and_end():
    assert [n for n in range(100) if diagnosis_due(n, 9)] == [1, 2, 4, 8, 16, 32, 64]
    assert [n for n in range(100) if diagnosis_due(n, 3)] == [1, 2, 4]
    assert not any(diagnosis_due(n, 0) for n in range(100))


def test_skipped_steps_are_diagnosed(tmp_path):
    config = DynamicScaleConfig(init_scale=2.0**20, scale_window=100)
    stepper, screen = Diagnosing(config, overflow=lambda step: step % 2 == 0), Screen()
    fit(stepper, tmp_path, steps=24, debug_overflow=3, screen=screen)
    assert stepper.asked == [2, 4, 8]  # the 1st, 2nd and 4th skip
    found = events(tmp_path, "diagnosis")
    assert [event["step"] for event in found] == [2, 4, 8]
    assert found[0]["text"] == "first in forward: 'error'"
    assert found[0]["share"] is None  # infinity is no JSON
    lines = [line for line in screen.lines if "overflow, first" in line]
    assert lines[0] == "step 2: overflow, first in forward: 'error'"
    assert len(lines) == 3


def test_nothing_is_asked_unless_it_is_wanted(tmp_path):
    stepper = Diagnosing(DynamicScaleConfig(init_scale=4.0), overflow=lambda step: step == 1)
    fit(stepper, tmp_path, steps=3)
    assert not stepper.watched
    assert stepper.asked == []


def test_a_resumed_run_does_not_begin_to_count_anew(tmp_path):
    config, overflow = (
        DynamicScaleConfig(init_scale=2.0**20, scale_window=100),
        lambda step: step <= 8,
    )
    fit(Diagnosing(config, overflow=overflow), tmp_path, steps=3, debug_overflow=4)
    later = Diagnosing(config, overflow=overflow)
    fit(later, tmp_path, steps=12, debug_overflow=4, resume=True)
    assert later.asked == [4, 8]


def test_a_failed_diagnosis_does_not_stop_the_training(tmp_path):
    stepper, screen = Diagnosing(DynamicScaleConfig(), overflow=lambda step: step == 1), Screen()
    stepper.fails = True
    assert fit(stepper, tmp_path, steps=5, debug_overflow=4, screen=screen).steps == 5
    assert "step 1: overflow, no diagnosis: No memory." in screen.lines
    assert events(tmp_path, "diagnosis") == []


def test_a_stepper_that_cannot_diagnose_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot diagnose overflows") as caught:
        fit(LinearStepper(), tmp_path, debug_overflow=1)
    assert caught.value.fix


# ---- health --------------------------------------------------------------------------------------


def state_of(outcomes, scale=64.0):
    """A run with these outcomes; True is a skip."""
    state = RunState(loss_scale=scale)
    for step, bad in enumerate(outcomes, 1):
        state.skips.add(step, bad)
    state.step, state.total_skips = len(outcomes), sum(outcomes)
    state.applied_steps = state.step - state.total_skips
    return state


GOOD, BAD = [False], [True]


@pytest.mark.parametrize(
    ("outcomes", "healthy", "hint"),
    [
        (GOOD * 50, True, "no step was skipped"),
        (BAD * 12 + GOOD * 100, True, "all within the first 12, while the scale settled"),
        (BAD * 12 + (GOOD * 99 + BAD) * 10, True, "12 within the first 12"),
        (BAD * 12 + (GOOD * 99 + BAD) * 10, True, "10 after, which is normal"),
        (BAD * 5 + GOOD * 5, True, "is settling"),
        (BAD * 20, False, "no scale has been found"),
        ((BAD + GOOD) * 100, False, "no scale has been found"),
        (GOOD * 30 + (GOOD * 9 + BAD) * 30, False, "which is many (9.1 %)"),
        (GOOD * 1000 + (GOOD * 20 + BAD) * 12, False, "increasingly often of late"),
        (BAD * 12 + GOOD * 3000 + (GOOD * 30 + BAD) * 70, False, "increasingly often of late"),
        ((GOOD * 49 + BAD) * 200, True, "which is normal"),  # as many as ever
        (GOOD * 9000 + (GOOD * 500 + BAD) * 10, True, "which is normal"),  # more, and very few
    ],
)
def test_health(outcomes, healthy, hint):
    well, line = health(state_of(outcomes))
    assert well is healthy, line
    assert line.startswith("healthy: " if healthy else "not healthy: ")
    assert hint in line
    assert "\n" not in line
    assert line.endswith("; scale 64")
    assert ("--debug-overflow" in line) is not healthy


def test_a_scale_that_cannot_change_finds_no_place():
    assert health(state_of(BAD * 2 + GOOD * 98), dynamic=False)[0]
    well, line = health(state_of(BAD * 12 + GOOD * 88), dynamic=False)
    assert not well
    assert "this scale cannot shrink" in line
    rising = GOOD * 1000 + (GOOD * 20 + BAD) * 12  # few in all
    well, line = health(state_of(rising), dynamic=False)
    assert not well
    assert "increasingly often of late" in line


@given(st.lists(st.booleans(), max_size=200), st.integers(0, 200))
def test_the_history_goes_on_after_json(outcomes, cut):
    whole = state_of(outcomes).skips
    first = state_of(outcomes[:cut]).skips
    second = read_config(SkipHistory, json.loads(json.dumps(write_config(first))))
    assert second == first
    for step, bad in enumerate(outcomes[cut:], min(cut, len(outcomes)) + 1):
        second.add(step, bad)
    assert second == whole
    assert whole.total == sum(outcomes)
    assert len(whole.recent) <= 64
    health(state_of(outcomes))  # has a line for every history


def test_a_checkpoint_without_history_is_judged_by_its_counts():
    old = state_of(BAD * 3 + GOOD * 97).to_dict()
    del old["skips"]
    well, line = health(RunState.from_dict(old))
    assert well
    assert "3 of 100 steps skipped" in line
