"""Callbacks decide alike whether or not the run was interrupted."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ortboost.core.errors import ArgumentTypeError, ConfigError, UsageError
from ortboost.training.callbacks import (
    BestModel,
    Callback,
    EarlyStopping,
    Goal,
    RunView,
    as_callbacks,
)


def feed(callback, values, start=0):
    """Feed validation losses; the run view at the end and after which look it stopped."""
    decisions = []
    for index, value in enumerate(values):
        view = RunView(step=start + index)
        callback.on_validation_end(view, {"val_loss": value})
        decisions.append((view.stop_reason is not None, view.keep_best))
    return decisions


def test_goal():
    assert Goal("val_accuracy").rising
    assert Goal("val_top5").rising
    assert not Goal("val_loss").rising
    assert Goal("val_loss", mode="max").better(2.0, 1.0)
    goal = Goal("val_loss", min_delta=0.1)
    assert goal.better(1.0, None)
    assert not goal.better(0.95, 1.0)
    assert goal.better(0.85, 1.0)
    assert not goal.better(math.nan, None)
    assert not goal.better(math.nan, 1.0)
    assert not any(goal.better(value, None) for value in (math.inf, -math.inf))


def test_early_stopping_waits_for_its_patience():
    callback = EarlyStopping(patience=2)
    stops = [stop for stop, _ in feed(callback, [1.0, 0.9, 0.95, 0.8, 0.9, 0.81, 0.5])]
    assert stops == [False, False, False, False, False, True, False]


def test_early_stopping_names_the_best():
    callback = EarlyStopping(patience=1)
    view = RunView(step=9)
    feed(callback, [0.5], start=7)
    callback.on_validation_end(view, {"val_loss": math.nan})
    assert view.stop_reason == "early stop: no better val_loss than 0.5 (step 7) in 1 validation"


def test_early_stopping_over_nothing_but_nan_says_so():
    callback = EarlyStopping(patience=2)
    assert [stop for stop, _ in feed(callback, [math.nan] * 3)] == [False, True, True]
    view = RunView()
    callback.on_train_begin(view)
    assert view.stop_reason == "early stop: val_loss was NaN in all of 3 validations"


def test_best_model_asks_to_keep_improvements_only():
    assert [keep for _, keep in feed(BestModel(), [1.0, 2.0, 0.5, 0.5, math.nan, 0.4])] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]


losses = st.lists(st.sampled_from([0.1, 0.2, 0.3, math.nan]), max_size=15)


@example([math.nan] * 6, 6, EarlyStopping)
@given(losses, st.integers(0, 15), st.sampled_from([EarlyStopping, BestModel]))
def test_a_restart_changes_no_decision(values, cut, kind):
    whole = feed(kind(Goal(min_delta=0.05)), values)
    first, second = kind(Goal(min_delta=0.05)), kind(Goal(min_delta=0.05))
    before = feed(first, values[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + feed(second, values[cut:], start=cut) == whole


@pytest.mark.parametrize("kind", [BestModel, EarlyStopping])
def test_the_best_value_of_another_metric_does_not_count(kind):
    """A loss of 0.5 was the best accuracy of a run that was resumed with another metric."""
    first, second = kind(Goal("val_loss")), kind(Goal("val_accuracy"))
    first.on_validation_end(RunView(step=3), {"val_loss": 0.5})
    second.load_state_dict(first.state_dict())
    assert second.best is None
    second.on_validation_end(RunView(step=4), {"val_accuracy": 0.4})
    assert (second.best, second.best_step) == (0.4, 4)


def test_a_stopped_run_stops_again_unless_its_patience_was_raised():
    callback = EarlyStopping(patience=1)
    feed(callback, [1.0, 2.0])
    for patience, stops in ((1, True), (2, False)):
        again = EarlyStopping(patience=patience)
        again.load_state_dict(callback.state_dict())
        view = RunView()
        again.on_train_begin(view)
        assert (view.stop_reason is not None) is stops


def test_a_training_metric_is_watched_at_the_end_of_epochs():
    callback = BestModel(Goal("train_loss"))
    view = RunView(metrics={"train_loss": 1.0, "val_loss": 2.0})
    callback.on_validation_end(view, {"val_loss": 2.0})
    assert not view.keep_best
    callback.on_epoch_end(view, {"train_loss": 1.0})
    assert view.keep_best
    assert callback.best == 1.0


def test_an_unknown_metric_is_refused_after_an_epoch():
    callback = BestModel(Goal("val_acuracy"))
    view = RunView(metrics={"train_loss": 1.0, "val_accuracy": 0.5})
    callback.on_validation_end(view, {"val_accuracy": 0.5})
    with pytest.raises(UsageError, match="did you mean 'val_accuracy'"):
        callback.on_epoch_end(view, {"train_loss": 1.0})


def test_bad_settings():
    with pytest.raises(ConfigError, match="did you mean 'max'"):
        Goal(mode="maxi")
    with pytest.raises(ConfigError, match="min_delta"):
        Goal(min_delta=-1)
    with pytest.raises(ConfigError, match="patience"):
        EarlyStopping(patience=0)


def test_the_first_reason_to_stop_is_kept():
    view = RunView()
    view.stop("one")
    view.stop("two")
    assert view.stop_reason == "one"


def test_the_base_does_nothing_and_has_no_past():
    callback = Callback()
    assert callback.name == "Callback"
    assert callback.state_dict() == {}


class Foreign:
    """A callback of another API."""

    def __init__(self, own):
        self.own = own

    def to_trainer(self):
        return self.own


def test_callbacks_of_any_api_become_those_of_the_trainer():
    first, second = EarlyStopping(), BestModel()
    found = as_callbacks([first, Foreign(second)])
    assert found == [first, second]


def test_a_hook_that_is_never_called_is_refused():
    class Shown(Callback):
        on_screen = True

    class Count(Callback):
        def on_train_batch_end(self, run):
            pass

    assert as_callbacks([Shown()])
    with pytest.raises(ArgumentTypeError, match="no hook 'on_train_batch_end'") as info:
        as_callbacks([Count()])
    assert "on_train_end" in info.value.fix


@pytest.mark.parametrize("value", [EarlyStopping, Foreign, "early stopping", None])
def test_what_is_no_callback_is_refused(value):
    with pytest.raises(ArgumentTypeError, match="Not a callback"):
        as_callbacks([EarlyStopping(), value])
