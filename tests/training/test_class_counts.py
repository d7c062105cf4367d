"""F1, precision, recall, IoU and AUC against scikit-learn (tools/golden/sklearn_metrics.py)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortboost.core.errors import ArgumentValueError
from ortboost.training.class_counts import auc, class_counts, f1, iou, precision, ranked, recall
from ortboost.training.metrics import get_metric
from tests.support import GOLDEN

with np.load(GOLDEN / "sklearn" / "metrics.npz") as _file:
    RECORDED = dict(_file)
NAMES = [name for name in RECORDED if not name.endswith(("scores", "labels"))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [60, 17])
def test_the_numbers_are_those_of_scikit_learn_in_any_batches(name, size):
    classes, metric = name.split("/")
    scores, labels = RECORDED[f"{classes}/scores"], RECORDED[f"{classes}/labels"]
    found = get_metric(metric)
    parts = [
        found.batch(scores[start : start + size], labels[start : start + size])
        for start in range(0, 60, size)
    ]
    assert found.value(parts) == pytest.approx(float(RECORDED[name]), abs=1e-15)


def test_positions_one_hot_labels_and_images_of_one_score():
    scores, labels = RECORDED["7/scores"], RECORDED["7/labels"]
    wanted = class_counts(scores, labels).tolist()
    grid = scores.reshape(6, 10, 7).swapaxes(1, 2)
    assert class_counts(grid, labels.reshape(6, 10)).tolist() == wanted
    assert class_counts(scores, np.eye(7)[labels]).tolist() == wanted
    scores, labels = RECORDED["1/scores"], RECORDED["1/labels"]
    wanted = class_counts(scores, labels).tolist()
    image = scores.reshape(2, 1, 5, 6)
    for shape in ((2, 1, 5, 6), (2, 5, 6)):
        assert class_counts(image, labels.reshape(shape)).tolist() == wanted
        assert auc([ranked(image, labels.reshape(shape))]) == auc([ranked(scores, labels)])


def test_probabilities_as_labels_of_one_score_are_rounded_as_for_accuracy():
    scores, labels = RECORDED["1/scores"], RECORDED["1/labels"]
    for soft in (np.where(labels, 0.9, 0.1), np.where(labels, 1.0005, -0.0005)):
        assert class_counts(scores, soft).tolist() == class_counts(scores, labels).tolist()
        assert auc([ranked(scores, soft)]) == auc([ranked(scores, labels)])


def test_the_threshold_of_probabilities():
    probabilities, labels = np.array([0.2, 0.7, 0.6]), np.array([0, 1, 0])
    assert class_counts(probabilities, labels, 0.5).tolist() == [[1], [2], [1]]
    assert get_metric("precision", 0.5).batch(probabilities, labels).tolist() == [[1], [2], [1]]


def test_what_is_no_class_is_predicted_only_and_nan_predicts_nothing():
    scores = np.array([[0.9, 0.1], [np.nan, 0.2], [0.3, 0.7]])
    assert class_counts(scores, np.array([-1, 1, 5])).tolist() == [[0, 0], [1, 1], [0, 1]]
    assert class_counts(np.array([np.nan, 1.0]), np.array([1, 1])).tolist() == [[1], [1], [2]]


def test_a_class_that_does_not_occur_is_not_averaged():
    scores, labels = RECORDED["7/scores"], RECORDED["7/labels"]
    more = np.pad(scores, ((0, 0), (0, 1)), constant_values=scores.min() - 1)
    for metric in (precision, recall, f1, iou):
        assert metric([class_counts(more, labels)]) == metric([class_counts(scores, labels)])


def test_nothing_to_count_is_zero():
    for metric in (precision, recall, f1, iou):
        assert metric([np.zeros((3, 1), int)]) == 0.0


def test_auc_needs_two_classes():
    assert math.isnan(auc([ranked(np.array([0.1, 0.2]), np.array([1, 1]))]))
    assert math.isnan(auc([ranked(np.array([0.1, np.nan]), np.array([0, 1]))]))
    with pytest.raises(ArgumentValueError, match="two classes"):
        ranked(np.zeros((4, 3)), np.zeros(4))


def test_labels_that_do_not_fit_are_refused():
    for scores in (np.zeros(3), np.zeros((3, 4)), np.zeros((3, 1))):
        with pytest.raises(ArgumentValueError, match="does not match"):
            class_counts(scores, np.zeros((3, 2)))
