"""``nn.CrossEntropyLoss`` against its formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.core.errors import OrtBoostError
from tests.mindspore.nn import golden
from tests.support import assert_three_lines

RNG = np.random.default_rng(0)
WEIGHT = np.array([1, 0.5, 2, 0.25], np.float32)


def formula(logits, labels, weight, smoothing):
    """The value of each label, and what a mean is divided by."""
    weight = np.ones(4) if weight is None else weight.astype(np.float64)
    logs = np.moveaxis(logits.astype(np.float64), 1, -1)
    logs = logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    counts = labels != -100
    classes = np.where(counts, labels, 0)
    own = np.take_along_axis(logs, classes[..., None], axis=-1)[..., 0] * weight[classes]
    values = -(1 - smoothing) * own - smoothing / 4 * (logs * weight).sum(axis=-1)
    return values * counts, (weight[classes] * counts).sum()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rest", [(), (3,)])
def test_value_and_gradient(reduction, weight, smoothing, rest):
    logits = RNG.normal(size=(6, 4, *rest)).astype(np.float32)
    labels = RNG.integers(0, 4, (6, *rest)).astype(np.int32)
    labels.flat[::5] = -100
    values, count = formula(logits, labels, weight, smoothing)
    wanted = {"mean": values.sum() / count, "sum": values.sum(), "none": values}[reduction]
    loss = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
    np.testing.assert_allclose(loss(logits, labels), wanted, rtol=2e-6, atol=2e-6)
    if rest:
        return
    net = golden.shifted_input(logits)
    (bias,) = net.trainable_params()
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.SGD([bias], learning_rate=1.0))
    shown = step(np.zeros_like(logits), labels)
    np.testing.assert_allclose(shown, wanted, rtol=2e-6, atol=2e-6)
    moved = (logits - bias.asnumpy()).astype(np.float64)
    direction = RNG.normal(size=logits.shape)
    near = [
        formula(logits + sign * 1e-5 * direction, labels, weight, smoothing)[0].sum()
        for sign in (1, -1)
    ]
    slope = (near[0] - near[1]) / 2e-5 / (count if reduction == "mean" else 1)
    assert (moved * direction).sum() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_wrong_labels_and_arguments_are_refused():
    logits = np.zeros((2, 4), np.float32)
    for call in (
        lambda: nn.CrossEntropyLoss()(logits, np.array([0, 4])),
        lambda: nn.CrossEntropyLoss()(logits, np.array([0, -1])),
        lambda: nn.CrossEntropyLoss()(logits, np.eye(4, dtype=np.float32)[:2]),
        lambda: nn.CrossEntropyLoss(WEIGHT[:3])(logits, np.array([0, 1])),
        lambda: nn.CrossEntropyLoss(label_smoothing=1.0),
        lambda: nn.CrossEntropyLoss(reduction="avg"),
        lambda: nn.CrossEntropyLoss(ignore_index=1.5),
    ):
        with pytest.raises(OrtBoostError) as caught:
            call()
        assert_three_lines(caught.value)
    assert float(nn.CrossEntropyLoss(ignore_index=4)(logits, np.array([0, 4]))) == pytest.approx(
        np.log(4)
    )
