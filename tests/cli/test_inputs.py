"""Inputs that are no batch: a scalar, a state whose samples lie in axis 1, the edges of a graph."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from ortboost.cli import main
from ortboost.graph.io import load_model, save_model
from ortboost.graph.query import known_shape
from tests.support import ENGINES, run, text_model, weights

RECURRENT = """<ir_version: 10, opset_import: ["" : 18]>
cell (float[batch,t] x, float[2,{batch},3] state, int64 rate, float[1,3] w)
=> (float[batch,3] y, float[2,{batch},3] next) {{
  r = Cast<to = 1>(rate)
  m = ReduceMean<keepdims = 1>(x, last)
  h = MatMul(m, w)
  s = ReduceSum<keepdims = 0>(state, first)
  y = Add(h, s)
  next = Mul(state, r)
}}"""

GRAPH = """<ir_version: 10, opset_import: ["" : 18]>
gnn (float[nodes,4] x, int64[2,edges] edges, float[4,3] w) => (float[nodes,3] y) {
  zero = Constant<value = int64 {0}>()  one = Constant<value = int64 {1}>()
  from = Gather(edges, zero)  to = Gather(edges, one)
  h = MatMul(x, w)
  sent = Gather(h, from)
  axis = Constant<value_ints = [1]>()  width = Constant<value_ints = [1, 3]>()
  column = Unsqueeze(to, axis)  index = Expand(column, width)
  y = ScatterElements<axis = 0, reduction = "add">(h, index, sent)
}"""


def recurrent(batch: str = "batch"):
    text = RECURRENT.format(batch=batch).replace(
        "  r = Cast",
        "  last = Constant<value_ints = [1]>()  first = Constant<value_ints = [0]>()\n  r = Cast",
    )
    model = text_model(text, w=weights(1, 3))
    if batch == "unnamed":
        for value in (model.graph.inputs[1], model.graph.outputs[1]):
            value.shape = type(value.shape)([2, None, 3])
    return model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez(
        "data.npz",
        x=rng.standard_normal((10, 5)).astype(np.float32),
        state=rng.standard_normal((2, 10, 3)).astype(np.float32),
        rate=np.array(16000),
        labels=rng.integers(0, 3, 10),
    )
    return tmp_path


def accuracy(capsys) -> float:
    return json.loads(capsys.readouterr().out)["accuracy"]


def expected_accuracy(model) -> float:
    with np.load("data.npz") as file:
        data = {name: file[name] for name in file.files}
    found = run(load_model(model), {name: data[name] for name in ("x", "state", "rate")})
    return float((found["y"].argmax(1) == data["labels"]).mean())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_and_a_scalar_train_and_export(folder, capsys, engine):
    save_model(recurrent(), "cell.onnx")
    convert = ["convert", "cell.onnx", "-o", "run", "--output", "y", "--engine", engine]
    assert main([*convert, "--lr", "0.1", "-q"]) == 0
    train = ["train", "run", "--data", "data.npz", "--val", "data.npz", "--batch-size", "4"]
    assert main([*train, "--epochs", "2", "-q"]) == 0
    assert main(["export", "run", "-o", "out.onnx", "--verify", "data.npz", "-q"]) == 0
    assert main(["eval", "run", "--data", "data.npz", "--batch-size", "3", "--json"]) == 0
    found = accuracy(capsys)
    assert found == pytest.approx(expected_accuracy("out.onnx"))
    # The samples of the state were those of the batch: each size gives the same.
    for size in ("1", "4", "10"):
        words = ["eval", "out.onnx", "--data", "data.npz", "--output", "y", "--batch-size", size]
        assert main([*words, "--json"]) == 0
        assert accuracy(capsys) == pytest.approx(found)


def test_an_axis_that_is_not_certain_is_asked_for(folder, capsys):
    save_model(recurrent("unnamed"), "cell.onnx")
    words = ["eval", "cell.onnx", "--data", "data.npz", "--output", "y", "--batch-size", "3"]
    assert main(words) != 0
    said = capsys.readouterr().err
    assert "The batch axis of the input 'state' is ambiguous." in said
    assert "--batch-axis state=AXIS" in said
    assert main([*words, "--batch-axis", "state=1", "--json"]) == 0
    assert accuracy(capsys) == pytest.approx(expected_accuracy("cell.onnx"))
    assert main([*words, "--batch-axis", "state=none"]) != 0  # ten states are not one for all
    assert main(["convert", "cell.onnx", "-o", "run", "--output", "y"]) == 0
    assert "--batch-axis state=AXIS" in capsys.readouterr().out
    assert main(["train", "run", "--data", "data.npz"]) != 0
    assert (
        main(["convert", "cell.onnx", "-o", "two", "--output", "y", "--batch-axis", "state=1"]) == 0
    )
    assert main(["train", "two", "--data", "data.npz", "--epochs", "1", "-q"]) == 0


def test_fixed_inputs_and_lengths(folder, capsys):
    save_model(recurrent(), "cell.onnx")
    np.save("state.npy", np.ones((2, 4, 3), np.float32))
    fixed = ["--input", "rate=3", "--input", "state=state.npy", "--dim", "t=6"]
    assert main(["export", "cell.onnx", "-o", "out.onnx", *fixed, "-q"]) == 0
    model = load_model("out.onnx")
    assert [known_shape(v) for v in model.graph.inputs] == [(4, 6)]
    x = weights(4, 6)
    raw = {"x": x, "state": np.ones((2, 4, 3), np.float32), "rate": np.array(3)}
    for name, array in run(load_model("cell.onnx"), raw).items():
        np.testing.assert_allclose(run(model, {"x": x})[name], array, rtol=1e-6)
    onnx.checker.check_model("out.onnx", full_check=True)
    # At convert it is in the program, and in what is exported from it.
    assert main(["convert", "cell.onnx", "-o", "run", "--output", "y", *fixed]) == 0
    assert "inputs     x [4, 6], labels [4]" in capsys.readouterr().out
    assert main(["export", "run", "-o", "two.onnx", "--checkpoint", "initial", "-q"]) == 0
    assert [known_shape(v) for v in load_model("two.onnx").graph.inputs] == [(4, 6)]
    # Fixed when the program is exported.
    assert main(["convert", "cell.onnx", "-o", "open", "--output", "y", "-q"]) == 0
    words = ["export", "open", "-o", "three.onnx", "--checkpoint", "initial", "-q"]
    assert main([*words, *fixed]) == 0
    assert [known_shape(v) for v in load_model("three.onnx").graph.inputs] == [(4, 6)]
    assert main(["compare", "cell.onnx", "cell.onnx", *fixed, "-q"]) == 0
    # Made-up inputs have the batch of a fixed state.
    np.save("three.npy", np.ones((2, 3, 3), np.float32))
    words = ["export", "cell.onnx", "-o", "four.onnx", "--input", "state=three.npy", "-q"]
    assert main(words) == 0
    assert known_shape(load_model("four.onnx").graph.inputs[0]) == (3, "t")
    assert main(["check", "cell.onnx", "--output", "y", *fixed]) == 0
    assert "--dim t=6 --input rate=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--dim", "steps=6"],
        ["--dim", "t"],
        ["--dim", "t=six"],
        ["--input", "rates=3"],
        ["--input", "rate=nothing.npy"],
        ["--input", "rate=fast"],
        ["--batch-axis", "state=3"],
        ["--batch-axis", "state=one"],
    ],
)
@pytest.mark.parametrize("verb", ["export", "convert"])
def test_what_cannot_be_is_refused(folder, capsys, words, verb):
    save_model(recurrent(), "cell.onnx")
    output = ["--output", "y"] if verb == "convert" else []
    assert main([verb, "cell.onnx", "-o", "out", *output, *words]) != 0
    assert capsys.readouterr().err.startswith("error: ")
    assert not (folder / "out").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_graph_is_fed_whole(folder, capsys, engine):
    save_model(text_model(GRAPH, w=weights(4, 3)), "gnn.onnx")
    rng = np.random.default_rng(1)
    np.savez(
        "graph.npz",
        x=rng.standard_normal((10, 4)).astype(np.float32),
        edges=rng.integers(0, 10, (2, 30)),
        labels=rng.integers(0, 3, 10),
    )
    assert main(["convert", "gnn.onnx", "-o", "run", "--engine", engine, "--lr", "0.05"]) == 0
    assert "'edges' selects rows" in capsys.readouterr().out
    train = ["train", "run", "--data", "graph.npz", "--val", "graph.npz", "--batch-size", "2"]
    assert main([*train, "--epochs", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert main(["export", "run", "-o", "out.onnx", "--verify", "graph.npz", "-q"]) == 0
    assert main(["export", "run", "-o", "made.onnx", "-q"]) == 0
    assert main(["eval", "run", "--data", "graph.npz", "--json"]) == 0
    found = accuracy(capsys)
    with np.load("graph.npz") as file:
        data = {name: file[name] for name in file.files}
    answer = run(load_model("out.onnx"), {"x": data["x"], "edges": data["edges"]})
    assert found == pytest.approx((answer["y"].argmax(1) == data["labels"]).mean())
    assert main(["eval", "out.onnx", "--data", "graph.npz", "--json"]) == 0
    assert accuracy(capsys) == pytest.approx(found)
