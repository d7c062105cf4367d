"""Inputs that may be empty: a cache of earlier tokens, of which there may be none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ortboost as ob
from ortboost.core.errors import FileError, UsageError
from ortboost.graph.shapes.joined_axes import joined_axes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import ENGINES, assert_three_lines, stepper, text_model, weights

LOSS = ob.LossConfig("mse")


JOIN = "key = MatMul(x, w) y = Concat<axis = 1>(cache, key)"


def net(join=JOIN, past="past", extra=""):
    """A decoder, reduced to its cache: the scores are a mean over earlier and new keys."""
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[B,{past},3] cache, float[B,T,2] x, float[2,3] w, int64[1] one)
            => (float[B,3] m{extra}) {{ {join} m = ReduceMean<keepdims = 0>(y, one) }}""",
        w=weights(2, 3),
        one=np.array([1]),
    )


BEHIND = "key = MatMul(x, w) c = Cast<to = 1>(cache) k = Concat<axis = -2>(c)"
SLIDING = """key = MatMul(x, w) c = Concat<axis = 1>(cache) start = Constant<value_ints = [-2]>()
    end = Constant<value_ints = [9]>() k = Slice(c, start, end, one)"""


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {"cache": (1,)}),
        ({"join": f"{BEHIND} y = Concat<axis = 1>(k, key) s = Shape(cache)"}, {"cache": (1,)}),
        ({"join": f"{SLIDING} y = Concat<axis = 1>(k, key)"}, {"cache": (1,)}),
        ({"join": f"{SLIDING} y = Concat<axis = 1>(k, key) z = Neg(k)"}, {}),
        ({"past": "2"}, {}),
        ({"join": "key = MatMul(x, w) k = Neg(cache) y = Concat<axis = 1>(k, key)"}, {}),
        ({"join": "key = MatMul(cache, cache) y = Concat<axis = 1>(cache, key)"}, {}),
        ({"join": "y = Concat<axis = 1>(cache, cache) key = Neg(x)"}, {}),
        ({"join": "k = Neg(x) y = Concat<axis = 1>(cache, x)"}, {}),
        (
            {
                "join": "key = MatMul(x, w) y = Concat<axis = 1>(cache, key)"
                "z = Concat<axis = 2>(cache, key)"
            },
            {},
        ),
        (
            {"join": f"{BEHIND} y = Concat<axis = 1>(k, key)", "extra": ", float[B,past,3] k"},
            {},
        ),
    ],
)
def test_joined_axes(changes, found):
    assert joined_axes(net(**changes)) == found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("join", [JOIN, f"{SLIDING} y = Concat<axis = 1>(k, key)"])
def test_an_empty_cache_trains_as_if_there_were_none(engine, join, tmp_path):
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(6, 4, 2)).astype(np.float32), np.ones((6, 3), np.float32)
    program = build_program(net(join), ProgramConfig(engine=engine, loss=LOSS))
    assert dataclasses.asdict(program.catalogue.batch[0])["joined"] == (1,)
    program.save(tmp_path / "run")
    run = stepper(ob.Program.load(tmp_path / "run"))
    none = np.zeros((6, 0, 3), np.float32)
    before = run.get("w")
    run.step({"cache": none, "x": x, "labels": labels}, {"learning_rate": 0.1})
    inputs = x.astype(np.float64).mean(axis=1)
    slope = 2 * inputs.T @ (inputs @ before - labels) / labels.size
    np.testing.assert_allclose(run.get("w"), before - 0.1 * slope, atol=1e-6)
    for name, array in (("x", x[:, :0]), ("cache", none[:0]), ("cache", np.zeros((6, 0, 0)))):
        feeds = {"cache": none, "x": x, "labels": labels, name: array.astype(np.float32)}
        with pytest.raises(UsageError, match="is empty"):
            run.step(feeds, {"learning_rate": 0.1})


def test_data_of_an_empty_cache(tmp_path):
    ob.convert(net(), tmp_path / "run", ProgramConfig(loss=LOSS))
    data = {"x": np.ones((6, 4, 2), np.float32), "labels": np.ones((6, 3), np.float32)}
    np.savez(tmp_path / "none.npz", **data)
    with pytest.raises(FileError) as caught:
        ob.train(tmp_path / "run", tmp_path / "none.npz", device="cpu")
    assert_three_lines(caught.value)
    assert "it may be empty, [N, 0, 3]" in caught.value.fix
    data["cache"] = np.zeros((6, 0, 3), np.float32)
    ob.train(tmp_path / "run", data, data, epochs=2, batch_size=4, device="cpu")
    out = ob.export(tmp_path / "run", tmp_path / "net.onnx", verify=data, device="cpu")
    assert ob.compare(tmp_path / "run", out.path, data=data, device="cpu").parity.ok
