"""A user-defined loss from an ONNX file."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ortboost as ob
from ortboost.cli import main
from ortboost.core.errors import ConfigError, FileError, ModelError, UsageError
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.loss_config import LossConfig
from ortboost.transforms.own_loss import class_inputs
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    model_path,
    small_mlp,
    stepper,
    text_model,
    weights,
)

CROSS = """l = SoftmaxCrossEntropyLoss<reduction = "mean">(scores, target)"""
L1 = "d = Sub(scores, target)  a = Abs(d)  l = ReduceMean<keepdims = 0>(a)"
HUBER = """d = Sub(scores, target)  a = Abs(d)  one = Constant<value = float {1.0}>()
    s = Min(a, one)
  q = Mul(s, s)  half = Constant<value = float {0.5}>()  t = Mul(half, q)  r = Sub(a, s)
  e = Add(t, r)  l = ReduceMean<keepdims = 0>(e)"""
RATE = {"learning_rate": 0.1}


@pytest.fixture
def write(tmp_path):
    """Write a loss; by default scores [N, K] and class indices [N]."""

    def written(body, ports="float[N,K] scores, int64[N] target", answer="float l", opset=17):
        text = f'<ir_version: 8, opset_import: ["" : {opset}]>'
        text += f" loss ({ports}) => ({answer}) {{ {body} }}"
        path = tmp_path / "my_loss.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return str(path)

    return written


def dense(write, body, **more):
    return write(body, "float[N,K] scores, float[N,K] target", **more)


def trained(config, engine, steps=4):
    """The program and its parameters after a few steps, with the losses."""
    program = build_program(small_mlp(), ProgramConfig(loss=config, engine=engine))
    training = stepper(program)
    losses = [training.step(batch_for(program, 6, seed=n), RATE).loss for n in range(steps)]
    names = [entry.name for entry in program.catalogue.entries("parameter")]
    return program, {name: training.get(name) for name in names}, losses


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("opset", [13, 17])
def test_cross_entropy_from_a_file_is_the_one_that_is_built_in(write, engine, opset):
    path = write(CROSS, opset=opset)
    _, own, losses = trained(LossConfig(path), engine)
    _, built_in, expected = trained(LossConfig(), engine)
    assert losses == expected
    assert_same_bits(own, built_in)


@pytest.mark.parametrize("word", ["float", "float16", "double"])
@pytest.mark.parametrize("of_loss", ["float", "float16", "double"])
def test_network_and_loss_may_have_different_types(write, word, of_loss):
    dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[word]
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({word}[N,4] x, {word}[3,4] w) => ({word}[N,3] y) {{
          [fc] y = Gemm<transB = 1>(x, w) }}""",
        w=(weights(3, 4) * 16).round().astype(dtype),  # what float16 can hold
    )
    path = write(CROSS, f"{of_loss}[N,K] scores, int64[N] target", f"{of_loss} l")
    built_in, own = (
        stepper(build_program(model, ProgramConfig(loss=LossConfig(name)))).step(
            {"x": np.ones((2, 4), np.float32), "labels": np.array([0, 2])}, RATE
        )
        for name in ("softmax-cross-entropy", path)
    )
    assert own.loss == built_in.loss


@pytest.mark.parametrize("engine", ENGINES)
def test_l1_from_a_file_is_the_one_that_is_built_in(write, engine):
    _, own, losses = trained(LossConfig(dense(write, L1)), engine)
    _, built_in, expected = trained(LossConfig("l1"), engine)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for name, value in built_in.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_built_in_is_what_numpy_says(write):
    program, _, _ = trained(LossConfig(dense(write, HUBER)), "portable", 0)
    batch = batch_for(program, 6)
    state = program.initial
    w1, b1, w2, b2 = (state[name] for name in ("w1", "b1", "w2", "b2"))
    scores = np.maximum(batch["x"] @ w1.T + b1, 0) @ w2.T + b2
    away = np.abs(scores - batch["labels"])
    huber = np.where(away < 1, away**2 / 2, away - 0.5).mean()
    assert stepper(program).step(batch, RATE).loss == pytest.approx(huber, rel=1e-5)


def test_weights_of_the_classes_are_constants(write, tmp_path):
    body = """w = Constant<value = float[3] {1.0, 2.0, 0.5}>()
      l = SoftmaxCrossEntropyLoss<reduction = "mean">(scores, target, w)"""
    program, _, _ = trained(LossConfig(write(body)), "portable", 0)
    assert [e.name for e in program.catalogue.entries("parameter")] == ["w1", "b1", "w2", "b2"]
    plain, _, _ = trained(LossConfig(), "portable", 0)
    batch = batch_for(plain, 9)
    assert stepper(program).step(batch, RATE).loss != stepper(plain).step(batch, RATE).loss


CROSS_7 = """SoftmaxCrossEntropyLoss<reduction = "mean", ignore_index = -7>"""


@pytest.mark.parametrize(
    "body",
    [
        f"l = {CROSS_7}(scores, target)",
        "p = LogSoftmax(scores) "
        'l = NegativeLogLikelihoodLoss<reduction = "mean", ignore_index = -7>(p, target)',
        f"a = Identity(target) t = Cast<to = 6>(a) l = {CROSS_7}(scores, t)",
        "o = Constant<value_ints = [1]>() z = Constant<value_ints = [0]>() "
        "f = Constant<value_ints = [-1]>() u = Unsqueeze(target, o) v = Flatten(u) "
        f"t = Transpose(v) s = Squeeze(t, z) r = Reshape(s, f) l = {CROSS_7}(scores, r)",
    ],
)
def test_labels_are_held_to_the_classes(write, body):
    """A runtime would read out of bounds."""
    program, _, _ = trained(LossConfig(write(body)), "portable", 0)
    (spec,) = [spec for spec in program.catalogue.batch if spec.name == "labels"]
    assert (spec.classes, spec.ignored, spec.shape) == (3, -7, ("batch",))
    training, x = stepper(program), weights(2, 4)
    training.step({"x": x, "labels": np.array([2, -7])}, RATE)
    with pytest.raises(UsageError, match="The label 3 is not a class"):
        training.step({"x": x, "labels": np.array([2, 3])}, RATE)


@pytest.mark.parametrize(
    ("scores", "labels", "body", "found"),
    [
        ("N,5", "N", "l = SoftmaxCrossEntropyLoss(s, y)", {"y": (5, None, 1)}),
        ("N,5,7", "N,7", "l = NegativeLogLikelihoodLoss<ignore_index = 3>(s, y)", {"y": (5, 3, 1)}),
        (
            "N,5",
            "N",
            "t = Slice(s, z, f, o) a = SoftmaxCrossEntropyLoss(t, y) "
            "b = SoftmaxCrossEntropyLoss(s, y) l = Add(a, b)",
            {"y": (4, None, 1)},  # what both accept
        ),
        ("N,C", "N", "l = SoftmaxCrossEntropyLoss(s, y)", {}),
        ("N,5", "N", "u = Add(y, o) l = SoftmaxCrossEntropyLoss(s, u)", {}),
        ("N,5", "N", "l = ReduceMean<keepdims = 0>(s)", {}),
    ],
)
def test_inputs_that_are_class_indices(scores, labels, body, found):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{scores}] s, int64[{labels}] y) => (float l)
        <int64[1] z = {{0}}, int64[1] o = {{1}}, int64[1] f = {{4}}> {{ {body} }}"""
    )
    infer_shapes(model)
    assert class_inputs(model) == found


def test_the_program_does_not_need_the_file_any_more(write, tmp_path, capsys):
    path = write(CROSS)
    rng = np.random.default_rng(0)
    data, run = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, x=rng.standard_normal((20, 64)).astype(np.float32), y=rng.integers(0, 10, 20))
    mlp = str(model_path("mlp"))
    assert main(["convert", mlp, "-o", str(run), "--loss", path, "--labels", "y"]) == 0
    assert f"loss       {path}, mean, labels 'y'" in capsys.readouterr().out
    (tmp_path / "my_loss.onnx").unlink()
    assert Program.load(run).config.loss.name == path
    summary = ob.train(run, data, data, batch_size=10, epochs=2)
    assert ob.evaluate(run, data)["loss"] == pytest.approx(summary.metrics["val_loss"])
    exported = tmp_path / "out.onnx"
    ob.export(run, exported)
    assert [value.name for value in onnx.load(exported).graph.input] == ["x"]


SCORES = "float[N,K] scores, int64[N] target"


@pytest.mark.parametrize(
    ("body", "ports", "answer", "said"),
    [
        ("l = ReduceMean<keepdims = 0>(scores)", "float[N,K] scores", "float l", "has 1 inputs"),
        (CROSS, SCORES + ", float[N] w", "float l", "has 3 inputs"),
        (CROSS, "int64[N] target, float[N,K] scores", "float l", "is called 'target'"),
        ('l = SoftmaxCrossEntropyLoss<reduction = "none">(scores, target)', SCORES, "float[N] l",
         "not a float scalar"),
        ("l = Shape(target)", SCORES, "int64[1] l", "not a float scalar"),
        ("f = Cast<to = 1>(scores) " + CROSS.replace("scores", "f"),
         "int64[N,K] scores, int64[N] target", "float l", "scores of another type"),
        (CROSS, "float[N,7] scores, int64[N] target", "float l", "scores of another shape"),
        (CROSS, "float[N,N] scores, int64[N] target", "float l", None),
        (CROSS, "float[N,K,M] scores, int64[N,M] target", "float l", "scores of another rank"),
        ("one = Constant<value = int64 {1}>()  t = Sub(target, one) "
         + CROSS.replace("target", "t"), SCORES, "float l", "does not read the labels directly"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_refused_by_name(write, body, ports, answer, said):
    path = write(body, ports, answer)
    config = ProgramConfig(loss=LossConfig(path))
    if said is None:  # one name for two lengths, one of them open: consistent
        build_program(small_mlp(), config)
        return
    with pytest.raises(ModelError, match=said) as caught:
        build_program(small_mlp(), config)
    assert "my_loss.onnx" in caught.value.where
    assert_three_lines(caught.value)


def test_what_is_no_loss(write, tmp_path):
    with pytest.raises(FileError, match="does not exist"):
        build_program(small_mlp(), ProgramConfig(loss=LossConfig(str(tmp_path / "none.onnx"))))
    with pytest.raises(ConfigError, match="returns a scalar") as caught:
        LossConfig("my_loss.onnx", reduction="none")
    assert_three_lines(caught.value)
    with pytest.raises(ConfigError, match="has no effect for") as caught:
        LossConfig("my_loss.onnx", ignore_index=3)
    assert_three_lines(caught.value)
    with pytest.raises(UsageError, match="already has an input 'x'"):
        build_program(small_mlp(), ProgramConfig(loss=LossConfig(write(CROSS), labels="x")))


def test_an_operator_without_gradient_is_named(write):
    body = "a = ArgMax<axis = 1, keepdims = 0>(scores)  d = Sub(a, target)  f = Cast<to = 1>(d)"
    path = write(body + "  l = ReduceMean<keepdims = 0>(f)")
    with pytest.raises(ModelError) as caught:
        build_program(small_mlp(), ProgramConfig(loss=LossConfig(path)))
    assert_three_lines(caught.value)


def test_names_of_the_network_and_the_loss_may_be_the_same(write):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[3,4] w) => (float[batch,3] scores) {
          [l] a = Identity(x)  [n] scores = Gemm<transB = 1>(a, w) }""",
        w=weights(3, 4),
    )
    path = write("a = Identity(scores)  w = Identity(target) "
                 + CROSS.replace("scores", "a").replace("target", "w"))  # fmt: skip
    program = build_program(model.clone(), ProgramConfig(loss=LossConfig(path)))
    own = stepper(program).step(batch_for(program, 5), RATE).loss
    plain = build_program(model, ProgramConfig())
    assert own == stepper(plain).step(batch_for(program, 5), RATE).loss


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_computed_in_float64(write, engine):
    double = "d = Cast<to = 11>(scores) e = Cast<to = 11>(target) f = Sub(d, e) g = Abs(f) "
    path = dense(write, double + "l = ReduceMean<keepdims = 0>(g)", answer="double l")
    _, _, losses = trained(LossConfig(path), engine)
    _, _, expected = trained(LossConfig("l1"), engine)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
