"""Metrics by name, and those of users."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortboost.cli import options
from ortboost.core.errors import ConfigError, UsageError
from ortboost.training.metrics import (
    METRICS,
    Mean,
    Metric,
    get_metric,
    get_metrics,
    is_rising,
    perplexity_of_scores,
    strict,
)
from tests.support import assert_three_lines


@pytest.mark.parametrize("scores", [np.ones(2), np.ones((2, 1)), np.ones((2, 3))])
@pytest.mark.parametrize("stray", [-1, 7])
def test_what_is_no_class_is_refused_for_a_bare_model(scores, stray):
    metric = strict(get_metric("accuracy")).batch
    assert metric(scores, np.array([0, 1]))[1] == 2
    with pytest.raises(UsageError, match=f"The label {stray} is not a class") as info:
        metric(scores, np.array([0, stray]))
    assert "--ignore-index" in info.value.fix


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.integers(1, 7))
def test_a_mean_of_hits_does_not_depend_on_the_batches(hits, size):
    mean = Mean()
    for start in range(0, len(hits), size):
        batch = hits[start : start + size]
        mean.add_sum(float(sum(batch)), len(batch))
    assert mean.value == sum(hits) / len(hits)


def test_no_samples_no_mean():
    assert np.isnan(Mean().value)


def test_names():
    assert [get_metric(name).name for name in METRICS] == list(METRICS)
    assert [name for name in METRICS if get_metric(name).batch is None] == ["perplexity", "loss"]
    assert [get_metric(name).name for name in ("top5", "top-3", "top_12")] == [
        "top5",
        "top3",
        "top12",
    ]
    for name in ("acuracy", "top", "top0"):
        with pytest.raises(UsageError, match="Unknown metric"):
            get_metric(name)
    with pytest.raises(UsageError, match="did you mean 'accuracy'"):
        get_metric("acuracy")


def test_the_help_of_the_command_line_has_every_name():
    text = options.Metric.__metadata__[0].help
    assert sorted(text.removesuffix(" (repeatable).").split(", ")) == sorted(
        name for name in METRICS if name != "loss"
    )


def test_directions():
    rising = {name for name in METRICS if is_rising(name)}
    assert set(METRICS) - rising == {"mae", "mse", "perplexity", "loss"}
    for name in METRICS:
        assert is_rising(f"val_{name}") == get_metric(name).rising == is_rising(name)
    assert [is_rising(n) for n in ("val_top1", "val_stop", "train_loss")] == [True, False, False]


def test_a_metric_of_a_user_is_taken_as_it_is():
    own = Metric("largest", lambda scores, labels: scores.max(), max, rising=False)
    assert get_metric(own) is strict(own) is own
    assert own.result([own.contribution(np.array([1.0, 5.0]), np.zeros(2)), 3.0]) == 5.0
    assert math.isnan(own.result([]))


def test_a_mean_of_a_users_function_is_over_samples():
    own = Metric.mean("far", lambda scores, labels: np.abs(scores - labels).sum(axis=1))
    parts = [own.contribution(np.full((n, 2), n * 1.0), np.zeros((n, 2))) for n in (3, 1)]
    assert own.result(parts) == (3 * 6 + 2) / 4


def _raises(*arguments):
    raise ZeroDivisionError("by hand")


@pytest.mark.parametrize(
    ("metric", "place"),
    [
        (Metric("own", _raises, max), r"batch\(float64 \[2, 3\]"),
        (Metric("own", lambda scores, labels: 1, _raises), r"value\(the contributions"),
        (
            Metric("own", lambda scores, labels: 1, lambda parts: "high"),
            r"value\(the contributions",
        ),
        (Metric.mean("own", lambda scores, labels: scores), "2 samples"),
    ],
)
def test_a_metric_that_fails_is_named(metric, place):
    with pytest.raises(UsageError, match=r"own|shape") as info:
        metric.result([metric.contribution(np.ones((2, 3)), np.zeros(2))])
    assert_three_lines(info.value)
    assert re.search(place, info.value.where)


@pytest.mark.parametrize("fields", [{"name": ""}, {"name": 3}, {"name": "loss"}, {"batch": 1}])
def test_a_metric_is_checked(fields):
    good = {"name": "own", "batch": lambda scores, labels: 1, "value": max}
    with pytest.raises(ConfigError):
        Metric(**{**good, **fields})


def test_perplexity():
    metric = get_metric("perplexity")
    assert metric.result([(2.0, 4), (4.0, 2)]) == pytest.approx(math.e)
    assert metric.result([(1e6, 1)]) == math.inf


def test_perplexity_of_scores():
    """Of logits, of their probabilities, of one-hot labels; [N, C, d], in batches of any size."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 5, 3)) * 3
    classes = rng.integers(0, 5, (6, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    own = np.take_along_axis(shares, classes[:, None], axis=1)
    wanted = pytest.approx(np.exp(-np.log(own).mean()))
    one_hot = np.moveaxis(np.eye(5)[classes], -1, 1)
    for scores, labels, probabilities in (
        (logits, classes, False),
        (np.log(shares), classes, False),
        (shares, classes, True),
        (logits, one_hot, False),
    ):
        metric = perplexity_of_scores(probabilities=probabilities)
        parts = [metric.contribution(scores[i], labels[i]) for i in (slice(4), slice(4, 6))]
        assert metric.result(parts) == wanted
    never = perplexity_of_scores(probabilities=True)
    certain = np.array([[0.0, 1.0]])
    assert never.result([never.contribution(certain, np.array([1]))]) == 1
    assert never.result([never.contribution(certain, certain)]) == 1
    assert never.result([never.contribution(certain, np.array([0]))]) == math.inf
    with pytest.raises(UsageError, match="do not add up to 1"):
        never.contribution(np.array([[0.9, 0.9]]), np.array([0]))


def test_two_metrics_of_one_name_are_refused():
    own = Metric.mean("accuracy", lambda scores, labels: np.full(len(labels), 5.0))
    assert [metric.name for metric in get_metrics(["f1", own])] == ["f1", "accuracy"]
    for pair in (["accuracy", own], ["top5", "top-5"]):
        with pytest.raises(UsageError, match="Several metrics have the name") as info:
            get_metrics(pair)
        assert_three_lines(info.value)
