"""Sources of arrays: order, position, fingerprints, and parts that are held out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortboost.core.errors import UsageError
from ortboost.training.data import ArraySource, batch_length, checksums, sources
from ortboost.training.data.batches import Part
from ortboost.training.data.lazy import Blocks, LazyArray, as_array_like
from ortboost.training.protocols import InputSpec

SPECS = [
    InputSpec("x", np.dtype("float32"), ("N", 2)),
    InputSpec("labels", np.dtype("int64"), ("N",)),
]


def arrays(length):
    return {"x": np.arange(2 * length).reshape(length, 2), "labels": np.arange(length)}


sizes = st.tuples(st.integers(1, 40), st.integers(1, 12))


@given(sizes, st.booleans(), st.booleans(), st.integers(0, 2**40), st.integers(0, 5))
def test_every_epoch_is_a_cut_permutation_and_can_be_entered_anywhere(
    size, shuffle, drop_last, seed, epoch
):
    length, batch_size = size
    if drop_last and length < batch_size:
        return
    source = ArraySource(
        arrays(length), batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    batches = [batch["labels"].tolist() for batch in source.epoch(epoch)]
    assert len(batches) == source.steps_per_epoch
    assert source.smallest_batch == min(map(len, batches))
    seen = [label for batch in batches for label in batch]
    whole = length - length % batch_size if drop_last else length
    assert len(seen) == whole
    assert len(set(seen)) == whole
    assert all(len(batch) == batch_size for batch in batches[:-1])
    if not shuffle:
        assert seen == list(range(whole))
    for start in range(len(batches) + 2):
        late = [batch["labels"].tolist() for batch in source.epoch(epoch, start)]
        assert late == batches[start:]


def test_arrays_stay_together():
    source = ArraySource(arrays(20), 6, shuffle=True, seed=1)
    for batch in source.epoch(3):
        np.testing.assert_array_equal(batch["x"][:, 0], 2 * batch["labels"])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_read_their_parts_of_each_batch(processes):
    whole = list(ArraySource(arrays(10), 4, shuffle=True, seed=1).epoch(0))
    parts = [
        list(ArraySource(arrays(10), 4, shuffle=True, seed=1, part=(r, processes)).epoch(0))
        for r in range(processes)
    ]
    for batch, *own in zip(whole, *parts, strict=True):
        joined = np.concatenate([part["labels"] for part in own])
        assert sorted(joined) == sorted(batch["labels"])
        assert [isinstance(part, Part) for part in own] == [processes > 1] * processes
        assert [batch_length(part) for part in own] == [len(joined)] * processes


def test_skipped_batches_are_not_read():
    class Watched(np.ndarray):
        reads = 0

        def __getitem__(self, key):
            type(self).reads += 1
            return super().__getitem__(key)

    source = ArraySource({"x": np.zeros((100, 1)).view(Watched)}, 10)
    list(source.epoch(0, start=8))
    assert Watched.reads == 2


def test_batches_are_converted_to_the_inputs_dtypes():
    source = ArraySource(
        {"x": np.full((2, 2), 255, np.uint8), "labels": np.zeros(2, np.uint8)}, 2, inputs=SPECS
    )
    assert source.scaled == ("x",)
    (batch,) = source.epoch(0)
    assert batch["x"].dtype == np.float32
    assert batch["x"].max() == 1.0
    assert batch["labels"].dtype == np.int64


@pytest.mark.parametrize(
    ("data", "options", "what"),
    [
        ({"x": np.zeros((3, 2)), "labels": np.zeros(2)}, {}, "different lengths"),
        ({"x": np.zeros((0, 2))}, {}, "no samples"),
        ({"x": np.array(1.0)}, {}, "scalar"),
        ({}, {}, "no samples"),
        (arrays(3), {"batch_size": 0}, "batch size is not positive"),
        (arrays(3), {"seed": -1}, "negative"),
        (arrays(3), {"batch_size": 4, "drop_last": True}, "do not fill one batch"),
    ],
)
def test_bad_arguments(data, options, what):
    with pytest.raises(UsageError, match=what):
        ArraySource(data, **{"batch_size": 2, **options})


def test_a_fixed_batch_axis_must_be_met():
    fixed = [InputSpec("x", np.dtype("float32"), (4, 2))]
    data = {"x": np.zeros((9, 2), np.float32)}
    with pytest.raises(UsageError, match="fixed to batches of 4, not 3"):
        ArraySource(data, 3, drop_last=True, inputs=fixed)
    source = ArraySource(data, 4, drop_last=True, inputs=fixed)
    assert [len(batch["x"]) for batch in source.epoch(0)] == [4, 4]


@pytest.mark.parametrize("whole", [True, False])
def test_fingerprint_sees_samples_in_the_middle(whole, monkeypatch):
    if not whole:  # as of a large array, of which a choice is read
        monkeypatch.setattr(checksums, "_WHOLE", 100)
        monkeypatch.setattr(checksums, "_SAMPLED", 2000)
    monkeypatch.setattr(checksums, "_CHUNK", 64)
    data = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    base = ArraySource({"x": data}, 2).fingerprint()
    assert base == ArraySource({"x": np.asfortranarray(data)}, 2).fingerprint()
    seen = 0
    for row in range(1, 999):
        changed = data.copy()
        changed[row, 2] += 1
        seen += ArraySource({"x": changed}, 2).fingerprint() != base
    assert seen == 998 if whole else 100 < seen < 130


def test_the_fingerprint_is_the_same_for_ever(monkeypatch):
    """A change breaks the resuming of old runs."""
    source = ArraySource({"x": np.arange(4000, dtype=np.float32).reshape(1000, 4)}, 2)
    monkeypatch.setattr(checksums, "_WHOLE", 100)
    monkeypatch.setattr(checksums, "_SAMPLED", 2000)
    assert source.fingerprint()["arrays"]["x"] == PINNED_CONTENT


PINNED_CONTENT = {
    "shape": [1000, 4],
    "dtype": "<f4",
    "crc": 1366757359,
    "content": 3654697288,
}


@pytest.mark.parametrize("share", [None, 0.25])
def test_blocks_are_read_one_after_the_other_also_of_a_split(share):
    class Blocked(LazyArray):
        blocks = Blocks(np.array([0, 10, 20, 30]), 1)

        def read(self, rows):
            return np.asarray(rows)

    source = ArraySource({"x": as_array_like(Blocked((40,), np.dtype(np.int64)))}, 4, shuffle=True)
    source = source if share is None else source.split(share)[0]
    order = np.concatenate([batch["x"] for batch in source.epoch(0)]).tolist()
    seen = [block for block, _ in itertools.groupby(order, lambda row: row // 10)]
    assert sorted(seen) == [0, 1, 2, 3]
    assert order != sorted(order)


def test_threads_are_for_samples_that_are_decoded(monkeypatch):
    class Slow(LazyArray):
        decodes = True

        def read(self, rows):
            return np.zeros((len(rows), 2), np.float32)

    assert ArraySource(arrays(4), 2).threads == 1
    for cores, threads in ((3, 3), (99, 8), (1, 1)):
        monkeypatch.setattr(sources, "available_cores", lambda cores=cores: cores)
        slow = as_array_like(Slow((4, 2), np.dtype(np.float32)))
        assert ArraySource({"x": slow}, 2).threads == threads


def test_fingerprint_sees_what_matters():
    base = ArraySource(arrays(10), 2).fingerprint()
    assert base == ArraySource(arrays(10), 2).fingerprint()
    changed = arrays(10)
    changed["x"][0, 0] = 99
    others = [
        ArraySource(arrays(11), 2),
        ArraySource(arrays(10), 3),
        ArraySource(arrays(10), 2, seed=1),
        ArraySource(arrays(10), 2, shuffle=True),
        ArraySource(changed, 2),
        ArraySource({**arrays(10), "x": arrays(10)["x"].astype(np.float32)}, 2),
    ]
    assert all(other.fingerprint() != base for other in others)


# ---- a part held out --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.25, 0.01])
def test_a_split_takes_each_sample_once_and_the_same_ones_again(share):
    whole = ArraySource({"x": np.arange(40)}, 4, shuffle=True, seed=3, drop_last=True)
    rest, held_out = whole.split(share)
    seen = [np.concatenate([b["x"] for b in s.epoch(0)]) for s in (rest, held_out)]
    count = max(1, round(40 * share))
    assert held_out.length == count == len(seen[1])
    assert rest.length == 40 - count
    assert seen[1].tolist() == sorted(seen[1])  # not shuffled
    assert seen[0].tolist() != sorted(seen[0])
    assert not set(seen[0]) & set(seen[1])
    everything = {x for e in range(9) for b in rest.epoch(e) for x in b["x"].tolist()}
    assert everything | set(seen[1]) == set(range(40))
    again = whole.split(share)[1]
    assert again.fingerprint() == held_out.fingerprint()
    other = ArraySource({"x": np.arange(40)}, 4, seed=4).split(share)[1]
    assert other.fingerprint() != held_out.fingerprint()
    assert rest.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -0.1, 0.99, float("nan")])
def test_a_split_that_leaves_nothing_is_refused(share):
    with pytest.raises(UsageError, match="cannot be held out"):
        ArraySource({"x": np.arange(10)}, 2).split(share)


@pytest.mark.parametrize("piece", [1, 4, 1 << 24])
def test_classes_are_counted(monkeypatch, piece):
    monkeypatch.setattr(sources, "_PIECE", piece)
    source = ArraySource({"x": np.arange(6), "labels": np.array([0, 2, 2, -1, 3, 2])}, 2)
    assert source.counts("labels", 4) == (1, 0, 3, 1)
    rest, held_out = source.split(0.5)
    both = [np.array(part.counts("labels", 4)) for part in (rest, held_out)]
    assert (both[0] + both[1]).tolist() == [1, 0, 3, 1]
