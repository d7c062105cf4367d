"""Data sets that give samples by number, as those of torch do."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import OrtBoostError
from ortboost.training.data import batch_length, open_source
from ortboost.training.data.images import AugmentConfig, ImageConfig
from ortboost.training.data.prefetch import work_ahead
from ortboost.training.protocols import InputSpec
from tests.support import assert_same_bits, assert_three_lines

N = 11
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)
SPECS = [
    InputSpec("x", np.dtype(np.float32), ("N", 3)),
    InputSpec("labels", np.dtype(np.int64), ("N",)),
]


class Samples:
    """A map-style data set; what was asked for is written down."""

    def __init__(self, make=lambda i: (X[i], i % 4)):
        self._make, self.asked = make, []

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        self.asked.append(index)
        return self._make(index)


def source(data, **arguments):
    return open_source(data, SPECS, "train", 4, None, **arguments)


@pytest.mark.parametrize(
    "make", [lambda i: (X[i], i % 4), lambda i: {"labels": i % 4, "x": X[i].tolist()}]
)
def test_batches_are_those_of_arrays(make):
    for how in ({}, {"shuffle": True, "seed": 2}, {"drop_last": True}):
        found = source(Samples(make), **how)
        wanted = list(source((X, np.arange(N) % 4), **how).epoch(1))
        assert found.steps_per_epoch == len(wanted)
        for batch, other in zip(found.epoch(1), wanted, strict=True):
            assert_same_bits(batch, other)
        for batch, other in zip(work_ahead(found.tasks(1), 3), wanted, strict=True):
            assert_same_bits(batch, other)


def test_what_was_seen_is_not_read_again():
    data = Samples()
    whole, rest = list(source(data).epoch(0)), list(source(Samples()).epoch(0, 2))
    assert_same_bits(whole[2], rest[0])
    data.asked.clear()
    list(source(data).epoch(0, 2))
    assert data.asked == [8, 9, 10]


def test_processes_share_a_batch():
    data = [Samples() for _ in range(4)]
    parts = [list(source(data[rank], part=(rank, 4)).epoch(0)) for rank in range(4)]
    assert [[batch["labels"].tolist() for batch in part] for part in parts] == [
        [[0], [0], []],
        [[1], [1], [0]],
        [[2], [2], [1]],
        [[3], [3], [2]],
    ]
    assert [batch_length(batch) for batch in parts[0]] == [4, 4, 3]
    assert parts[0][2]["x"].shape == (0, 3)
    assert data[3].asked == [3, 7, 10], "a process reads only its own samples"


def test_a_sample_may_be_one_array():
    found = open_source(Samples(lambda i: X[i]), SPECS[:1], "train", 4, None)
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in found.epoch(0)]), X)


def test_a_process_without_a_sample_has_one_to_take_the_shapes_from():
    class One(Samples):
        def __len__(self):
            return 1

    parts = [list(source(One(), part=(rank, 2)).epoch(0)) for rank in range(2)]
    assert [[batch["x"].shape for batch in part] for part in parts] == [[(0, 3)], [(1, 3)]]


def test_keys_with_other_names_are_mapped():
    mapping = {"x": "image", "labels": "digit"}
    samples = Samples(lambda i: {"image": X[i], "digit": i % 4, "x": 0})
    batches = [{"image": X[i : i + 4], "digit": np.arange(i, min(i + 4, N)) % 4} for i in (0, 4, 8)]
    for data in (samples, batches):
        found = open_source(data, SPECS, "train", 4, mapping)
        for batch, wanted in zip(
            found.epoch(0), source((X, np.arange(N) % 4)).epoch(0), strict=True
        ):
            assert_same_bits(batch, wanted)
        with pytest.raises(OrtBoostError, match="no input 'z'"):
            open_source(data, SPECS, "train", 4, {"z": "image"})


@pytest.mark.parametrize("data", [Samples(), [(X, np.arange(N) % 4)]])
def test_image_settings_of_batches_are_not_ignored_without_a_word(data, caplog):
    with pytest.raises(OrtBoostError, match="no images to augment") as caught:
        source(data, augment=AugmentConfig(flip=0.5))
    assert_three_lines(caught.value)
    source(data, images=ImageConfig())
    assert "no images: the image settings" in caplog.text


def test_only_the_keys_of_inputs_are_read():
    data = Samples(lambda i: {"x": X[i], "labels": 1, "file": f"{i}.png"})
    assert sorted(next(source(data).epoch(0))) == ["labels", "x"]


@pytest.mark.parametrize(
    "other", [lambda i: {"x": X[i]}, lambda i: (X[i],), lambda i: (X[i], 0, 0), lambda i: None]
)
def test_samples_of_other_forms_are_told(other):
    for usual in (lambda i: (X[i], 0), lambda i: {"x": X[i], "labels": 0}):
        data = Samples(lambda i, usual=usual: (other if i == 2 else usual)(i))
        with pytest.raises(OrtBoostError, match="differ in form") as caught:
            next(source(data).epoch(0))
        assert "data: epoch 0, batch 0: " in caught.value.where
        assert_three_lines(caught.value)


def test_samples_of_other_shapes_are_told():
    data = Samples(lambda i: (X[i][: 2 + i % 2], 0))
    with pytest.raises(OrtBoostError, match="differ in shape") as caught:
        next(source(data).epoch(0))
    assert "batch 0: part 0" in caught.value.where
    assert_three_lines(caught.value)


def test_samples_of_bytes_among_others_are_refused():
    data = Samples(lambda i: (X[i].astype(np.uint8 if i == 2 else np.float32), i % 4))
    with pytest.raises(OrtBoostError, match="Some samples of a batch are bytes") as caught:
        next(source(data).epoch(0))
    assert caught.value.where == "data: epoch 0, batch 0: part 0: float32, uint8"
    assert_three_lines(caught.value)
