from __future__ import annotations

import numpy as np
import pytest

from ortboost.mindspore.core import dtype as dtypes
from ortboost.mindspore.core.dtype import float16, float32, int32
from ortboost.mindspore.core.tensor import Tensor


def test_it_is_a_numpy_array_with_mindspores_names():
    array = np.ones([2, 3], np.float32)
    made = Tensor(array)
    assert isinstance(made, np.ndarray)
    assert made.asnumpy().base is not None
    assert type(made.asnumpy()) is np.ndarray
    assert np.shares_memory(made, array)
    assert type(made + 1) is Tensor
    assert float((made * 2).sum()) == 12


@pytest.mark.parametrize(
    ("data", "dtype", "want"),
    [
        (1.5, None, "float32"),
        ([1.0, 2.0], None, "float32"),
        (np.ones(2), None, "float64"),
        (3, None, "int64"),
        (True, None, "bool"),
        (1024, float32, "float32"),
        ([1, 2], int32, "int32"),
        (np.ones(2), float16, "float16"),
    ],
)
def test_dtypes(data, dtype, want):
    assert Tensor(data, dtype).dtype == np.dtype(want)


def test_dtype_names_are_numpys():
    for name in ("int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"):
        assert getattr(dtypes, name) == np.dtype(name)


@pytest.mark.parametrize("data", ["text", None, [[1, 2], [3]], object()])
def test_what_is_no_tensor(data):
    with pytest.raises(TypeError):
        Tensor(data)


def test_dtype_has_the_names_of_mindspore():
    from ortboost import dtype  # as on MindSpore's pages

    assert dtype.float32 == np.float32
    assert Tensor([1, 2], dtype.half).dtype == np.float16
    assert Tensor([1, 2], dtype.bfloat16).dtype.name == "bfloat16"
    assert [dtype.pytype_to_dtype(t) for t in (bool, int, float, np.float16)] == [
        np.bool_,
        np.int64,
        np.float64,
        np.float16,
    ]
    assert dtype.dtype_to_nptype(dtype.uint16) is np.uint16
    with pytest.raises(TypeError, match="not a numeric type"):
        dtype.pytype_to_dtype(str)
