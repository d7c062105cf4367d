"""Bytes, which are divided by 255, and numbers of another range are not mixed."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.training.data import ArraySource
from ortboost.training.data.like_training import check_like_training
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

PIXELS = np.array([[0, 255], [7, 100]], np.uint8)
NUMBERS = PIXELS.astype(np.float32)


def source(array, dtype="float32"):
    return ArraySource({"x": array}, 2, inputs=[InputSpec("x", np.dtype(dtype), ("N", 2))])


@pytest.mark.parametrize(
    ("trained", "given", "words"),
    [
        (PIXELS, NUMBERS, "training data 'x' are bytes.* range from 0 to 255"),
        (NUMBERS, PIXELS, "validation data 'x' are bytes.* range from 0 to 255"),
        (PIXELS, -NUMBERS / 255, "training data 'x' are bytes.* range from -1 to"),
        (PIXELS, NUMBERS / 255, None),
        (NUMBERS / 255, PIXELS, None),
        (PIXELS, PIXELS, None),
        (NUMBERS, NUMBERS / 255, None),  # another range alone may be meant
    ],
)
def test_one_scale(trained, given, words):
    before = source(trained).fingerprint()
    if words is None:
        check_like_training(before, source(given), "validation data")
        return
    with pytest.raises(UsageError, match=words) as caught:
        check_like_training(before, source(given), "validation data")
    assert_three_lines(caught.value)


def test_bytes_for_integers_have_no_scale():
    check_like_training(
        source(PIXELS, "int64").fingerprint(), source(NUMBERS.astype(np.int32), "int64")
    )


def test_what_a_fingerprint_does_not_tell_is_accepted():
    check_like_training({}, source(PIXELS))
    check_like_training({"arrays": {"x": {"dtype": "|u1"}}}, source(NUMBERS))


def test_a_range_can_be_stored_as_json():
    """A NaN would differ from itself, and no run could be resumed."""
    assert source(np.array([[0, np.nan], [1, 2]], np.float32)).ranges == {}
    assert source(np.zeros([2, 0], np.float32)).ranges == {}
