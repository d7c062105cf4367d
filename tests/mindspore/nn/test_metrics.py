from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.mindspore.nn.metrics import get_metrics, names

SCORES = np.array([[0.1, 0.5, 0.4], [0.6, 0.3, 0.1]], np.float32)


@pytest.mark.parametrize(
    ("metric", "batches", "value"),
    [
        (nn.Accuracy(), [(SCORES, np.array([1, 1]))], 0.5),
        (nn.Accuracy(), [(SCORES, np.eye(3)[[1, 0]])], 1.0),
        (nn.Accuracy(), [(SCORES, np.array([1, 0])), (SCORES[:1], np.array([0]))], 2 / 3),
        # MindSpore 2.10 gives these three: rows are counted, not elements
        (nn.MSE(), [(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) + 1)], 3.0),
        (nn.MAE(), [(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) + 1)], 3.0),
        # As in MindSpore: axes of length 1 do not matter, a multilabel sample is all or nothing.
        (nn.MSE(), [(np.arange(3.0)[:, None], np.arange(3.0) + 2)], 4.0),
        (nn.TopKCategoricalAccuracy(1), [(SCORES, np.array([[1], [1]]))], 0.5),
        (nn.Accuracy("multilabel"), [(SCORES > 0.35, np.array([[0, 1, 1], [1, 1, 0]]))], 0.5),
        (nn.MSE(), [(np.float32(1), np.float32(3)), (np.zeros([0, 3]), np.zeros([0, 3]))], 4.0),
        (nn.TopKCategoricalAccuracy(2), [(SCORES, np.array([2, 2]))], 0.5),
        (nn.Top1CategoricalAccuracy(), [(SCORES, np.array([1, 2]))], 0.5),
        (nn.Top5CategoricalAccuracy(), [(SCORES, np.array([1, 2]))], 1.0),
        (nn.Loss(), [(np.float32(2),), (np.array([3.0]),)], 2.5),
        (nn.Loss(), [(np.array([1.0, 2.0, 6.0]),), (np.array([1.0]),)], 2.0),
    ],
)
def test_values(metric, batches, value):
    for batch in batches:
        metric.update(*batch)
    assert metric.eval() == pytest.approx(value)
    metric.clear()
    with pytest.raises(RuntimeError, match="no samples"):
        metric.eval()


def test_a_call_measures_its_batch_alone():
    metric = nn.Accuracy()
    metric.update(SCORES, np.array([0, 1]))
    assert metric(SCORES, np.array([1, 1])) == 0.5
    assert metric.eval() == 0.5


def test_choosing():
    assert {"acc", "accuracy", "loss", "mse", "mae", "top_5_accuracy"} <= set(names())
    assert list(get_metrics({"loss", "acc"})) == ["acc", "loss"]
    assert get_metrics({"mine": nn.MSE()})["mine"].eval.__self__ is not None
    assert get_metrics(None) == {}
    assert nn.get_metric_fn("topk", 3).k == 3


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: nn.Accuracy("several"), TypeError),
        (lambda: nn.Accuracy("multilabel").update(SCORES, SCORES), ValueError),
        (lambda: nn.Accuracy("multilabel").update(SCORES > 1, np.array([0, 1])), ValueError),
        # There is only one class, so that any label would be right; and two classes in a row.
        (lambda: nn.Accuracy().update(SCORES[:, :1], np.array([[1], [0]])), ValueError),
        (lambda: nn.Accuracy().update(SCORES, np.array([[1, 1, 0], [0, 1, 0]])), ValueError),
        (lambda: nn.Accuracy().update(SCORES), ValueError),
        (lambda: nn.Accuracy().update(SCORES, np.array([1, 2, 3])), ValueError),
        (lambda: nn.MSE().update(SCORES, SCORES[:1]), ValueError),
        (lambda: nn.Loss().update(np.ones([2, 2])), ValueError),
        (lambda: nn.Loss().update(1.0, 2.0), ValueError),
        (lambda: nn.Accuracy().set_indexes(1), ValueError),
        (lambda: nn.Accuracy().set_indexes([0, "a"]), ValueError),
        (lambda: nn.TopKCategoricalAccuracy(0), ValueError),
        (lambda: get_metrics(["acc"]), TypeError),
    ],
)
def test_refusals(call, kind):
    with pytest.raises(kind):
        call()


def test_positions_are_averaged_and_no_number_is_wrong():
    """Scores [N, C, d]: each position counts, as in Accuracy; MindSpore takes [N, C] only."""
    scores = np.stack([SCORES, SCORES[::-1]], axis=2)  # [2, 3, 2]
    labels = np.array([[1, 2], [2, 2]])
    for metric, value in ((nn.Accuracy(), 1 / 4), (nn.TopKCategoricalAccuracy(2), 2 / 4)):
        metric.update(scores, labels)
        assert metric.eval() == value
    for metric in (nn.Accuracy(), nn.TopKCategoricalAccuracy(3)):
        metric.update(np.array([[np.nan, 1.0, 0.0], [0.0, 1.0, 0.5]]), np.array([1, 1]))
        assert metric.eval() == 0.5


def test_indexes_rearrange_the_inputs():
    """As in MindSpore: a metric that is called without a Model ignored them."""
    metric = nn.Accuracy().set_indexes([2, 0])
    metric.update(np.array([1, 1]), np.zeros(3), SCORES)
    assert metric.eval() == 0.5
    with pytest.raises(ValueError, match="2 outputs, but index 2"):
        metric.update(SCORES, np.array([1, 1]))

    class Own(nn.Metric):
        @nn.rearrange_inputs
        def update(self, *inputs):
            self.seen = inputs
            return len(inputs)

    own = Own().set_indexes([1, 0])
    assert own.update("a", "b", "c") == 2
    assert own.seen == ("b", "a")


def test_a_metric_of_ones_own_written_for_mindspore():
    class Share(nn.Metric):
        def __init__(self, least):
            super().__init__()
            self.least = least  # after the base class, before clear
            self.clear()

        def clear(self):
            self.above, self.count = self.least * 0, 0

        def update(self, *inputs):
            scores = self._convert_data(inputs[0])
            self.above += (scores > self.least).sum()
            self.count += scores.size

        def eval(self):
            return self.above / self.count

    metric = Share(0.5)
    for batch in ([0.1, 0.6], np.array([0.9, 0.8])):
        metric.update(batch)
    assert metric.eval() == 0.75
