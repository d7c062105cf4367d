"""Data that are larger than what is held in memory are compared batch by batch, all the same."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ortboost as ob
from ortboost.api import stored_batches
from ortboost.api.stored_batches import StoredBatches, map_batches, read_batches
from ortboost.training.data import ArraySource
from tests.support import MODELS, model_path

DIGITS = str(MODELS / "digits.npz")


def source(rows=10):
    return ArraySource({"x": np.arange(rows, dtype=np.float32)[:, None]}, 4)


def test_batches_are_those_of_the_source_and_one_is_held(monkeypatch):
    held = read_batches(source())
    assert isinstance(held, list)
    monkeypatch.setattr(stored_batches, "_HELD", 39)
    found = map_batches(lambda b: {"x": b["x"] + 1}, read_batches(source()))
    found = map_batches(lambda b: {"x": b["x"] * 2}, found)
    assert isinstance(found, StoredBatches)
    for one, other in zip(found, held, strict=True):
        np.testing.assert_array_equal(one["x"], 2 * (other["x"] + 1))
    assert [len(batch["x"]) for batch in found[1:]] == [4, 2]
    assert found[-1]["x"] is found[2]["x"]
    first = weakref.ref(found[0]["x"])
    assert first() is not None
    found[1]
    gc.collect()
    assert first() is None
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_an_export_does_not_depend_on_where_the_data_are(precision, tmp_path, monkeypatch):
    results = []
    for held in (stored_batches._HELD, 0):
        monkeypatch.setattr(stored_batches, "_HELD", held)
        result = ob.export(
            model_path("mlp"),
            tmp_path / f"{held}.onnx",
            precision=precision,
            verify=DIGITS,
            calibration=None if precision == "fp32" else DIGITS,
        )
        results.append((result.parity.summary, result.metrics, result.path.read_bytes()))
    assert results[0] == results[1]
    assert "accuracy" in results[0][1]


def test_nor_does_a_comparison(monkeypatch):
    results = []
    for held in (stored_batches._HELD, 0):
        monkeypatch.setattr(stored_batches, "_HELD", held)
        found = ob.compare(model_path("mlp"), model_path("mlp"), data=DIGITS, bisect=True)
        results.append(found.to_dict())
    assert results[0] == results[1]
