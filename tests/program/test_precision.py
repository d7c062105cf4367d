"""Programs in mixed precision: they build, train, overflow, export and resume on both engines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import MixedPrecision
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.errors import ModelError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, FixedScaleConfig
from ortboost.deploy.export import export_model
from ortboost.graph.io import save_model
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig
from tests.support import (
    ENGINES,
    NAMES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    digits,
    model_path,
    run,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
)

RATE = {"learning_rate": 0.01}
HALF = PrecisionConfig("fp16")
EMULATED = PrecisionConfig("fp16", emulate=True)
ALL = PrecisionConfig("fp16", policy="all", keep_batchnorm=False, emulate=True)
SHORT = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def computes_in(model: ir.Model) -> set[ir.DataType]:
    nodes = [node for node in model.graph.all_nodes() if node.op_type != "Cast"]
    return {value.dtype for node in nodes for value in node.outputs} & set(SHORT)


@pytest.mark.parametrize("precision", [HALF, ALL], ids=["autocast", "all"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_model_trains(name, engine, precision):
    program = shipped_program(name, engine=engine, precision=precision)
    assert bool(computes_in(program.step)) != precision.emulate
    state = program.catalogue.state
    assert all(e.dtype == np.float32 for e in state if e.kind in ("parameter", "buffer", "slot"))
    training, feeds = stepper(program), batch_for(program, 4)
    start = training.state()
    results = [training.step(feeds, RATE) for _ in range(4)]
    assert not results[-1].overflow
    assert all(np.isfinite(result.loss) for result in results)
    moved = [e.name for e in program.catalogue.entries("parameter") if e.next]
    after = training.state()
    assert all(after[name].tobytes() != start[name].tobytes() for name in moved)


@pytest.mark.parametrize("name", ["lenet5", "mobilenet_like", "transformer_tiny"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradients_are_near_those_of_float32(name, engine):
    """One step of plain momentum changes a weight by its gradient."""
    found = {}
    for key, precision in (("fp32", PrecisionConfig()), ("fp16", HALF)):
        program = shipped_program(name, engine=engine, precision=precision)
        training = stepper(program)
        before = training.state()
        for _ in range(30):  # until the scale fits
            if not training.step(batch_for(program), {"learning_rate": 1.0}).overflow:
                break
        after = training.state()
        found[key] = {
            e.name: before[e.name] - after[e.name] for e in program.catalogue.entries("parameter")
        }
    total = np.sqrt(sum(float((g**2).sum()) for g in found["fp32"].values()))
    error = np.sqrt(
        sum(float(((found["fp16"][n] - g) ** 2).sum()) for n, g in found["fp32"].items())
    )
    assert 0 < error < 0.04 * total


@pytest.mark.parametrize("compute", ["fp16", "bf16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_on_the_cpu_a_mixed_step_is_emulated(engine, compute):
    """The same bits with or without rounding in the file."""
    states = []
    for emulate in (False, True):
        precision = PrecisionConfig(compute, emulate=emulate)
        program = shipped_program("lenet5", engine=engine, precision=precision)
        assert bool(computes_in(program.step)) != emulate
        training = stepper(program)
        for seed in range(3):
            training.step(batch_for(program, seed=seed), RATE)
        states.append(training.state())
    assert_same_bits(*states)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_file_is_as_good_as_the_program(engine, tmp_path):
    program = build_program(small_convnet(), ProgramConfig(engine=engine, precision=HALF))
    program.save(tmp_path / "run")
    loaded = Program.load(tmp_path / "run")
    assert loaded.config == program.config
    onnx.checker.check_model(onnx.load(tmp_path / "run" / "eval.onnx"), full_check=True)
    states = []
    for each in (program, loaded):
        training = stepper(each)
        for seed in range(3):
            training.step(batch_for(each, 4, seed), RATE)
        states.append(training.state())
    assert_same_bits(*states)


@pytest.mark.parametrize("name", ["resnet20", "transformer_tiny"])
def test_the_evaluation_graph_is_float32_and_exports_clean(name):
    plain = shipped_program(name)
    mixed = shipped_program(name, precision=ALL)
    assert ir.to_proto(plain.evaluation) == ir.to_proto(mixed.evaluation)
    assert not computes_in(mixed.evaluation)
    training = stepper(mixed)
    training.step(batch_for(mixed, 4), RATE)
    state = training.state()
    exported = export_model(mixed, state).model
    values = [v for node in exported.graph for v in (*node.inputs, *node.outputs) if v is not None]
    assert not any(value.dtype in SHORT for value in values)
    assert not any("precision" in (node.name or "") for node in exported.graph)
    feeds = batch_for(mixed, 4, seed=7)
    expected = training.evaluator().evaluate(feeds)[mixed.prediction]
    given = {name: value for name, value in feeds.items() if name != "labels"}
    np.testing.assert_allclose(
        run(exported, given)[mixed.prediction], expected, rtol=1e-3, atol=1e-5
    )


# ---- loss scale ---------------------------------------------------------------------------------


def train_digits(precision, scale, *, weight=1e-6, steps=250, rate=5e5):
    config = ProgramConfig(
        loss=LossConfig("bce-with-logits", weight=np.float32(weight)),
        optimizer=Momentum(),
        loss_scale=scale,
        precision=precision,
    )
    program = build_program(model_path("mlp"), config)
    training, data = stepper(program), digits()
    images, labels = (spec.name for spec in program.catalogue.batch)
    shape = program.catalogue.batch[0].shape[1:]
    rng = np.random.default_rng(0)
    rng.standard_normal(1)
    for entry in program.catalogue.entries("parameter"):
        if entry.role == "weight":  # new signs: the shipped weights are trained
            value = training.get(entry.name)
            training.set(entry.name, value * rng.choice(np.float32([-1, 1]), value.shape))
    target = np.eye(10, dtype=np.float32)[data["y_train"]]
    for _ in range(steps):
        chosen = rng.integers(len(target), size=32)
        feeds = {images: data["x_train"][chosen].reshape(32, *shape), labels: target[chosen]}
        training.step(feeds, {"learning_rate": rate})
    feeds = {
        images: data["x_test"].reshape(-1, *shape),
        labels: np.eye(10, dtype=np.float32)[data["y_test"]],
    }
    scores = training.evaluator().evaluate(feeds)[program.prediction]
    return float((scores.argmax(axis=1) == data["y_test"]).mean())


def test_small_gradients_vanish_without_a_scale_and_train_with_it():
    """The loss is scaled by 1e-6: gradients are below 2^-25, half of the smallest float16."""
    exact = train_digits(PrecisionConfig(), NO_SCALE)
    lost = train_digits(EMULATED, NO_SCALE)
    scaled = train_digits(EMULATED, DynamicScaleConfig(init_scale=2.0**16))
    assert exact > 0.9
    assert lost < 0.3
    assert scaled > exact - 0.01


@pytest.mark.parametrize("engine", ENGINES)
def test_a_scale_that_is_too_large_overflows_really(engine):
    law = DynamicScaleConfig(init_scale=2.0**24)
    program = build_program(
        small_mlp(), ProgramConfig(engine=engine, precision=HALF, loss_scale=law)
    )
    training, feeds = stepper(program), batch_for(program)
    before = training.state()
    first = training.step(feeds, RATE)
    assert first.overflow
    assert first.loss_scale == 2.0**23
    after = training.state()
    for entry in program.catalogue.entries("parameter", "slot"):
        assert before[entry.name].tobytes() == after[entry.name].tobytes()
    results = [training.step(feeds, RATE) for _ in range(12)]
    assert not results[-1].overflow
    assert results[-1].loss < first.loss
    exact = build_program(small_mlp(), ProgramConfig(engine=engine, loss_scale=law))
    assert not stepper(exact).step(feeds, RATE).overflow  # it fits into float32


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_tensor_that_overflowed_is_named(engine, emulate):
    precision = PrecisionConfig("fp16", emulate=emulate)
    program = build_program(small_convnet(), ProgramConfig(engine=engine, precision=precision))
    training, feeds = stepper(program), batch_for(program, 4)
    training.set("cw", training.get("cw") * 1000)
    feeds["x"] *= np.float32(1000)
    assert training.step(feeds, RATE).overflow
    first = training.diagnose(feeds, RATE).findings[0]
    assert first.where == "forward"
    assert first.tensor.name.endswith("round/c" if emulate else "c")
    assert first.tensor.limit == 65504.0
    assert first.tensor.inf > 0
    if not emulate:
        assert (first.node, first.op) == ("conv", "Conv")


# ---- batch normalization ------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e6])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_that_overflows_does_not_poison_running_statistics(engine, value, gated):
    """1e6 is finite, but overflows when cast to float16."""
    config = ProgramConfig(engine=engine, precision=HALF, gate_buffers=gated)
    program = build_program(small_convnet(), config)
    training, feeds = stepper(program), batch_for(program, 4)
    training.step(feeds, RATE)
    before = training.state()
    poisoned = feeds["x"].copy()
    poisoned[0, 0, 2, 3] = value
    assert training.step({**feeds, "x": poisoned}, RATE).overflow
    after = training.state()
    for name in ("mean", "var"):
        assert (before[name].tobytes() == after[name].tobytes()) == gated
        assert np.isfinite(after[name]).all() == gated
    for entry in program.catalogue.entries("parameter", "slot"):
        assert before[entry.name].tobytes() == after[entry.name].tobytes()
    if gated:
        assert not training.step(feeds, RATE).overflow
        scores = training.evaluator().evaluate(feeds)[program.prediction]
        assert np.isfinite(scores).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_are_those_of_float32(engine):
    states = {}
    for key, precision in (("fp32", PrecisionConfig()), ("fp16", HALF)):
        program = build_program(small_convnet(), ProgramConfig(engine=engine, precision=precision))
        training = stepper(program)
        for seed in range(5):
            training.step(batch_for(program, 4, seed), RATE)
        states[key] = training.state()
    for name in ("mean", "var"):
        np.testing.assert_allclose(states["fp16"][name], states["fp32"][name], rtol=3e-3, atol=2e-4)
        assert (states["fp16"][name] != states["fp32"][name]).any()


# ---- with other boosts --------------------------------------------------------------------------


def test_the_choices_of_other_boosts_are_those_of_float32():
    fields = {
        "grad_freeze": FreezeConfig(param_groups=2),
        "centralize": CentralizeConfig(multiple_of=1),
        "accumulate": 2,
    }
    plain = shipped_reports("mobilenet_like", **fields)
    mixed = shipped_reports("mobilenet_like", precision=HALF, **fields)
    assert mixed["grad_centralization"].changed == plain["grad_centralization"].changed
    assert mixed["grad_centralization"].kept == plain["grad_centralization"].kept
    groups = {
        key: [text.partition(" tensors")[0] for text in found["grad_freeze"].changed.values()]
        for key, found in (("plain", plain), ("mixed", mixed))
    }
    assert groups["plain"] == groups["mixed"]


def shipped_reports(name, **fields):
    program = build_program(model_path(name), ProgramConfig(**fields))
    training = stepper(program)
    for seed in range(4):
        assert np.isfinite(training.step(batch_for(program, 4, seed), RATE).loss)
    return {report.rewrite: report for report in program.reports}


def test_the_report_says_where_it_can_run():
    for precision, words in (
        (HALF, "float16 in float32"),
        (EMULATED, "is emulated"),
        (PrecisionConfig("bf16"), "no bfloat16 kernels"),
    ):
        program = build_program(small_mlp(), ProgramConfig(precision=precision))
        (report,) = (r for r in program.reports if r.rewrite == "place_precision")
        assert any(words in note for note in report.notes)
        assert set(report.changed) == {"fc1", "act", "fc2"}
    plain = build_program(small_mlp(), ProgramConfig())
    assert not any(r.rewrite == "place_precision" for r in plain.reports)


def test_a_model_with_nothing_to_shorten():
    keep = PrecisionConfig("fp16", keep_fp32=("fc*", "act"))
    with pytest.raises(ModelError, match="No operator") as raised:
        build_program(small_mlp(), ProgramConfig(precision=keep))
    assert_three_lines(raised.value)
    assert "--keep-fp32 or more with --force-low" in raised.value.in_options()
    assert "force_low of MixedPrecision" in str(raised.value)


def test_the_loss_is_float32():
    config = ProgramConfig(
        loss=LossConfig("mse"),
        loss_scale=FixedScaleConfig(1.0),
        precision=PrecisionConfig("fp16", "all"),
    )
    program = build_program(small_mlp(), config)
    training, feeds = stepper(program), batch_for(program)
    feeds["labels"] = np.full((8, 3), 1e4, np.float32)  # its square does not fit into float16
    assert training.step(feeds, {"learning_rate": 1e-9}).loss > 9e7


def test_a_part_of_the_loss_behind_a_loop_stays_in_float32(tmp_path):
    """The Loop reads the scores in its body only."""
    loss = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[N,3] scores, float[N,3] labels) => (float loss)
        <int64 n = {2}, bool t = {1}, int64[1] first = {0}, float[3,1] v = {1, 2, 3}> {
          l = Loop(n, t) <body = b (int64 i, bool k) => (bool m, p) {
            m = Identity(k) d = Sub(scores, labels) p = Mul(d, d) }>
          h = ReduceSum<keepdims = 0>(l, first) [after] q = MatMul(h, v)
          loss = ReduceMean<keepdims = 0>(q) }"""
    )
    save_model(loss, tmp_path / "loss.onnx")
    own = LossConfig(str(tmp_path / "loss.onnx"))
    boosts = (MixedPrecision("fp16"),)
    program = build_program(small_mlp(), ProgramConfig(own, engine="portable", boosts=boosts))
    (product,) = (n for n in program.graphs["step"].graph if n.name == "ortboost/loss/after")
    assert product.outputs[0].dtype == ir.DataType.FLOAT
