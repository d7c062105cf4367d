"""The catalogue of a step as JSON: every field comes back, and wrong types are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.core.errors import FileError
from ortboost.program.catalogue import (
    Catalogue,
    StateEntry,
    TensorSpec,
    read_catalogue,
)
from tests.support import assert_three_lines, small_mlp

LABELS = TensorSpec(
    "labels",
    np.dtype("int64"),
    ("batch", 4, None),
    classes=3,
    ignored=-1,
    class_axis=2,
    shifted=True,
    averaged=False,
    batch_axis=1,
    threshold=0.5,
    probabilities=True,
)
STATE = StateEntry("w", "parameter", np.dtype("float32"), (2, 3), "next/w", "weight", sharded=True)


@pytest.mark.parametrize("entry", [LABELS, STATE], ids=["labels", "state"])
def test_every_field_comes_back(entry):
    assert type(entry).from_dict(json.loads(json.dumps(entry.to_dict()))) == entry


@pytest.mark.parametrize(
    ("entry", "key"), [(entry, key) for entry in (LABELS, STATE) for key in entry.to_dict()]
)
def test_a_value_of_the_wrong_type_is_named(entry, key):
    with pytest.raises(ValueError, match=f"'{key}' is"):
        type(entry).from_dict({**entry.to_dict(), key: {"not": "this"}})


def test_catalogue_survives_json():
    catalogue = Catalogue(
        (TensorSpec("x", np.dtype(np.float32), ("batch", 3, None)),),
        (TensorSpec("learning_rate", np.dtype(np.float32), ()),),
        (StateEntry("w", "parameter", np.dtype(np.float32), (2,), None, "weight"),),
        (TensorSpec("overflow", np.dtype(np.bool_), ()),),
        True,
    )
    assert catalogue.state[0].to_dict() == {
        "name": "w",
        "kind": "parameter",
        "dtype": "float32",
        "shape": [2],
        "next": None,
        "role": "weight",
    }
    assert Catalogue.from_dict(json.loads(json.dumps(catalogue.to_dict()))) == catalogue
    assert catalogue.entries("parameter") == catalogue.state
    assert catalogue.entries("slot", "scale") == ()


def test_a_file_without_a_catalogue():
    with pytest.raises(FileError) as info:
        read_catalogue(small_mlp())
    assert_three_lines(info.value)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 7}', '{"version": 1}'])
def test_a_damaged_catalogue(text):
    model = small_mlp()
    model.metadata_props["ortboost.catalogue"] = text
    with pytest.raises(FileError) as info:
        read_catalogue(model)
    assert_three_lines(info.value)


@pytest.mark.parametrize("part", ["batch", "hyper", "state", "outputs"])
@pytest.mark.parametrize("value", [None, ["x"], [None, [1]], {}, 3, True])
@pytest.mark.parametrize("key", [None, "name", "dtype", "shape"])
def test_a_catalogue_with_values_of_wrong_types_is_refused(part, key, value):
    spec = TensorSpec("x", np.dtype(np.float32), ("batch", 3))
    entry = StateEntry("w", "parameter", np.dtype(np.float32), (2,), None, "weight")
    data = json.loads(json.dumps(Catalogue((spec,), (spec,), (entry,), (spec,)).to_dict()))
    if key is None:
        data[part] = value
    else:
        data[part][0][key] = value
    if key == "shape" and value == ["x"] and part != "state":
        assert Catalogue.from_dict(data)
        return
    with pytest.raises(FileError, match="catalogue is damaged") as caught:
        Catalogue.from_dict(data)
    assert_three_lines(caught.value)
