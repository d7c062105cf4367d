"""The catalogue of a step as JSON: every field comes back, and wrong types are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.program.catalogue import StateEntry, TensorSpec

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
