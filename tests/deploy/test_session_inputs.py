from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import UsageError
from ortboost.deploy.session_inputs import (
    fix_specs,
    has_open_batch,
    make_feeds,
    settle_shapes,
    with_batch_axes,
)
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.catalogue import TensorSpec
from tests.support import assert_three_lines


def spec(name, *shape, dtype=np.float32):
    return TensorSpec(name, np.dtype(dtype), shape)


CONFIG = InputConfig(batch_axes={"h": 1})
IMAGES = spec("x", "batch", 3, 8, 8)
IDS, MASK = spec("ids", "n", "s", dtype=np.int64), spec("mask", "n", "s", dtype=np.bool_)
SHORT = spec("ids", "n", 5, dtype=np.int64)


def settled(*specs, batch=4, **dims):
    fixed = fix_specs(specs, InputConfig(dims))[0]
    return [s.shape for s in settle_shapes(fixed, batch, where="m.onnx")]


def test_open_dimensions_get_a_length():
    assert settled(IMAGES) == [(4, 3, 8, 8)]
    assert settled(IMAGES, batch=2) == [(2, 3, 8, 8)]
    assert settled(IMAGES, **{"x:0": 2}) == [(2, 3, 8, 8)]
    assert settled(IDS, MASK, s=16) == [(4, 16), (4, 16)]  # one name, one length
    assert settled(IDS, MASK, **{"mask:1": 16, "n": 2}) == [(2, 16), (2, 16)]
    assert settled(spec("k"), spec("y", 3), spec("z", None, 2)) == [(), (3,), (4, 2)]


def test_another_axis_may_count_the_samples():
    state = TensorSpec("h", np.dtype(np.float32), (2, "n", 8), batch_axis=1)
    assert settled(state) == [(2, 4, 8)]
    assert has_open_batch([state])
    inputs = fix_specs(with_batch_axes([spec("h", 2, "n", 8)], CONFIG), CONFIG)[0]
    assert settled(*inputs) == [(2, 4, 8)]
    feeds = make_feeds([state], 4, bind=lambda specs, n: {"h": np.zeros((2, 4, 8))})
    assert feeds["h"].shape == (2, 4, 8)
    with pytest.raises(UsageError, match="have 3 samples"):
        make_feeds([state], 4, bind=lambda specs, n: {"h": np.zeros((2, 3, 8))})


def test_fixed_dimensions_and_values():
    inputs, constants = fix_specs(
        [IDS, spec("k", dtype=np.int64)], InputConfig({"s": 16}, {"k": 3})
    )
    assert [(s.name, s.shape) for s in inputs] == [("ids", ("n", 16))]
    assert constants["k"] == 3
    assert constants["k"].dtype == np.int64
    for config in (InputConfig({"t": 16}), InputConfig(values={"q": 1})):
        with pytest.raises(UsageError) as caught:
            fix_specs([IDS], config)
        assert_three_lines(caught.value)
    with pytest.raises(UsageError, match="no axis 5"):
        with_batch_axes([IDS], InputConfig(batch_axes={"ids": 5}))


def test_whether_a_batch_size_matters():
    assert has_open_batch([IMAGES])
    assert not has_open_batch([spec("x", 1, 3)])
    assert not has_open_batch(fix_specs([IMAGES], InputConfig({"batch": 2}))[0])
    assert has_open_batch([TensorSpec("x", np.dtype(np.float32), (1, "s"), batch_axis=1)])
    assert not has_open_batch([spec("k")])


@pytest.mark.parametrize(
    ("specs", "hint", "cure"),
    [
        ((IDS, MASK), "dimension 's' of the input 'ids'", ("s", 128)),
        ((spec("x", "n", None),), "dimension number 1", ("x:1", 128)),
    ],
)
def test_the_cure_for_an_open_dimension_works(specs, hint, cure):
    with pytest.raises(UsageError, match=hint) as caught:
        settle_shapes(specs, 4, where="m.onnx")
    assert_three_lines(caught.value)
    assert "m.onnx" in caught.value.where
    name, length = caught.value.fix.split("--dim ")[1].split(",")[0].split("=")
    assert (name, int(length)) == cure
    assert settled(*specs, **{name: int(length)})[0] == (4, 128)


def test_made_up_inputs_are_the_same_each_time():
    feeds = make_feeds([IMAGES, SHORT], 4, seed=3)
    again = make_feeds([IMAGES, SHORT], 4, seed=3)
    assert feeds["x"].shape == (4, 3, 8, 8)
    assert feeds["x"].dtype == np.float32
    assert feeds["ids"].dtype == np.int64
    assert set(feeds["ids"].ravel()) <= {0, 1}
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert not np.array_equal(feeds["x"], make_feeds([IMAGES], 4, seed=4)["x"])
