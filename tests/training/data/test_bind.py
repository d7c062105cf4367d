"""Which array feeds which input, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import FileError, UsageError
from ortboost.program.catalogue import TensorSpec
from ortboost.training.data import bind_arrays
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

F32, I64 = np.dtype("float32"), np.dtype("int64")
X = InputSpec("x", F32, ("N", 4))
LABELS = InputSpec("labels", I64, ("N",))
DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
CLASSES = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("arrays", "split", "chosen"),
    [
        ({"x": 0, "labels": 0}, None, ("x", "labels")),
        ({"images": 0, "y": 0}, None, ("images", "y")),
        ({"Data": 0, "Target": 0}, None, ("Data", "Target")),
        ({"x": 0, "y": 0, "extra": 0}, None, ("x", "y")),
        ({"x_train": 0, "y_train": 0, "x_test": 0, "y_test": 0}, "train", ("x_train", "y_train")),
        ({"x_train": 0, "y_train": 0, "x_test": 0, "y_test": 0}, "test", ("x_test", "y_test")),
        ({"x_train": 0, "y_train": 0, "x_val": 0, "y_val": 0}, "test", ("x_val", "y_val")),
        ({"x": 0, "y": 0}, "test", ("x", "y")),
        ({"x": 0, "x_test": 0, "labels_test": 0}, "test", ("x_test", "labels_test")),
    ],
)
def test_names(arrays, split, chosen):
    values = {name: np.array([*CLASSES]) if i else DATA + i for name, i in arrays.items()}
    for index, name in enumerate(arrays):
        is_label = name.lower().split("_")[0] in ("y", "labels", "target")
        values[name] = CLASSES + index if is_label else DATA + index
    bound = bind_arrays(values, [X, LABELS], split=split)
    assert list(bound) == ["x", "labels"]
    assert bound["x"] is values[chosen[0]]
    assert bound["labels"] is values[chosen[1]]


@pytest.mark.parametrize(
    ("keys", "missing"),
    [(("x", "y", "x_test"), "y_test"), (("x", "y", "y_test"), "x_test"), (("x_test", "y_val"), "")],
)
def test_arrays_of_different_splits_are_not_mixed(keys, missing):
    """Of one length they were: test samples with the labels of the training."""
    arrays = {key: DATA if key.startswith("x") else CLASSES for key in keys}
    with pytest.raises(FileError, match="different parts of the data") as caught:
        bind_arrays(arrays, [X, LABELS], split="test", path="d.npz")
    assert missing in caught.value.fix
    assert_three_lines(caught.value)
    mapping = {"x": keys[0], "labels": keys[1]}
    assert list(bind_arrays(arrays, [X, LABELS], split="test", mapping=mapping)) == ["x", "labels"]


def test_one_array_may_serve_all_splits():
    arrays = {"x_test": DATA, "y": CLASSES}
    assert bind_arrays(arrays, [X, LABELS], split="test")["labels"] is CLASSES


def test_an_input_of_any_name_takes_the_usual_key_and_a_map_wins():
    pixels = InputSpec("input.1", F32, ("N", 4))
    arrays = {"x": DATA, "other": DATA + 1, "y": CLASSES}
    assert bind_arrays(arrays, [pixels, LABELS])["input.1"] is arrays["x"]
    mapped = bind_arrays(arrays, [pixels, LABELS], mapping={"input.1": "other"})
    assert mapped["input.1"] is arrays["other"]


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"y": "x"}, "The model has no input 'y'."),
        ({"x": "z"}, "The data has no array 'z'."),
    ],
)
def test_a_map_of_what_is_not_there(mapping, words):
    with pytest.raises(UsageError) as caught:
        bind_arrays({"x": DATA, "labels": CLASSES}, [X, LABELS], mapping=mapping)
    assert str(caught.value).splitlines()[0].endswith(words)
    assert caught.value.where == "map"
    assert_three_lines(caught.value)


def test_two_data_inputs_need_their_own_names():
    left, right = InputSpec("left", F32, ("N", 4)), InputSpec("right", F32, ("N", 4))
    assert list(bind_arrays({"right": DATA, "left": DATA}, [left, right])) == ["left", "right"]
    with pytest.raises(UsageError, match="No array feeds the input 'right'") as caught:
        bind_arrays({"left": DATA, "x": DATA}, [left, right])
    assert "--map right=" in caught.value.fix


def test_a_missing_array_lists_keys_and_inputs_of_the_file():
    with pytest.raises(FileError, match="No array feeds the input 'labels'") as caught:
        bind_arrays({"x": DATA, "klass": CLASSES}, [X, LABELS], path="d.npz")
    assert "d.npz: keys x, klass; inputs x, labels" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_an_input_that_all_samples_share_may_become_a_constant():
    """As the mean of Keras's Normalization, which tf2onnx leaves an input."""
    mean = TensorSpec("mean", F32, (1, 4), batch_axis=None)
    fix = missing({"x": DATA}, [X, mean])
    assert "the same for all samples" in fix
    assert fix.endswith("--input mean=VALUE")


def test_a_single_array_in_memory_was_to_be_a_pair():
    assert missing({"x": DATA}, [X, LABELS]) == "Give all arrays together: (x, labels)."


def missing(arrays, inputs, **more):
    with pytest.raises(UsageError, match="No array feeds") as caught:
        bind_arrays(arrays, inputs, **more)
    return caught.value.fix


def test_the_array_that_is_proposed_is_free():
    assert missing({"foo": DATA, "bar": CLASSES}, [X, LABELS]).endswith("--map x=foo")
    mapped = missing({"foo": DATA, "bar": CLASSES}, [X, LABELS], mapping={"x": "foo"})
    assert mapped.endswith("--map labels=bar")
    assert missing({"images": DATA, "bar": CLASSES}, [X, LABELS]).endswith("--map labels=bar")
    assert "--map" not in missing({"x": DATA}, [X, LABELS])
    assert "--map" not in missing({}, [X])


def test_a_label_that_is_no_class_is_found_before_the_first_step():
    spec = TensorSpec("labels", I64, ("N",), classes=3, ignored=-1)
    bind_arrays({"x": DATA, "y": np.array([0, 2, -1])}, [X, spec])
    with pytest.raises(FileError, match="The label 3 is not a class: the model has 3") as caught:
        bind_arrays({"x": DATA, "y": np.array([0, 2, 3])}, [X, spec], path="d.npz")
    assert caught.value.where == "d.npz: 'y', first in row 2"


@pytest.mark.parametrize(
    ("have", "dtype", "want", "fix"),
    [
        ((3,), I64, ("N", 4), "without --dense-labels"),
        (
            (3, 4),
            I64,
            ("N",),
            "array.argmax(axis=1), for probabilities convert with --dense-labels",
        ),
        ((3, 1), np.dtype("float32"), ("N", 4), "There must be a label for each score"),
    ],
)
def test_class_numbers_and_rows_of_them(have, dtype, want, fix):
    with pytest.raises(UsageError, match="does not have the shape") as caught:
        bind_arrays({"x": DATA, "y": np.zeros(have, int)}, [X, InputSpec("labels", dtype, want)])
    assert fix in caught.value.fix


def test_an_ambiguous_choice_is_refused():
    with pytest.raises(UsageError, match="Several arrays") as caught:
        bind_arrays({"x": DATA, "y": CLASSES, "targets": CLASSES}, [X, LABELS])
    assert "keys y, targets" in str(caught.value)


def test_a_wrong_map_or_split_is_refused():
    with pytest.raises(UsageError, match="no input 'z'"):
        bind_arrays({"x": DATA}, [X], mapping={"z": "x"})
    with pytest.raises(UsageError, match="no array 'img'"):
        bind_arrays({"images": DATA}, [X], mapping={"x": "img"})
    with pytest.raises(UsageError, match="did you mean 'train'"):
        bind_arrays({"x": DATA}, [X], split="trian")


@pytest.mark.parametrize(
    ("have", "want", "fitted"),
    [
        ((5, 28, 28), ("N", 1, 28, 28), (5, 1, 28, 28)),
        ((5, 28, 28, 1), ("N", 28, 28), (5, 28, 28)),
        ((5, 28, 28), ("N", 784), (5, 784)),
        ((5, 784), ("N", None), (5, 784)),
        ((5, 1), ("N",), (5,)),
        ((5, 3, 4), ("N", "c", 4), (5, 3, 4)),
        ((5, 1, 4), ("N", 1, 4), (5, 1, 4)),
        ((5,), ("N", 1), (5, 1)),
    ],
)
def test_shapes_that_fit(have, want, fitted):
    array = np.arange(np.prod(have), dtype=np.float32).reshape(have)
    bound = bind_arrays({"x": array}, [InputSpec("x", F32, want)])["x"]
    assert bound.shape == fitted
    assert np.shares_memory(bound, array)
    np.testing.assert_array_equal(bound.ravel(), array.ravel())


@pytest.mark.parametrize(
    ("have", "want", "fix"),
    [
        ((5, 32, 32, 3), ("N", 3, 32, 32), "channels-last"),
        ((5, 3, 32, 32), ("N", 32, 32, 3), "channels-first"),
        ((5, 28, 28), ("N", 14, 56), "Reshape"),
        ((5, 8), ("N", 4), "Reshape"),
        ((5, 8), (None, 4), "input [?, 4]"),
        ((5, 4, 2), ("N", 2, 4), "Reshape"),
    ],
)
def test_shapes_that_do_not_fit(have, want, fix):
    with pytest.raises(UsageError, match="does not have the shape") as caught:
        bind_arrays({"x": np.zeros(have, np.float32)}, [InputSpec("x", F32, want)])
    assert fix in str(caught.value)
