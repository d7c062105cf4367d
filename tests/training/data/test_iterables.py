"""Iterables as sources: forms of batches, position, and faults of streams."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.training.data import IterableSource, open_source
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

SPECS = [
    InputSpec("x", np.dtype("float32"), ("N", 2)),
    InputSpec("labels", np.dtype("int64"), ("N",)),
]
ROWS = [(np.full((2, 2), i), np.array([i, i])) for i in range(3)]


@pytest.mark.parametrize("form", ["tuples", "lists", "dicts", "function", "extra keys"])
def test_iterables(form):
    data = {
        "tuples": ROWS,
        "lists": [list(row) for row in ROWS],
        "dicts": [{"labels": y, "x": x} for x, y in ROWS],
        "function": lambda: iter(ROWS),
        "extra keys": [{"labels": y, "x": x, "id": 1} for x, y in ROWS],
    }[form]
    source = IterableSource(data, SPECS)
    for _ in range(2):
        batches = list(source.epoch(0))
        assert [batch["labels"].tolist() for batch in batches] == [[0, 0], [1, 1], [2, 2]]
        assert batches[0]["x"].dtype == np.float32
    assert [b["labels"][0] for b in source.epoch(0, start=2)] == [2]
    assert source.steps_per_epoch == (None if form == "function" else 3)


class FakeTensor:
    """Behaves as a torch tensor that needs gradients and lives on a device."""

    def __init__(self, array, ready=0):
        self.array, self.ready = array, ready

    def detach(self):
        return FakeTensor(self.array, self.ready + 1)

    def cpu(self):
        return FakeTensor(self.array, self.ready + 1)

    def numpy(self):
        assert self.ready == 2, "torch refuses numpy() before detach() and cpu()"
        return self.array


def test_tensors_are_converted_without_torch():
    source = IterableSource([tuple(FakeTensor(part) for part in row) for row in ROWS], SPECS)
    assert [batch["x"][0, 0] for batch in source.epoch(0)] == [0.0, 1.0, 2.0]


def test_a_generator_lasts_one_epoch():
    source = IterableSource((row for row in ROWS), SPECS)
    assert len(list(source.epoch(0))) == 3
    with pytest.raises(UsageError, match="only once"):
        list(source.epoch(1))


def test_an_epoch_opens_the_data_once():
    # A DataLoader starts its workers and draws a seed each time.
    class Loader:
        opened = 0

        def __iter__(self):
            self.opened += 1
            return iter(ROWS)

    loader = Loader()
    source = IterableSource(loader, SPECS)
    for epoch in range(2):
        assert len(list(source.epoch(epoch))) == 3
        assert loader.opened == epoch + 1


@pytest.mark.parametrize(
    ("item", "what"),
    [
        ((np.zeros((2, 2)),), "no array for the input 'labels'"),
        ({"x": np.zeros((2, 2))}, "no array for the input 'labels'"),
        ((1, 2, 3), "3 arrays, but the model has 2 inputs"),
        (np.zeros((2, 2)), "not a dict or tuple"),
        (([[1, 2], [3]], [0, 1]), "differ in shape"),
        ((np.zeros((2, 2)), ["a", "b"]), "not numbers"),
        ((np.zeros((2, 2)), np.array(1)), "scalar"),
        ((np.zeros((2, 2)), np.zeros(3)), "different lengths"),
        ((np.zeros((0, 2)), np.zeros(0)), "no samples"),
        ((np.zeros((2, 2)), np.array([0.0, 0.7])), "has fractions"),
        ((np.zeros((2, 2)), np.array([0.0, np.nan])), "has NaN"),
        ((np.zeros((2, 2)), np.array([0, 2**63], np.uint64)), "do not fit into int64"),
    ],
)
def test_bad_batches(item, what):
    with pytest.raises(UsageError, match=what) as caught:
        list(IterableSource([ROWS[0], item], SPECS).epoch(4))
    assert "epoch 4, batch 1" in str(caught.value)


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(UsageError, match="cannot be iterated"):
        list(IterableSource(lambda: 3, SPECS).epoch(0))  # type: ignore[arg-type,return-value]


def test_a_batch_longer_than_a_fixed_axis_is_refused():
    fixed = [InputSpec("x", np.dtype("float32"), (2, 2))]
    with pytest.raises(UsageError, match="fixed to batches of 2, not 3"):
        list(IterableSource([(np.zeros((3, 2)),)], fixed).epoch(0))


# ---- faults of streams ------------------------------------------------------------------------


def labelled(labels):
    specs = [SPECS[0], TensorSpec("labels", np.dtype("int64"), ("N",), classes=3)]
    rows = [(np.ones((2, 2)), np.array(pair)) for pair in labels]
    return IterableSource(rows, specs, what="validation data")


def test_looking_at_a_stream_takes_nothing_from_it():
    source = IterableSource((row for row in ROWS), SPECS)
    source.look()
    assert [batch["labels"][0] for batch in source.epoch(0)] == [0, 1, 2]
    listed = IterableSource(ROWS, SPECS)
    listed.look()
    for _ in range(2):
        assert len(list(listed.epoch(0, start=1))) == 2
    IterableSource([], SPECS).look()


def test_a_label_that_is_no_class_is_told_with_batch_and_row():
    with pytest.raises(UsageError, match="The label 7 is not a class: the model has 3") as caught:
        labelled([(0, 7)]).look()
    assert caught.value.where == "validation data: batch 0: 'labels', first in row 1"
    source = labelled([(0, 1), (-1, 2)])
    source.look()
    with pytest.raises(UsageError, match="The label -1") as caught:
        list(source.epoch(0))
    assert caught.value.where == "validation data: epoch 0, batch 1: 'labels', first in row 0"


def test_a_first_batch_with_nan_is_refused():
    x = np.ones((2, 2))
    x[1] = np.nan
    with pytest.raises(UsageError, match="'x' has NaN") as caught:
        IterableSource([(x, np.zeros(2))], SPECS, what="validation data").look()
    assert caught.value.where == "validation data: batch 0: 'x', first in row 1"


def test_the_fingerprint_is_the_same_for_ever():
    """A change breaks the resuming of old runs."""
    assert IterableSource(ROWS, SPECS).fingerprint() == {"iterable": 3, "inputs": ["x", "labels"]}


def test_batches_of_bytes_among_others_are_refused():
    """Only those of bytes were divided by 255."""
    labels = np.zeros(2, np.int64)
    pixels = np.full((2, 2), 255, np.uint8)
    source = IterableSource([(pixels, labels), (pixels.astype(np.float32), labels)], SPECS)
    batches = source.epoch(0)
    assert next(batches)["x"].max() == 1
    with pytest.raises(UsageError, match="divided by 255, and others") as caught:
        next(batches)
    assert caught.value.where == "data: epoch 0, batch 1: 'x' is float32"
    # Labels are never pixels.
    whole = [(pixels, labels), (pixels, labels.astype(np.uint8))]
    assert len(list(IterableSource(whole, SPECS).epoch(0))) == 2


def test_a_source_of_ones_own_without_a_fingerprint_is_told():
    """It was an AttributeError in the middle of the preparations."""
    lacking = SimpleNamespace(epoch=lambda epoch, start=0: iter(()), steps_per_epoch=3)
    with pytest.raises(UsageError, match="lacks a method") as caught:
        open_source(lacking, [], "train", 4, None)
    assert "fingerprint()" in caught.value.fix
    assert_three_lines(caught.value)
