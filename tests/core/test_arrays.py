"""Conversion of tensors of other frameworks to arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.arrays import as_array, read_npy
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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"{'descr'", b"{'descr "),  # a text that does not end
        (b"(2, 3)", b"(2, \x073"),  # what no Python text holds
        (b"(2, 3)", b"9" * 6),
        (b"(2, 3)", b"(2,-3)"),
        (b"False", b"[[[[["),
        (b"'<f4'", b"'|O' "),
        (b"'<f4'", b"4    "),
        (b"NUMPY", b"NUMPX"),
    ],
)
def test_damaged_headers_are_value_errors(old, new, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    data = (tmp_path / "a.npy").read_bytes()
    assert old in data
    (tmp_path / "a.npy").write_bytes(data.replace(old, new))
    with pytest.raises(ValueError, match=r"\S"):
        read_npy(tmp_path / "a.npy")


def test_neither_archives_nor_cut_files_are_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    whole = (tmp_path / "a.npy").read_bytes()
    for data in ((tmp_path / "a.npz").read_bytes(), whole[:-1], whole[:7], b""):
        (tmp_path / "b.npy").write_bytes(data)
        with pytest.raises(ValueError, match=r"\S"):
            read_npy(tmp_path / "b.npy")
