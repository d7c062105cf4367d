"""Feeds whose samples are counted before they are checked."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.feeds import arrays_of, check_batch, refused_batch
from ortboost.runtime.part_weights import count_samples
from tests.support import assert_three_lines

X = TensorSpec("x", np.dtype("float32"), ("N", 2))
LABELS = TensorSpec("labels", np.dtype("int64"), ("N", 3), classes=3, ignored=-1, shifted=True)
INPUTS = (X, LABELS)


def test_lists_are_counted():
    feeds = {"x": [[0, 1], [2, 3]], "labels": [[0, -1, 2], [1, 1, -1]], "other": ["a"]}
    assert count_samples(INPUTS, arrays_of(feeds, INPUTS)) == (2, 2, 2)


@pytest.mark.parametrize("wrong", [{"x": 1.0}, {"labels": 1}, {"labels": [1, 2]}])
def test_a_wrong_rank_is_left_to_the_check(wrong):
    feeds = {"x": np.zeros((2, 2), np.float32), "labels": np.ones((2, 3), np.int64)}
    found = arrays_of({**feeds, **wrong}, INPUTS)
    assert count_samples(INPUTS, found)[0]
    with pytest.raises(UsageError, match="is needed") as caught:
        check_batch(found, INPUTS, broadcast=False)
    assert_three_lines(caught.value)


def test_an_error_without_a_message_is_named():
    error = refused_batch(MemoryError(), {})
    assert "MemoryError" in error.where
    assert_three_lines(error)


@pytest.mark.parametrize(("index", "named"), [(7, True), (9, False)])
def test_an_index_out_of_range_names_the_inputs_that_hold_it(index, named):
    said = f"indices element out of data bounds, idx={index} must be within the inclusive range "
    batch = {"x": np.full((2, 2), 7, np.float32), "ids": np.array([[1, 7]])}
    error = refused_batch(RuntimeError(f"{said}[-6,5]"), batch)
    assert_three_lines(error)
    assert error.fix.startswith("Indices from -6 to 5 are valid.")
    assert ("Check the values of 'ids'," in error.fix) == named
