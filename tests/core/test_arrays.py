"""Conversion of tensors of other frameworks to arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.arrays import as_array
from ortboost.core.errors import ArgumentTypeError, UsageError
from tests.support import assert_three_lines


def test_tensors_of_other_frameworks_are_recognised_by_their_methods():
    class TorchLike:
        def detach(self):
            return self

        def cpu(self):
            return self

        def numpy(self):
            return np.ones(2)

    class MindSporeLike:
        def asnumpy(self):
            return np.zeros(2)

    assert as_array(TorchLike(), "x").tolist() == [1, 1]
    assert as_array(MindSporeLike(), "x").tolist() == [0, 0]


@pytest.mark.parametrize("data", ["text", None, [[1, 2], [3]], object()])
def test_what_holds_no_numbers_is_refused(data):
    with pytest.raises(ArgumentTypeError) as caught:
        as_array(data, "batch 3: 'x'")
    assert isinstance(caught.value, UsageError)
    assert caught.value.where.startswith("batch 3: 'x'")
    assert_three_lines(caught.value)
