"""Arrays, tensors and tables that are in memory already."""

import numpy as np
import pyarrow as pa
import pytest

from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, UsageError
from ortboost.training.data import open_source
from ortboost.training.data.given import given_arrays
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 2, 1])
INPUTS = [
    InputSpec("x", np.dtype("float32"), ("N", 3)),
    InputSpec("labels", np.dtype("int64"), ("N",)),
]


class Tensor:
    """A framework's tensor, like that of torch on a GPU without a working ``__array__``."""

    def __init__(self, array):
        self._array, self.shape = np.asarray(array), np.shape(array)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("it is on a device")

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self._array


class OnlyDlpack:
    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Table:
    """What is used of a pandas ``DataFrame``."""

    def __init__(self, **columns):
        self._columns = {name: np.asarray(values) for name, values in columns.items()}
        self.columns = list(columns)
        self.shape = (len(next(iter(self._columns.values()))), len(columns))

    def __getitem__(self, name):
        return self._columns[name]

    def __array__(self, dtype=None, copy=None):
        return np.stack(list(self._columns.values()), axis=1)


class Lazy:
    """What is used of a ``LazyFrame`` of polars."""

    collect_schema = None

    def collect(self):
        return TABLE


TABLE = Table(a=X[:, 0], b=X[:, 1], label=Y, c=X[:, 2])


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (Tensor(X), Tensor(Y)),
        (OnlyDlpack(X), OnlyDlpack(Y)),
        {"x": X.tolist(), "labels": Tensor(Y)},
        (X, Y.tolist()),
        (X.tolist(), Y),
        {"images": X, "y": Y},
        TABLE,
        (Table(a=X[:, 0], b=X[:, 1], c=X[:, 2]), Y),
        pa.table({"a": X[:, 0], "b": X[:, 1], "label": Y, "c": X[:, 2]}),
        Lazy(),
    ],
    ids=[
        "tuple",
        "list",
        "tensors",
        "dlpack",
        "by name",
        "array and list",
        "list and array",
        "usual names",
        "table",
        "table and array",
        "arrow",
        "lazy",
    ],
)
def test_a_batch_is_the_same_whatever_holds_the_data(data):
    (batch,) = open_source(data, INPUTS, "train", 4, None).epoch(0)
    np.testing.assert_array_equal(batch["x"], X)
    np.testing.assert_array_equal(batch["labels"], Y)
    assert (batch["x"].dtype, batch["labels"].dtype) == (np.float32, np.int64)


def test_the_label_column_may_be_named():
    table = Table(a=X[:, 0], b=X[:, 1], c=X[:, 2], digit=Y)
    found = open_source(table, INPUTS, "train", 4, {"labels": "digit"})
    np.testing.assert_array_equal(next(iter(found.epoch(0)))["labels"], Y)


def test_one_array_feeds_the_first_input():
    assert list(given_arrays(X, INPUTS)) == ["x"]


@pytest.mark.parametrize("data", [[(X, Y)], [{"x": X, "labels": Y}], lambda: iter([(X, Y)]), [], 3])
def test_batches_are_left_to_be_iterated(data):
    assert given_arrays(data, INPUTS) is None


@pytest.mark.parametrize(
    ("data", "kind", "what"),
    [
        ((X, Y, Y), UsageError, "3 arrays for 2 inputs"),
        (Table(a=Y, b=Y), UsageError, "No array feeds the input 'labels'"),
        (Table(x=Y, y=Y, z=Y), UsageError, "no input is left for z"),
        (Table(a=Y, name=["u"] * 4, y=Y), ArgumentTypeError, "column 'name'"),
        ((X, ["cat"] * 4), ArgumentTypeError, "values, not numbers"),
        ((X, iter(Y)), ArgumentTypeError, "not numbers"),
        ((X, None), ArgumentTypeError, "not numbers"),
    ],
)
def test_what_is_not_certain_is_refused(data, kind, what):
    with pytest.raises(kind, match=what) as info:
        given_arrays(data, INPUTS)
    assert_three_lines(info.value)


def test_columns_of_mixed_types_are_numbers():
    """A DataFrame of numbers and booleans is an array of objects."""

    class Mixed(Table):
        def __array__(self, dtype=None, copy=None):
            return super().__array__().astype(object)

    frame = Mixed(a=X[:, 0], b=X[:, 1] > 4, c=X[:, 2])
    for data in ((frame, Y), {"x": frame, "y": Y}):
        batch = next(open_source(data, INPUTS, "train", 4, None).epoch(0))
        assert batch["x"].tolist() == np.stack([X[:, 0], X[:, 1] > 4, X[:, 2]], axis=1).tolist()


def test_bytes_in_columns_are_numbers_and_no_pixels():
    values = (X[:, :3] + 100).astype(np.uint8)
    frame = Table(a=values[:, 0], b=values[:, 1], c=values[:, 2], y=Y)
    batch = next(open_source(frame, INPUTS, "train", 4, None).epoch(0))
    assert batch["x"].tolist() == values[:4].tolist()


def test_columns_with_the_same_name():
    frame = Table(a=X[:, 0], y=Y)
    frame.columns = ["a", "a", "y"]
    with pytest.raises(UsageError, match="Two columns have the same name") as caught:
        open_source(frame, INPUTS, "train", 4, None)
    assert_three_lines(caught.value)


def test_masked_values_are_refused():
    """The numbers under the mask were used."""
    x = np.ma.masked_equal(np.where(X == 4, -999, X), -999)
    with pytest.raises(ArgumentValueError, match="are masked") as caught:
        open_source({"x": x, "y": Y}, INPUTS, "train", 4, None)
    assert_three_lines(caught.value)
    open_source({"x": np.ma.array(X), "y": Y}, INPUTS, "train", 4, None)  # nothing is masked


def test_keys_that_are_no_text():
    with pytest.raises(UsageError, match="No array feeds the input 'x'") as caught:
        open_source({0: X, 1: Y}, INPUTS, "train", 4, None)
    assert_three_lines(caught.value)
