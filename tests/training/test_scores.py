"""Comparisons of scores with labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortboost.core.errors import UsageError
from ortboost.training.scores import (
    absolute_error,
    accuracy,
    binary_accuracy,
    squared_error,
    top_k,
)


def test_accuracy_of_class_numbers_one_hot_and_positions():
    scores = np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0], [0.0, 0.0, 1.0]])
    labels = np.array([1, 1, 2])
    assert accuracy(scores, labels).tolist() == [1, 0, 1]
    assert accuracy(scores, labels[:, None]).tolist() == [1, 0, 1]
    assert accuracy(scores, np.eye(3)[labels]).tolist() == [1, 0, 1]
    grid = np.stack([scores, scores], axis=2)
    assert accuracy(grid, np.stack([labels, [0, 0, 2]], axis=1)).tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_binary_accuracy(shape):
    scores = np.array([-1.0, 2.0, 0.5, np.nan]).reshape(shape)
    assert accuracy(scores, np.array([0, 1, 0, 0])).tolist() == [1, 1, 0, 0]
    assert accuracy(scores, np.array([0, 1, 1, 0]), threshold=0.5).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("shape", [(6, 4), (6, 2, 2), (6, 1), (6,)])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_metrics_of_each_score(shape, threshold):
    random = np.random.default_rng(0)
    scores = random.normal(size=shape).astype(np.float32)
    binary = random.integers(0, 2, shape)
    found = binary_accuracy(scores, binary, threshold)

    def rows(values):
        return values.reshape(6, -1).mean(axis=1)

    assert found.tolist() == pytest.approx(rows((scores > threshold) == (binary == 1)))
    target = random.normal(size=shape)
    for function, values in (
        (absolute_error, abs(scores - target)),
        (squared_error, (scores - target) ** 2),
    ):
        assert function(scores, target).tolist() == pytest.approx(rows(values))
        assert function(scores, target).dtype == np.float64


def test_a_score_that_is_no_number_is_wrong_for_both_labels():
    for label in (0, 1):
        assert binary_accuracy(np.array([[np.nan, 1.0]]), np.array([[label, 1]])).tolist() == [0.5]


def test_nan_scores_are_wrong():
    assert accuracy(np.array([[np.nan, 0.0]]), np.array([0])).tolist() == [0]
    assert top_k(2)(np.array([[np.nan, 0.0]]), np.array([1])).tolist() == [0]


@pytest.mark.parametrize("stray", [-1, 3, -100])
def test_what_is_no_class_is_a_miss(stray):
    """numpy would read -1 as the last class."""
    scores = np.array([[0.1, 0.2, 0.7]])
    for function in (accuracy, top_k(2), top_k(3)):
        assert function(scores, np.array([stray])).tolist() == [0]


@given(st.integers(1, 6), st.integers(0, 1000))
def test_top_k_agrees_with_sorting(k, seed):
    random = np.random.default_rng(seed)
    scores = random.integers(0, 4, (7, 6)).astype(float)  # ties are common
    labels = random.integers(0, 6, 7)
    order = np.argsort(-scores, axis=1, kind="stable")
    expected = [float(label in row[:k]) for label, row in zip(labels, order, strict=True)]
    assert top_k(k)(scores, labels).tolist() == expected
    assert top_k(1)(scores, labels).tolist() == accuracy(scores, labels).tolist()


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (3,), ()])
@pytest.mark.parametrize(
    "function", [accuracy, top_k(2), binary_accuracy, absolute_error, squared_error]
)
def test_labels_that_do_not_fit_are_refused(shape, function):
    with pytest.raises(UsageError, match="does not match"):
        function(np.zeros(shape), np.zeros((3, 2)))


def test_several_classes_have_no_accuracy():
    """The first of them counted as the only one."""
    scores = np.array([[0.1, 0.9, 0.0], [0.8, 0.2, 0.0]])
    for row in ([1, 1, 0], [0, 0, 0]):
        for function in (accuracy, top_k(2)):
            with pytest.raises(UsageError, match="several classes, or none"):
                function(scores, np.array([[1, 0, 0], row]))
    soft = np.array([[0.5, 0.5, 0.0], [2.0, 0.0, 0.0]])  # ambiguous, or weighted: one class
    assert accuracy(scores, soft).tolist() == [0, 1]
