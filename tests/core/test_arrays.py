"""Conversion of tensors of other frameworks to arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.arrays import as_array, as_dtype, read_npy
from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, UsageError
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
    "error", [TypeError("Got unsupported ScalarType BFloat16"), RuntimeError(), BufferError("no")]
)
def test_tensors_that_numpy_cannot_read_are_refused(error):
    class TorchLike:
        def numpy(self):
            raise error

    with pytest.raises(ArgumentTypeError, match="TorchLike cannot be converted") as caught:
        as_array(TorchLike(), "x")
    assert_three_lines(caught.value)


def test_masked_elements_are_refused():
    array = np.ma.array([1.0, 9e9], mask=[False, True])
    with pytest.raises(ArgumentValueError, match="masked") as caught:
        as_array(array, "x")
    assert_three_lines(caught.value)
    assert as_array(array[:1], "x").tolist() == [1]


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">i8"])
def test_the_bytes_are_in_the_order_of_the_machine(dtype):
    array = as_array(np.arange(3).astype(dtype), "x")
    assert array.dtype.isnative
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.7], "int64"),
        ([np.nan], "int64"),
        ([1e30], "int64"),
        ([-1], "uint8"),
        ([2**63], "int64"),
        ([2], "bool"),
        ([1e300], "float32"),
    ],
)
def test_what_a_type_cannot_hold_is_refused(value, dtype):
    with pytest.raises(ArgumentValueError, match=f"do not fit into {dtype}") as caught:
        as_dtype(value, np.dtype(dtype), "x")
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1.0, 2.0], "int64"), ([True], "uint8"), ([0.1, np.nan, np.inf], "float32"), (7, "float16")],
)
def test_what_a_type_can_hold_is_converted(value, dtype):
    found = as_dtype(value, np.dtype(dtype), "x")
    assert found.dtype == dtype
    np.testing.assert_allclose(found, value, rtol=1e-6)


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
