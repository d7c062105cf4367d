"""Which values feed an input, what is refused, and how values are converted."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ortboost.core.errors import FileError, UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.training.data import bind_arrays, open_source, values
from ortboost.training.data.values import convert
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

F16, F32, I64 = np.dtype("float16"), np.dtype("float32"), np.dtype("int64")
BF16 = np.dtype(ml_dtypes.bfloat16)
X = InputSpec("x", F32, ("N", 4))
LABELS = InputSpec("labels", I64, ("N",))
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_all_rows_are_looked_at_piece_by_piece(monkeypatch):
    """Labels of any size: those above 64 MiB were not checked, and failed during a run."""
    monkeypatch.setattr(values, "_PIECE_BYTES", 256)
    spec = TensorSpec("labels", I64, ("N",), classes=3)
    x, y = np.zeros((1000, 4), np.float32), np.zeros(1000, np.int64)
    y[987] = 3
    with pytest.raises(UsageError, match="The label 3") as caught:
        bind_arrays({"x": x, "y": y}, [X, spec], what="validation data")
    assert caught.value.where == "validation data: 'y', first in row 987"
    x[555, 2] = np.inf
    with pytest.raises(UsageError, match="NaN or infinite") as caught:
        bind_arrays({"x": x, "y": y % 3}, [X, spec])
    assert caught.value.where == "data: 'x', first in row 555"


def test_labels_of_a_loss_of_probabilities_are_from_0_to_1():
    """With -1 and 1, or 0 and 100, binary cross entropy fell without end, and said nothing."""
    spec = TensorSpec("labels", F32, ("N",), probabilities=True)
    assert TensorSpec.from_dict(spec.to_dict()) == spec
    for labels in ([0, 1.0005, 0.3], [True, False, True]):
        bind_arrays({"y": np.array(labels)}, [spec])
    for labels in ([1.0, -1.0, 1.0], [0, 100, 0], [-100.0, 1.0, 0.0]):
        with pytest.raises(UsageError, match="'y' are not probabilities") as caught:
            bind_arrays({"y": np.array(labels)}, [spec])
        assert_three_lines(caught.value)


def test_whole_numbers_that_are_surely_exact_are_accepted():
    tokens = InputSpec("tokens", I64, ("N",))
    for last in (np.float64(2**53 - 1), np.float32(2**24 - 1), np.float16(2047), BF16.type(255)):
        found = bind_arrays({"tokens": np.array([last])}, [tokens])["tokens"]
        assert convert(found, I64).tolist() == [int(last)]


def test_fractions_for_whole_numbers_that_are_no_labels():
    tokens = InputSpec("tokens", I64, ("N", 4))
    with pytest.raises(UsageError, match="fractions") as caught:
        bind_arrays({"tokens": DATA + 0.5}, [tokens])
    assert "label" not in caught.value.fix.lower()


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (np.array([0.0, np.nan, 1.0]), "NaN or infinite"),
        (np.array([0.5, 1.0, 2.0]), "fractions"),
        (np.array(["a", "b", "c"]), "cannot feed"),
        (np.array([0, 1, 2], complex), "cannot feed"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "do not fit into int64"),
        (np.array([1.0, 2.0, 1e300]), "do not fit into int64"),
        (np.array([1.0, 2.0, 2.0**63]), "do not fit into int64"),
        (np.array([1.0, 2.0, float(2**53 + 1)]), "may have rounded"),
        (np.array([1.0, 2.0, -(2.0**24)], np.float32), "may have rounded"),
        (np.array([0, 1]), "different numbers of samples"),
        (np.zeros(0, int), "no samples"),
        (np.array(1), "no samples"),
    ],
)
def test_bad_labels(labels, what):
    with pytest.raises(FileError, match=what) as caught:
        bind_arrays({"x": DATA, "labels": labels}, [X, LABELS], path="d.npz")
    assert "d.npz" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_the_row_of_a_nan_is_named():
    data = DATA.copy()
    data[2, 1] = np.inf
    with pytest.raises(UsageError) as caught:
        bind_arrays({"x": data}, [X])
    assert "first in row 2" in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int32", "uint64", "float32", "float64", "bool"]
)
def test_labels_of_any_whole_dtype_fit(dtype):
    labels = np.array([0, 1, 1]).astype(dtype)
    bound = bind_arrays({"x": DATA, "y": labels}, [X, LABELS])["labels"]
    converted = convert(bound, LABELS.dtype)
    assert converted.dtype == I64
    assert converted.tolist() == [0, 1, 1]


def test_convert():
    pixels = convert(np.arange(256, dtype=np.uint8), F32)
    np.testing.assert_array_equal(pixels, np.arange(256, dtype=np.float32) / np.float32(255))
    assert convert(np.ones(2), F32).dtype == F32
    assert convert(np.array([3], np.int8), F32).tolist() == [3.0]
    assert convert(np.array([200], np.uint8), I64).tolist() == [200]
    assert convert(np.arange(4).reshape(2, 2).T, I64).flags.c_contiguous
    same = np.ones(3, np.float32)
    assert convert(same, F32) is same
    assert convert(np.array(1.0), F32).shape == ()
    assert convert(np.array([0, 255], np.uint8), BF16).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("dtype", [F16, F32, BF16])
def test_byte_labels_for_a_float_input_are_refused(dtype, batches):
    """They were divided by 255 as if they were pixels."""
    labels = np.array([0, 1, 1], np.uint8)
    data = [(DATA, labels)] if batches else {"x": DATA, "y": labels}
    with pytest.raises(UsageError, match="are bytes") as caught:
        list(open_source(data, [X, InputSpec("labels", dtype, ("N",))], "train", 3, None).epoch(0))
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("have", "number", "want"),
    [("f8", 1e39, F32), ("f8", -1e39, F32), ("i8", 1e5, F16), ("f4", 1e5, F16), (BF16, 1e5, F16)],
)
def test_numbers_beyond_the_range_of_the_input_are_refused(have, number, want):
    data = np.ones((3, 4)).astype(have)
    data[1, 2] = number
    with pytest.raises(UsageError, match=f"too large for {want}") as caught:
        bind_arrays({"x": data}, [InputSpec("x", want, ("N", 4))])
    assert caught.value.where == "data: 'x', first in row 1"
    bind_arrays({"x": data}, [InputSpec("x", np.dtype("f8"), ("N", 4))])


def test_samples_without_values_have_no_faults():
    wide = InputSpec("x", F32, ("N", "M"))
    assert bind_arrays({"x": np.zeros((3, 0))}, [wide])["x"].shape == (3, 0)


def test_bfloat16_arrays_are_searched_and_identified():
    data = np.ones((3, 4), BF16)
    source = open_source({"x": data}, [X], "train", 3, None)
    assert next(source.epoch(0))["x"].dtype == F32
    other = open_source({"x": data * 2}, [X], "train", 3, None)
    assert source.fingerprint() != other.fingerprint()
    data[2, 1] = np.nan
    with pytest.raises(UsageError, match="NaN or infinite"):
        open_source({"x": data}, [X], "train", 3, None)
