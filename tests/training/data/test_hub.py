"""Data sets of Hugging Face: the package itself if it is installed, and always a fake one."""

from __future__ import annotations

import importlib.util

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow

from ortboost.core.errors import OrtBoostError, UsageError
from ortboost.training.data import ArraySource, open_source
from ortboost.training.data.images import AugmentConfig, ImageConfig, parse_images
from ortboost.training.protocols import InputSpec
from tests.support import assert_same_bits, assert_three_lines

N = 12
VECTOR = [
    InputSpec("x", np.dtype(np.float32), ("N", 3)),
    InputSpec("labels", np.dtype(np.int64), ("N",)),
]
IMAGES = [InputSpec("x", np.dtype(np.float32), ("N", 3, 8, 8)), VECTOR[1]]
PIXELS = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)
NAMES = ["ant", "bee", "cow", "dog"]


class Value:
    def __init__(self, dtype):
        self.dtype = dtype


class ClassLabel(Value):
    def __init__(self, names):
        super().__init__("int64")
        self.names = names


class List:
    def __init__(self, feature):
        self.feature = feature


class Image:
    pass


class ArrowFormat:
    def __init__(self, columns):
        self._columns = columns

    def __getitem__(self, rows):
        return pa.table({n: [values[i] for i in rows] for n, values in self._columns.items()})


class FakeDataset:
    """What is used of ``datasets.Dataset``, as version 5.2.0 does it."""

    def __init__(self, columns, features, how=None):
        self._columns, self.features, self._how = columns, features, how
        self.format = {"type": None, "columns": list(columns)}

    def with_transform(self, transform):
        other = FakeDataset(self._columns, self.features)
        other.format["type"], other._transform = "custom", transform
        return other

    def set_format(self, kind, columns):
        self.format = {"type": kind, "columns": columns}

    @property
    def column_names(self):
        return list(self._columns)

    def select_columns(self, names):
        chosen = {n: self._columns[n] for n in names}
        return FakeDataset(chosen, {n: self.features[n] for n in names})

    def with_format(self, kind, **how):
        if kind == "arrow":
            return ArrowFormat(self._columns)
        return FakeDataset(self._columns, self.features, how if kind else None)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key):
        if self.format["type"] == "custom":
            made = self._transform({name: [values[key]] for name, values in self._columns.items()})
            return {name: values[0] for name, values in made.items()}
        if isinstance(key, int):
            return {name: self._given(values[key]) for name, values in self._columns.items()}
        return {
            name: self._given([values[i] for i in key]) for name, values in self._columns.items()
        }

    def _given(self, value):
        return value if self._how is None else np.array(value, **self._how)


class FakeStream(FakeDataset):
    """What is used of ``datasets.IterableDataset``."""

    select_columns = __getitem__ = __len__ = None
    epochs = ()

    def __init__(self, columns, features=None, how=None):
        super().__init__(columns, features, how)
        del self.features

    def __getattribute__(self, name):
        if name in ("select_columns", "__getitem__", "__len__"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def with_format(self, kind):
        return self

    def __iter__(self):
        raise AssertionError("not sample by sample")

    def set_epoch(self, epoch):
        self.epochs = (*self.epochs, epoch)

    def iter(self, batch_size, drop_last_batch):
        for start in range(0, N, batch_size):
            if start + batch_size <= N or not drop_last_batch:
                yield {n: np.array(v[start : start + batch_size]) for n, v in self._columns.items()}


def columns():
    vectors = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
    return {
        "vector": vectors.tolist(),
        "label": [i % 4 for i in range(N)],
        "a": list(range(N)),
        "b": [i / 3 for i in range(N)],
        "c": [2.0 * i for i in range(N)],
        "image": [Pillow.fromarray(one) for one in PIXELS],
        "text": ["word"] * N,
    }


def fake(*names):
    kinds = {
        "vector": List(Value("float32")),
        "label": ClassLabel(NAMES),
        "a": Value("int64"),
        "b": Value("float64"),
        "c": Value("float32"),
        "image": Image(),
        "text": Value("string"),
    }
    every = columns()
    return FakeDataset({n: every[n] for n in names}, {n: kinds[n] for n in names})


def real(*names):
    import datasets as hf

    kinds = {
        "vector": hf.List(hf.Value("float32")),
        "label": hf.ClassLabel(names=NAMES),
        "a": hf.Value("int64"),
        "b": hf.Value("float64"),
        "c": hf.Value("float32"),
        "image": hf.Image(),
        "text": hf.Value("string"),
    }
    every = columns()
    features = hf.Features({name: kinds[name] for name in names})
    return hf.Dataset.from_dict({name: every[name] for name in names}, features=features)


installed = importlib.util.find_spec("datasets") is not None
needs = pytest.mark.skipif(not installed, reason="datasets is not installed")
both = pytest.mark.parametrize("make", [fake, pytest.param(real, marks=needs)])


def source(data, specs=VECTOR, mapping=None, **arguments):
    return open_source(data, specs, "train", 5, mapping, **arguments)


def joined(batches):
    batches = list(batches)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@both
def test_columns_feed_inputs(make):
    for names in (("vector", "label"), ("a", "label", "b", "c")):
        found = joined(source(make(*names)).epoch(0))
        assert found["labels"].tolist() == [i % 4 for i in range(N)]
        every = columns()
        wanted = every["vector"]
        if "vector" not in names:
            wanted = np.stack([every[n] for n in "abc"], axis=1)
        np.testing.assert_array_equal(found["x"], np.asarray(wanted, np.float32))
    found = source(make("vector", "a", "label"), mapping={"x": "vector", "labels": "a"})
    assert joined(found.epoch(0))["labels"].tolist() == list(range(N))


@both
def test_it_is_shuffled_split_and_told_from_others_as_arrays_are(make):
    shuffled = source(make("vector", "label"), shuffle=True, seed=3)
    assert isinstance(shuffled, ArraySource)
    arrays = {"x": np.asarray(columns()["vector"], np.float32), "labels": np.arange(N) % 4}
    expected = source(arrays, shuffle=True, seed=3).epoch(1)
    for batch, other in zip(shuffled.epoch(1), expected, strict=True):
        assert_same_bits(batch, other)
    again = source(make("vector", "label"), shuffle=True, seed=3)
    assert shuffled.fingerprint() == again.fingerprint()
    assert shuffled.split(0.25)[1].length == 3


@both
def test_a_transform_of_the_user_makes_the_samples(make):
    """Its columns were read instead, without a word."""

    def halves(batch):
        return {
            "x": [np.asarray(v, np.float32) / 2 for v in batch["vector"]],
            "labels": batch["label"],
        }

    for data in (make("vector", "label"), make("vector", "label", "text")):
        found = source(data.with_transform(halves), shuffle=True, seed=3)
        batches = joined(found.epoch(0))
        whole = joined(source(make("vector", "label"), shuffle=True, seed=3).epoch(0))
        np.testing.assert_array_equal(batches["x"] * 2, whole["x"])
        np.testing.assert_array_equal(batches["labels"], whole["labels"])


@both
def test_columns_that_the_format_leaves_out_are_left_out(make):
    data = make("vector", "label", "text")
    data.set_format("numpy", columns=["vector", "label"])
    assert joined(source(data).epoch(0))["labels"].tolist() == [i % 4 for i in range(N)]


@both
def test_images_are_decoded_when_they_are_needed(make):
    found = source(make("image", "label"), IMAGES, images=parse_images("normalize=0.5/0.5"))
    pixels = (PIXELS.transpose(0, 3, 1, 2) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    np.testing.assert_array_equal(joined(found.epoch(0))["x"], pixels)
    assert found.images.classes == tuple(NAMES)
    assert found.threads >= 1
    varied = source(make("image", "label"), IMAGES, augment=AugmentConfig(flip=1.0))
    np.testing.assert_array_equal(
        joined(varied.epoch(0))["x"][..., ::-1], PIXELS.transpose(0, 3, 1, 2) / np.float32(255)
    )
    assert varied.fingerprint() != found.fingerprint()


@both
def test_classes_of_another_training_are_refused(make):
    with pytest.raises(UsageError, match="differ from those of the training") as caught:
        source(make("image", "label"), IMAGES, images=ImageConfig(classes=("x", "y")))
    assert_three_lines(caught.value)


@both
@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("text", "label"), "'text' is not numeric"),
        (("image", "a", "label"), "has arrays, which cannot be combined"),
        (("vector",), "No array feeds the input 'labels'"),
    ],
)
def test_columns_that_are_no_input(make, names, what):
    with pytest.raises(OrtBoostError, match=what) as caught:
        source(make(*names))
    assert_three_lines(caught.value)


@both
def test_splits_are_chosen_by_name(make):
    data = {"train": make("vector", "label"), "validation": make("a", "label", "b", "c")}
    assert open_source(data, VECTOR, "train", N, None).length == N
    found = next(open_source(data, VECTOR, "test", N, None).epoch(0))
    assert found["x"][:, 0].tolist() == list(range(N))
    with pytest.raises(UsageError, match="no split 'train'") as caught:
        open_source({"test": make("vector", "label")}, VECTOR, "train", N, None)
    assert_three_lines(caught.value)


@both
@pytest.mark.parametrize("nested", [False, True])
def test_an_integer_without_a_value_is_told(make, nested):
    """``datasets`` made an arbitrary integer of it."""
    cells = columns()["label"]
    cells[7] = None
    if nested:
        cells = [[cell] for cell in cells]
    data = make("vector", "label")
    if make is fake:
        data._columns["label"] = cells
        data.features["label"] = List(Value("int64")) if nested else Value("int64")
    else:
        import datasets as hf

        kind = hf.List(hf.Value("int64")) if nested else hf.Value("int64")
        data = data.remove_columns("label").add_column("label", cells, feature=kind)
    with pytest.raises(UsageError, match="without a value") as caught:
        joined(source(data).epoch(0))
    assert "column 'label'" in caught.value.where
    assert_three_lines(caught.value)


def test_a_list_without_a_value_is_told():
    data = fake("vector", "label")
    data._columns["vector"][7] = [1.0, 2.0]
    with pytest.raises((UsageError, ValueError)):
        joined(source(data).epoch(0))


@pytest.mark.parametrize("make", [FakeStream, pytest.param(None, marks=needs)])
def test_a_stream_is_read_in_batches(make):
    every = {name: columns()[name] for name in ("vector", "label")}
    stream = make(every) if make else real("vector", "label").to_iterable_dataset()
    found = source(stream)
    for epoch in (0, 1):
        batches = joined(found.epoch(epoch))
        np.testing.assert_array_equal(batches["x"], np.asarray(every["vector"], np.float32))
    if make:
        assert stream.epochs == (0, 1)
    assert [len(b["x"]) for b in source(stream, drop_last=True).epoch(0)] == [5, 5]
