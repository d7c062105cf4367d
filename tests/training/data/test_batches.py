"""Padding and static batch sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.training.data import pad_batch, static_batch
from ortboost.training.data.batches import check_batch_size
from ortboost.training.protocols import InputSpec


def spec(name, *shape):
    return InputSpec(name, np.dtype("float32"), shape)


def test_padding_repeats_the_last_sample_and_masks_it():
    batch = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([5, 6], np.int32)}
    padded, valid = pad_batch(batch, 4)
    assert padded["x"].tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    assert padded["y"].tolist() == [5, 6, 6, 6]
    assert padded["y"].dtype == np.int32
    assert valid.tolist() == [True, True, False, False]


def test_a_full_batch_is_unchanged_and_a_longer_one_refused():
    padded, valid = pad_batch({"x": np.arange(3)}, 3)
    assert padded["x"].tolist() == [0, 1, 2]
    assert valid.all()
    with pytest.raises(UsageError, match="4 samples, but the model has the fixed batch size 3"):
        pad_batch({"x": np.arange(4)}, 3)


def test_static_batch():
    assert static_batch([spec("x", "N", 3), spec("y", None)]) is None
    assert static_batch([spec("x", 8, 3), spec("y", "N")]) == 8
    assert static_batch([spec("rate")]) is None
    with pytest.raises(UsageError, match="different fixed batch sizes"):
        static_batch([spec("x", 8), spec("y", 4)])


def test_check_batch_size():
    check_batch_size([spec("x", "N")], 5)
    check_batch_size([spec("x", 5)], 5)
    with pytest.raises(UsageError, match="fixed to batches of 5, not 4"):
        check_batch_size([spec("x", 5)], 4)
