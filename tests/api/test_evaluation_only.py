"""Evaluating, exporting and comparing a program opens its evaluation graph and no training graph.

The golden program has gradients of the native engine; these tests run under any onnxruntime.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

import ortboost as ob
from ortboost.autodiff.native.engine import NativeEngine
from ortboost.core.errors import DependencyError, FileError, UsageError
from ortboost.runtime.evaluator import open_evaluator
from ortboost.runtime.stepper import Stepper
from tests.support import GOLDEN, run, small_mlp, text_model

NATIVE = GOLDEN / "programs" / "native"
DATA = NATIVE / "data.npz"
pytestmark = pytest.mark.each_runtime


@pytest.fixture
def native(tmp_path):
    return shutil.copytree(NATIVE, tmp_path / "native")


@pytest.fixture
def opened(monkeypatch):
    """The output names of every session opened from now on."""
    seen: list[list[str]] = []
    true = onnxruntime.InferenceSession

    def recording(*args, **kwargs):
        session = true(*args, **kwargs)
        seen.append([output.name for output in session.get_outputs()])
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", recording)
    return seen


def logits(step: int, x: np.ndarray) -> np.ndarray:
    """The network of the golden program in numpy."""
    state = load_file(NATIVE / "checkpoints" / f"step-{step:08}.safetensors")
    hidden = np.maximum(x @ state["w1"].T + state["b1"], 0)
    return hidden @ state["w2"].T + state["b2"]


def expected(step: int) -> dict[str, float]:
    data = np.load(DATA)
    scores = logits(step, data["x"]).astype(np.float64)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    own = chances[np.arange(len(scores)), data["labels"]]
    return {
        "loss": -np.log(own).mean(),
        "accuracy": (scores.argmax(axis=1) == data["labels"]).mean(),
    }


@pytest.fixture(scope="module")
def best() -> int:
    return json.loads((NATIVE / "checkpoints" / "best.json").read_text())["step"]


@pytest.fixture(scope="module")
def last(best) -> int:
    steps = [int(path.stem[5:]) for path in NATIVE.glob("checkpoints/step-*.safetensors")]
    assert best < max(steps), "the golden program must tell 'best' from 'last'"
    return max(steps)


def test_a_program_of_the_native_engine_is_evaluated_by_any_runtime(native, best, last):
    found = {
        name: ob.evaluate(native, DATA, checkpoint=name, device="cpu") for name in ("best", "last")
    }
    assert found["best"] == pytest.approx(expected(best), rel=1e-5)
    assert found["last"] == pytest.approx(expected(last), rel=1e-5)
    assert found["best"]["loss"] != found["last"]["loss"]


def test_it_is_exported_and_compared_by_any_runtime(native, best, tmp_path):
    out = tmp_path / "net.onnx"
    result = ob.export(native, out, verify=DATA, device="cpu")
    assert result.parity.ok
    assert result.step == best
    x = np.load(DATA)["x"]
    np.testing.assert_allclose(run(out, {"x": x})["logits"], logits(best, x), rtol=1e-5, atol=1e-6)
    assert ob.compare(native, out, data=DATA, device="cpu").parity.ok
    ob.export(native, other := tmp_path / "last.onnx", checkpoint="last", device="cpu")
    assert not ob.compare(native, other, data=DATA, device="cpu").parity.ok


def test_its_step_is_not_for_every_runtime():
    """Else the two tests above would show nothing under the stock runtime."""
    program = ob.Program.load(NATIVE)
    foreign = {node.domain for node in program.step.graph.all_nodes()} - {""}
    assert "com.microsoft" in foreign
    if NativeEngine().unavailable() is None:
        assert Stepper(program, device="cpu").next_graph == "step"
    else:
        with pytest.raises(DependencyError, match="made by the native engine") as caught:
            Stepper(program, device="cpu")
        assert "--engine portable" in caught.value.fix


def test_no_training_session_is_opened(native, opened, tmp_path):
    out = tmp_path / "net.onnx"
    verbs = {
        "evaluate": lambda: ob.evaluate(native, DATA, device="cpu"),
        "export": lambda: ob.export(native, out, verify=DATA, device="cpu"),
        "compare": lambda: ob.compare(native, out, data=DATA, device="cpu"),
    }
    for verb, act in verbs.items():
        opened.clear()
        act()
        assert opened, f"{verb} opened no session at all: the count does not work"
        assert {name for names in opened for name in names} <= {"logits", "loss"}, verb


def test_training_opens_a_session_that_the_count_sees(opened, tmp_path):
    ob.convert(small_mlp(), tmp_path / "run", ob.ProgramConfig(engine="portable"))
    Stepper(ob.Program.load(tmp_path / "run"), device="cpu")
    assert any(name.startswith("ortboost/next/") for names in opened for name in names)


def test_only_what_the_evaluation_reads_is_placed_on_the_device(monkeypatch):
    placed: list[int] = []
    true = onnxruntime.OrtValue.ortvalue_from_numpy

    def counting(array, *args):
        placed.append(array.nbytes)
        return true(array, *args)

    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", counting)
    program = ob.Program.load(NATIVE)
    open_evaluator(program, program.initial, device="cpu")
    parameters = [program.initial[name].nbytes for name in ("w1", "b1", "w2", "b2")]
    assert sorted(placed) == sorted(parameters)


def test_a_state_of_another_program_is_refused():
    program = ob.Program.load(NATIVE)
    with pytest.raises(FileError, match="'w1' is missing"):
        open_evaluator(
            program, {k: v for k, v in program.initial.items() if k != "w1"}, device="cpu"
        )


def test_a_device_for_files_only_is_refused():
    program = ob.Program.load(NATIVE)
    with pytest.raises(UsageError, match="not training steps"):
        open_evaluator(program, program.initial, device="tensorrt")


def sequence_program(folder, **loss):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[t,n,3] x, float[3,3] w) => (float[t,n,3] y) { y = MatMul(x, w) }""",
        w=np.eye(3, dtype=np.float32),
    )
    axes = ob.InputConfig(batch_axes={"x": 1, "labels": 1})
    config = ob.ProgramConfig(loss=ob.LossConfig(class_axis=-1, **loss), inputs=axes)
    ob.convert(model, folder, config)


def test_dense_labels_are_compared_along_the_class_axis(tmp_path):
    sequence_program(tmp_path / "run", sparse=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 7, 3)).astype(np.float32)
    labels = rng.dirichlet(np.ones(3), (4, 7)).astype(np.float32)
    data = {"x": x, "labels": labels}
    found = ob.evaluate(tmp_path / "run", data, batch_size=3, checkpoint="initial", device="cpu")
    assert found["accuracy"] == pytest.approx((x.argmax(-1) == labels.argmax(-1)).mean())


def test_labels_of_other_lengths_than_the_scores_are_refused(tmp_path):
    """The loss of the runtime would read them in another order."""
    sequence_program(tmp_path / "run")
    program = ob.Program.load(tmp_path / "run")
    evaluator = open_evaluator(program, program.initial, device="cpu")
    labels = np.zeros((4, 6), np.int64)
    evaluator.evaluate({"x": np.zeros((4, 6, 3), np.float32), "labels": labels})
    with pytest.raises(UsageError, match="The dimension 't' is 6 in 'x' and 4 in 'labels'"):
        evaluator.evaluate({"x": np.zeros((6, 4, 3), np.float32), "labels": labels})
