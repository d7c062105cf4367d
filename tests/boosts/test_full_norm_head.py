from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.boosts import MixedPrecision
from ortboost.boosts.full_norm_head import FullNormHead, find_full_norm, full_norm
from ortboost.boosts.grad_centralization import HEAD_MARK, CentralizeConfig, centralize
from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.build import Builder
from ortboost.graph.io import load_model, save_model
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.parameters import find_parameters
from ortboost.mindspore.boost.less_bn import LessBN
from ortboost.mindspore.core.network import Network
from ortboost.program.boost_config import resolve_boost
from ortboost.program.boosted import boosted
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import (
    ENGINES,
    GOLDEN,
    assert_three_lines,
    batch_for,
    model_path,
    run,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

HEADS = {
    "gemm": ("[fc] y = Gemm(x, w, b)", (4, 3)),
    "gemm_transposed": ("[fc] y = Gemm<transB = 1>(x, w, b)", (3, 4)),
    "gemm_alpha": ("[fc] y = Gemm<transB = 1, alpha = 2.0, beta = 0.5>(x, w, b)", (3, 4)),
    "gemm_add": ("[fc] h = Gemm<transB = 1>(x, w) y = Add(h, b)", (3, 4)),
    "two_biases": ("[fc] h = Gemm<transB = 1>(x, w, b) y = Add(b, h)", (3, 4)),
    "bare_gemm": ("[fc] y = Gemm<transB = 1>(x, w)", (3, 4)),
    "matmul": ("[fc] y = MatMul(x, w)", (4, 3)),
    "matmul_add": ("[fc] h = MatMul(x, w) y = Add(h, b)", (4, 3)),
    "add_first": ("[fc] h = MatMul(x, w) y = Add(b, h)", (4, 3)),
    "turned": ("t = Transpose<perm = [1, 0]>(w) [fc] h = MatMul(x, t) y = Add(h, b)", (3, 4)),
}


def headed(kind: str, after: str = "", rows: str = "batch,4", **more) -> ir.Model:
    body, shape = HEADS[kind]
    if after:
        body = body.replace(" y = ", " z = ") + after
    inits = {"w": weights(*shape), "b": weights(3, seed=1), **more}
    inits = {
        name: value for name, value in inits.items() if f" {name}" in body or f"({name}" in body
    }
    types = ", ".join(
        f"float[{','.join(map(str, value.shape))}] {name}" for name, value in inits.items()
    )
    out = rows.rpartition(",")[0]
    return text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[{rows}] x, {types})'
        f" => (float[{out},3] y) {{ {body} }}",
        **inits,
    )


def reference(x, w, multiplier=1.0):
    """In float64; `w` is [outputs, inputs]."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)

    def n(v):
        return v / np.sqrt(np.maximum((v * v).sum(-1, keepdims=True), 1e-4))

    return multiplier * (n(x) @ n(w).T)


def of_rows(model: ir.Model) -> np.ndarray:
    w = model.graph.initializers["w"].const_value.numpy()
    return w if w.shape == (3, 4) else w.T


@pytest.mark.parametrize("kind", HEADS)
def test_heads(kind):
    model = headed(kind)
    report = full_norm(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = weights(5, 4, seed=3)
    x[1] *= 1e-3
    x[2] = 0
    got = run(model, {"x": x})["y"]
    np.testing.assert_allclose(got, reference(x, of_rows(model)), rtol=1e-5, atol=1e-6)
    assert not got[2].any()
    assert "b" not in model.graph.initializers
    assert ("b" in report.changed) == ("b" in HEADS[kind][0].replace("transB", ""))
    assert {"fc", "w.multiplier"} <= set(report.changed)
    assert bool(report.notes) == (kind == "gemm_alpha")
    roles = {name: p.role for name, p in find_parameters(model).items() if p.trainable}
    assert roles == {"w": "weight", "w.multiplier": "norm_scale"}
    assert model.graph.initializers["w.multiplier"].const_value.numpy() == 1
    assert model.graph.initializers["w.multiplier"].shape == ir.Shape([])


@pytest.mark.parametrize("kind", HEADS)
def test_a_second_time_changes_nothing(kind):
    model = headed(kind)
    full_norm(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    again = full_norm(model)
    assert not again.modified
    assert list(again.kept.values()) == ["already a full-normalization head"]
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Sigmoid", "Identity"])
def test_what_follows_stays(op):
    model = headed("gemm_transposed", f" y = {op}(z)")
    full_norm(model)
    assert list(model.graph)[-1].op_type == op
    assert find_full_norm(model).weight.name == "w"
    assert not full_norm(model).modified


def test_rows_of_a_sequence():
    model = headed("matmul_add", rows="batch,time,4")
    full_norm(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = weights(2, 5, 4, seed=3)
    want = reference(x.reshape(10, 4), of_rows(model)).reshape(2, 5, 3)
    np.testing.assert_allclose(run(model, {"x": x})["y"], want, rtol=1e-5, atol=1e-6)


def test_the_named_output():
    model = headed(
        "gemm_transposed", " y = Identity(z) [fd] v = Gemm<transB = 1>(x, u)", u=weights(2, 4)
    )
    second = next(v for n in model.graph for v in n.outputs if v.name == "v")
    second.type, second.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["batch", 2])
    model.graph.outputs.append(second)
    assert set(full_norm(model, output="v").changed) == {"fd", "u.multiplier"}
    with pytest.raises(UsageError) as error:
        full_norm(model, output="w")
    assert_three_lines(error.value)


def test_a_weight_that_serves_another_node():
    """Tied weights: the other node reads the weight as it is."""
    model = headed(
        "gemm_transposed", " t = Transpose<perm = [1, 0]>(w) o = MatMul(x, t) y = Add(z, o)"
    )
    model.graph.outputs[:] = [next(v for n in model.graph for v in n.outputs if v.name == "z")]
    model.graph.outputs[0].shape = ir.Shape(["batch", 3])
    full_norm(model)
    x = weights(5, 4, seed=3)
    got = run(model, {"x": x})["z"]
    np.testing.assert_allclose(got, reference(x, of_rows(model)), rtol=1e-5, atol=1e-6)


def test_a_bias_that_serves_another_node_stays():
    model = headed("gemm_transposed", " zz = Identity(z) y = Softmax(zz) o = Relu(b)")
    assert full_norm(model).changed["b"] == "the bias was dropped"
    assert "b" in model.graph.initializers


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Relu(x)", (3, 4)),
        ("h = Gemm<transB = 1>(x, w) y = Relu(h)", (3, 4)),
        ("[fc] y = Gemm<transA = 1, transB = 1>(x, w)", (3, 4)),
        ("[fc] y = MatMul(x, w)", (2, 4, 3)),
        ("u = Relu(w) [fc] y = Gemm<transB = 1>(x, u)", (3, 4)),
    ],
)
def test_no_head(body, shape):
    dims = ",".join(map(str, shape))
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[m,k] x, float[{dims}] w) => '
        f"(float[a,b] y) {{ {body} }}",
        w=weights(*shape),
    )
    with pytest.raises(ModelError) as error:
        full_norm(model)
    assert_three_lines(error.value)


def test_names():
    """The multiplier is named after the weight, with a unique name."""
    model = headed("gemm_transposed")
    for old, new in (("w", "net.fc.weight"), ("b", "net.fc.multiplier")):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    assert "net.fc.multiplier_1" in full_norm(model).changed


def test_marks_survive_a_file(tmp_path):
    model = headed("gemm_transposed")
    full_norm(model)
    save_model(model, tmp_path / "m.onnx")
    again = load_model(tmp_path / "m.onnx")
    assert find_parameters(again)["w.multiplier"].role == "norm_scale"
    assert HEAD_MARK in again.graph.initializers["w"].metadata_props
    assert not full_norm(again).modified


def test_it_is_not_centralized():
    model = headed("gemm_transposed")
    full_norm(model)
    trained = [p for p in find_parameters(model).values() if p.trainable]
    chosen, report = centralize(model, trained, CentralizeConfig(multiple_of=1))
    assert not chosen
    assert report.kept["w"] == "it is the weight of a full-normalization head"


# ---- gradients --------------------------------------------------------------------------------


def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "mindspore" / "less_bn.npz") as file:
        return {key[5:]: file[key] for key in file.files if key.startswith("head/")}


def with_loss() -> ir.Model:
    """`sum(seed * y)` over a head of [4, 7] and six rows; everything is an input."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[6,7] x, float[4,7] w, float[6,4] seed) => (float[6,4] y) {
          [fc] y = Gemm<transB = 1>(x, w)
        }""",
        w=weights(4, 7),
    )
    full_norm(model)
    graph = model.graph
    b = Builder(graph, "loss")
    seed = next(value for value in graph.inputs if value.name == "seed")
    product = b.op("Mul", graph.outputs[0], seed, shape=(6, 4))
    loss = b.op("ReduceSum", product, keepdims=0, name="loss", shape=())
    b.flush()
    graph.outputs.append(loss)
    for name in ("w", "w.multiplier"):
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    infer_shapes(model)
    return model


def central_differences(feeds, name, step=1e-6):
    """Of `sum(seed * y)` in float64."""

    def loss(values):
        y = reference(values["x"], values["w"], values["w.multiplier"])
        return float((y * values["seed"]).sum())

    wide = {key: np.array(value, np.float64) for key, value in feeds.items()}
    found = np.zeros(wide[name].shape)
    for index in np.ndindex(*found.shape):
        sides = []
        for sign in (1, -1):
            moved = wide[name].copy()
            moved[index] += sign * step
            sides.append(loss({**wide, name: moved}))
        found[index] = (sides[0] - sides[1]) / (2 * step)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_around_and_below_the_clamp(engine):
    """Rows of length 1, just above 0.01, far below it, and zero; a weight row below, one zero."""
    z = golden()
    feeds = {"x": z["x"], "w": z["weight"].copy(), "seed": z["seed"]}
    feeds["w"][1] = 0
    feeds["w"][2] *= 0.0099 / np.linalg.norm(feeds["w"][2])
    feeds["w.multiplier"] = np.array(1.7, np.float32)
    model, wrt = with_loss(), ["x", "w", "w.multiplier"]
    get_engine(engine).prepare(model)
    result = differentiate(model, "loss", wrt, engine)
    found = run(result, feeds)
    for name in wrt:
        want = central_differences(feeds, name)
        got = found[f"{name}_grad"]
        assert got.shape == want.shape
        rows = want.reshape(want.shape[0], -1) if want.ndim else want.reshape(1, 1)
        for have, row in zip(got.reshape(rows.shape), rows, strict=True):
            scale = np.abs(row).max()
            np.testing.assert_allclose(have, row, rtol=1e-4, atol=1e-5 * max(scale, 1e-2))
    below = found["x_grad"][4]  # the zero row: 100 times the gradient by n(x), no more
    directions = feeds["w"] / np.sqrt(np.maximum((feeds["w"] ** 2).sum(1, keepdims=True), 1e-4))
    np.testing.assert_allclose(below, 170 * z["seed"][4] @ directions, rtol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_mindspore(engine):
    """Equal forward; equal backward without clamped rows, which the original treats differently."""
    z = golden()
    feeds = {"x": z["x"], "w": z["weight"], "seed": z["seed"], "w.multiplier": z["multiplier"]}
    model, wrt = with_loss(), ["x", "w", "w.multiplier"]
    get_engine(engine).prepare(model)
    found = run(differentiate(model, "loss", wrt, engine), feeds)
    np.testing.assert_allclose(found["y"], z["y"], rtol=1e-5, atol=1e-6)
    for mine, theirs, clamped in (("x", "grad_x", (3, 4)), ("w", "grad_weight", (3,))):
        got, want = found[f"{mine}_grad"], z[theirs]
        normal = [row for row in range(len(want)) if row not in clamped]
        np.testing.assert_allclose(got[normal], want[normal], rtol=2e-5, atol=1e-5)
        for row in clamped:
            assert np.linalg.norm(want[row]) > 2 * np.linalg.norm(got[row])
    np.testing.assert_allclose(found["w.multiplier_grad"], z["grad_multiplier"], rtol=1e-5)


def test_the_golden_file_says_who_made_it():
    with np.load(GOLDEN / "mindspore" / "less_bn.npz") as file:
        assert json.loads(str(file["meta"]))["versions"]["mindspore"] == "2.10.0"


# ---- in a program -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [small_mlp, small_convnet])
def test_one_head_at_training_and_evaluation(make):
    program = build_program(make(), ProgramConfig(full_norm_head=True, engine="portable"))
    assert find_full_norm(program.evaluation, "logits") is not None
    ops = [node.op_type for node in program.evaluation.graph]
    assert ops.count("Sqrt") == 2
    head = {e.name: e for e in program.catalogue.state if "multiplier" in e.name}
    (name,) = [n for n in head if not n.startswith("ortboost/")]
    assert head[name].role == "norm_scale"
    assert head[name].shape == ()


def test_decay():
    """The multiplier is left out as scales of normalizations are, and is in with ``all``."""

    def moved(decay):
        config = ProgramConfig(
            full_norm_head=True, weight_decay=0.5, decay=decay, engine="portable", learning_rate="1"
        )
        program = build_program(small_mlp(), config)
        feeds = {
            **program.initial,
            # Rows of zeros: the gradient of the multiplier is zero.
            "b1": np.zeros(6, np.float32),
            "x": np.zeros((2, 4), np.float32),
            "labels": np.zeros(2, np.int64),
            "learning_rate": np.array(1, np.float32),
        }
        got = run(program.step, feeds)
        return float(got["ortboost/next/w2.multiplier"])

    assert moved("no-norm") == 1.0
    assert moved("weights") == 1.0
    assert moved("all") == 0.5


def test_shipped_heads():
    for name in ("mlp", "lenet5", "transformer_tiny"):
        model = load_model(model_path(name))
        normalize(model, opsets=range(18, 22), ir_version=10)
        assert full_norm(model).modified
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        assert model.graph.outputs[0].name == "logits"


def test_a_model_without_a_head_is_refused():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,1,6,6] x, float[3,1,3,3] w) => (float[batch,3,1,1] y) {
          c = Conv(x, w) y = GlobalAveragePool(c)
        }""",
        w=weights(3, 1, 3, 3),
    )
    with pytest.raises(ModelError) as error:
        build_program(model, ProgramConfig(full_norm_head=True, engine="portable"))
    assert_three_lines(error.value)
    assert "fully connected" in error.value.what


def test_a_level_leaves_a_model_without_a_head_as_it_is():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,1,6,6] x, float[3,1,3,3] w) => (float[batch,3,1,1] y) {
          c = Conv(x, w) y = GlobalAveragePool(c)
        }""",
        w=weights(3, 1, 3, 3),
    )
    before = [node.op_type for node in model.graph]
    config, _ = boosted(ProgramConfig(engine="portable"), resolve_boost("O1"))
    head = next(boost for boost in config.boosts if isinstance(boost, FullNormHead))
    report = full_norm(model, if_present=head.if_present)
    assert [node.op_type for node in model.graph] == before
    assert not report.modified
    assert "no fully connected layer was found" in report.notes[0]
    assert LessBN(Network(model), fn_flag=True).reports[-1].notes == report.notes


@pytest.mark.parametrize("emulate", [False, True])
def test_long_features_in_float16(emulate):
    """Their squares exceed its range, the head's outputs do not."""
    losses = []
    for boosts in ((), (MixedPrecision("fp16", emulate=emulate),)):
        model = small_mlp(64, 64)
        model.graph.initializers["w1"].const_value = ir.tensor(weights(64, 64, scale=30.0))
        config = ProgramConfig(boosts=(FullNormHead(), *boosts))
        training = stepper(build_program(model, config))
        batch = batch_for(training.program)
        losses.append([training.step(batch, {"learning_rate": 1.0}).loss for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
