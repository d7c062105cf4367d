"""The weights of the parts of a batch in sums over processes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.part_weights import Counts, PartWeights, count_samples

# All labels of the second part are ignored, the third has no samples. Labels weigh one half.
PARTS = [Counts(4, 3, 1.5), Counts(2, 0, 0.0), Counts(0, 0, 0.0)]
WHOLE = Counts(6, 3, 1.5)


def weights(*, reduction="mean", exchanges=False):
    ran = [bool(own.terms or (own.samples and exchanges)) for own in PARTS]
    return [
        PartWeights(own, r, WHOLE, sum(ran), WHOLE.terms, reduction, exchanges)
        for own, r in zip(PARTS, ran, strict=True)
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 0, 0]),
        ({"reduction": "sum"}, [1, 0, 0]),
        ({"exchanges": True}, [1, 1 / 1.5, 0]),  # the second has gradients of the first's loss
        ({"reduction": "sum", "exchanges": True}, [1, 1, 0]),
    ],
)
def test_gradients(settings, expected):
    assert [part.gradients for part in weights(**settings)] == pytest.approx(expected)


def test_means_and_statistics_are_of_those_that_ran():
    parts = weights(exchanges=True)
    assert [part.means for part in parts] == pytest.approx([1, 1 / 3, 0])
    assert [part.statistics for part in parts] == [0.5, 0.5, 0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_any_label_nothing_is_divided_by_zero(reduction):
    none = Counts(2, 0, 0.0), Counts(4, 0, 0.0)
    part = PartWeights(none[0], True, none[1], 2, 0, reduction, exchanges=False)
    assert part.in_server == part.gradients == part.means == 0
    assert part.shown("accuracy", np.float32(3)) == 0
    exchanging = replace(part, exchanges=True)
    assert exchanging.gradients == 1


def test_a_server_weighs_its_own_parts():
    counts = Counts(1, 1, 1.0), Counts(8, 8, 8.0)
    part = PartWeights(counts[0], True, counts[1], 8, 2, "mean", exchanges=False)
    assert part.gradients == part.in_server == 0.5
    assert replace(part, reduction="sum").gradients == 1  # a sum
    assert part.means == 0.125


@pytest.mark.parametrize(
    ("name", "reduction", "value", "expected"),
    [
        ("loss", "mean", 6.0, [6, 0, 0]),  # over the labels that count
        ("loss", "sum", 6.0, [6, 6, 6]),
        ("loss", "none", np.full(2, 6.0), [4, 2, 0]),  # one value per sample: their mean is shown
        ("accuracy", "sum", 6.0, [6, 0, 0]),
    ],
)
def test_what_is_shown(name, reduction, value, expected):
    found = [part.shown(name, np.asarray(value)) for part in weights(reduction=reduction)]
    assert found == pytest.approx(expected)


def test_class_weights_weigh_the_loss_and_not_the_metrics():
    own, whole = Counts(2, 2, 1.0), Counts(4, 4, 4.0)
    part = PartWeights(own, True, whole, 2, 4.0, "mean", exchanges=False)
    assert part.gradients == 0.25
    assert part.means == 0.5
    for name, expected in (("loss", 0.25), ("accuracy", 0.5)):
        assert part.shown(name, np.float32(1)) == expected


X = TensorSpec("x", np.dtype("float32"), ("N", 2))
LABELS = TensorSpec("labels", np.dtype("int64"), ("N", "S"))
IGNORING = replace(LABELS, classes=3, ignored=0)
ROWS = {"x": np.zeros((2, 2)), "labels": np.array([[0, 0, 1], [1, 0, 2]])}


@pytest.mark.parametrize(
    ("inputs", "feeds", "expected"),
    [
        ([X, LABELS], ROWS, (2, 2, 2)),
        ([X, IGNORING], ROWS, (2, 3, 3)),
        ([X, replace(IGNORING, shifted=True)], ROWS, (2, 2, 2)),  # the first column is no label
        ([X, replace(IGNORING, ignored=1, shifted=True)], ROWS, (2, 3, 3)),
        ([replace(IGNORING, shifted=True)], {"labels": np.array([1, 0, 2])}, (3, 2, 2)),
        ([X, replace(LABELS, weights=(0.5, 1, 3))], ROWS, (2, 2, 6.5)),
        ([X, replace(IGNORING, weights=(0.5, 1, 3))], ROWS, (2, 3, 5)),
        ([replace(X, batch_axis=1)], {"x": np.zeros((2, 5))}, (5, 5, 5)),
        ([replace(X, batch_axis=None), IGNORING], {"x": np.zeros((4, 2))}, (1, 1, 1)),
        ([X], {"x": np.zeros(())}, (1, 1, 1)),  # refused later
        ([X, IGNORING], {k: v[:0] for k, v in ROWS.items()}, (0, 0, 0)),
        ([X, IGNORING], {}, (0, 0, 0)),
    ],
)
def test_samples_labels_and_terms_are_counted(inputs, feeds, expected):
    assert count_samples(inputs, feeds) == expected
