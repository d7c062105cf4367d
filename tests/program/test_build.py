from __future__ import annotations

import dataclasses
import gc
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import ConfigError, DependencyError, ModelError, OrtBoostError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Adam, Sgd
from ortboost.program.build import build_program
from ortboost.program.catalogue import read_catalogue
from ortboost.program.config import ParameterGroup, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    GOLDEN,
    NAMES,
    assert_three_lines,
    batch_for,
    golden,
    model_path,
    run,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}
EXPORTS = GOLDEN / "exports"


def state_names(program, *kinds):
    return [entry.name for entry in program.catalogue.entries(*kinds)]


@pytest.mark.parametrize("name", NAMES)
class TestShipped:
    def test_structure_of_the_step(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        graph, catalogue = program.step.graph, program.catalogue
        assert [n.op_type for n in graph].count("If") == 1
        assert [value.name for value in graph.inputs] == [
            *(spec.name for spec in catalogue.batch),
            *(spec.name for spec in catalogue.hyper),
            *(entry.name for entry in catalogue.state),
        ]
        assert [value.name for value in graph.outputs] == [
            *(spec.name for spec in catalogue.outputs),
            *(entry.next for entry in catalogue.state if entry.next),
        ]
        assert [spec.name for spec in catalogue.outputs] == [
            "loss",
            "overflow",
            "loss_scale",
            "accuracy",
        ]
        for entry in catalogue.state:
            assert entry.next in (None, f"ortboost/next/{entry.name}")
        names = [node.name for node in graph.all_nodes()]
        assert len(set(names)) == len(names)

    def test_the_file_describes_itself(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        assert read_catalogue(program.step) == program.catalogue
        assert program.step.metadata_props["ortboost.kind"] == "step"
        assert program.evaluation.metadata_props["ortboost.kind"] == "eval"

    def test_the_graphs_are_valid(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        onnx.checker.check_model(ir.to_proto(program.evaluation), full_check=True)
        # The checker has no schemas for com.microsoft, and skips unknown operators.
        step = ir.to_proto(program.step)
        for node in step.graph.node:  # onnxruntime has these two in the standard domain
            if node.op_type in ("MaxPoolGrad", "AveragePoolGrad"):
                node.domain = "com.microsoft"
        onnx.checker.check_model(step)
        domains = {node.domain for node in program.evaluation.graph.all_nodes()}
        assert domains == {""}

    def test_state_has_shapes_dtypes_and_values(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        assert set(program.initial) == set(state_names(program, *KINDS))
        inputs = {value.name: value for value in program.step.graph.inputs}
        outputs = {value.name: value for value in program.step.graph.outputs}
        for entry in program.catalogue.state:
            array = program.initial[entry.name]
            assert array.shape == entry.shape
            assert array.dtype == entry.dtype
            for value in (inputs[entry.name], outputs.get(entry.next)):
                if value is not None:
                    assert tuple(value.shape) == entry.shape
                    assert value.dtype.numpy() == entry.dtype
        assert not any(v.const_value is not None for v in program.step.graph.inputs)

    def test_what_is_trained(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        wanted = {str(n) for n in golden(name)["param_names"]}
        assert {e.name for e in program.catalogue.entries("parameter") if e.next} == wanted
        slots = {f"ortboost/slot/{slot}/{n}" for slot in Adam().slots for n in wanted}
        assert set(state_names(program, "slot")) == slots
        buffers = {str(n) for n in golden(name).get("buffer_names", [])}
        assert set(state_names(program, "buffer")) == buffers

    def test_the_batch_stays_symbolic(self, name):
        program = shipped_program(name, optimizer=Adam(), metrics=("accuracy",))
        for spec in (*program.catalogue.batch, *program.evaluation_inputs):
            assert spec.shape[0] == "batch"
        training = stepper(program)
        for size in (1, 3, 7):
            result = training.step(batch_for(program, size), {"learning_rate": 1e-3})
            assert np.isfinite(result.loss)


KINDS = ("parameter", "buffer", "slot", "scale", "counter")


def test_randomness_is_known():
    assert shipped_program("transformer_tiny").catalogue.randomness
    assert not shipped_program("lenet5").catalogue.randomness


@pytest.mark.parametrize("as_proto", [False, True])
def test_the_source_is_not_changed(as_proto):
    model = small_convnet()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    build_program(ir.to_proto(model) if as_proto else model, ProgramConfig(new_head=5))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


# ---- what is trained ------------------------------------------------------------------------


def trained(program):
    return {entry.name for entry in program.catalogue.entries("parameter") if entry.next}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"cw", "s", "b", "fw", "fb"}),
        ({"trainable": ("f*",)}, {"fw", "fb"}),
        ({"freeze": ("f*", "s")}, {"cw", "b"}),
        ({"trainable": ("f*", "cw"), "freeze": ("fb",)}, {"fw", "cw"}),
        ({"trainable": ("*",)}, {"cw", "s", "b", "fw", "fb"}),
        ({"trainable": ("*", "mean")}, {"cw", "s", "b", "fw", "fb"}),
    ],
)
def test_patterns_choose(fields, expected):
    program = build_program(small_convnet(), ProgramConfig(**fields))
    assert trained(program) == expected
    training = stepper(program)
    before = training.state()
    training.step(batch_for(program, 4), RATE)
    after = training.state()
    for name in ("cw", "s", "b", "fw", "fb"):
        assert (before[name].tobytes() != after[name].tobytes()) == (name in expected), name
    for name in ("mean", "var"):
        assert before[name].tobytes() != after[name].tobytes()
    assert {f"ortboost/slot/momentum/{n}" for n in expected} == set(state_names(program, "slot"))


def test_a_constant_is_trained_if_asked_for_by_its_full_name():
    def scaled():
        return text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[batch,4] x, float[4,3] w, float temperature) => (float[batch,3] logits) {
              h = MatMul(x, w)
              logits = Mul(h, temperature)
            }""",
            w=weights(4, 3),
            temperature=np.float32(2),
        )

    assert trained(build_program(scaled(), ProgramConfig())) == {"w"}
    assert trained(build_program(scaled(), ProgramConfig(trainable=("*",)))) == {"w"}
    program = build_program(scaled(), ProgramConfig(trainable=("w", "temperature")))
    assert trained(program) == {"w", "temperature"}
    training = stepper(program)
    training.step(batch_for(program, 4), RATE)
    assert training.get("temperature") != 2


@pytest.mark.parametrize(
    "config",
    [
        ProgramConfig(trainable=("conv9*",)),
        ProgramConfig(freeze=("conv9*",)),
        ProgramConfig(groups=(ParameterGroup("a", ("conv9*",)),)),
        ProgramConfig(frozen_norm=("conv9*",)),
    ],
)
def test_a_pattern_that_matches_nothing(config):
    with pytest.raises(UsageError) as info:
        build_program(small_convnet(), config)
    assert_three_lines(info.value)
    assert "conv9*" in info.value.what


def test_everything_frozen():
    with pytest.raises(ModelError) as info:
        build_program(small_mlp(), ProgramConfig(freeze=("*",)))
    assert_three_lines(info.value)


def test_frozen_weights_are_state_without_a_next_value():
    program = build_program(small_mlp(), ProgramConfig(freeze=("w1",)))
    entry = next(e for e in program.catalogue.state if e.name == "w1")
    assert (entry.kind, entry.next) == ("parameter", None)


@pytest.mark.parametrize("pattern", ["bn", "s", "mean", "b*"])
def test_norms_are_frozen_by_node_or_tensor_name(pattern):
    program = build_program(small_convnet(), ProgramConfig(frozen_norm=(pattern,)))
    assert {e.name: e.next for e in program.catalogue.entries("buffer")} == {
        "mean": None,
        "var": None,
    }


def test_a_model_without_norms_has_none_to_freeze():
    with pytest.raises(UsageError) as info:
        build_program(small_mlp(), ProgramConfig(frozen_norm=("bn*",)))
    assert_three_lines(info.value)


def test_a_new_head():
    program = build_program(small_mlp(), ProgramConfig(new_head=7, seed=3))
    assert program.initial["w2"].shape == (7, 6)
    assert program.initial["ortboost/slot/momentum/w2"].shape == (7, 6)
    assert any(report.rewrite == "new_head" for report in program.reports)
    training = stepper(program)
    feeds = {**batch_for(program, 8), "labels": np.arange(8) % 7}
    assert np.isfinite(training.step(feeds, RATE).loss)
    assert training.evaluator().evaluate(feeds)["logits"].shape == (8, 7)


# ---- losses ---------------------------------------------------------------------------------


LOSSES = {
    "dense": (LossConfig(sparse=False), lambda n: np.eye(3, dtype=np.float32)[np.arange(n) % 3]),
    "mse": (LossConfig("mse"), lambda n: weights(n, 3)),
    "l1": (LossConfig("l1", "sum"), lambda n: weights(n, 3)),
    "bce": (
        LossConfig("bce-with-logits", pos_weight=np.float32([1, 2, 3])),
        lambda n: (weights(n, 3) > 0).astype(np.float32),
    ),
    "none": (LossConfig("mse", "none"), lambda n: weights(n, 3)),
    "ignore": (LossConfig(ignore_index=-1), lambda n: np.arange(n) % 4 - 1),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(loss):
    config, labels = LOSSES[loss]
    training = stepper(build_program(small_mlp(), ProgramConfig(loss=config)))
    feeds = {"x": weights(12, 4), "labels": labels(12)}
    losses = [training.step(feeds, {"learning_rate": 0.05}).loss for _ in range(200)]
    assert losses[-1] < 0.7 * losses[0]
    assert training.evaluator().evaluate(feeds)["loss"].mean() < losses[0]


@pytest.mark.parametrize("key", ["weight", "pos_weight"])
def test_the_weights_of_a_loss_are_not_trained(key):
    loss = LossConfig("bce-with-logits", **{key: [1.0, 2.0, 3.0]})
    program = build_program(small_mlp(), ProgramConfig(loss=loss))
    plain = build_program(small_mlp(), ProgramConfig(loss=LossConfig("bce-with-logits")))
    assert [e.name for e in program.catalogue.state] == [e.name for e in plain.catalogue.state]


def own_loss(labels: str = "labels") -> ir.Model:
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[batch,3] {labels}, float[4,3] w) =>
            (float[batch,3] scores, float cost) {{
          scores = MatMul(x, w)
          d = Sub(scores, {labels})
          s = Mul(d, d)
          cost = ReduceMean<keepdims = 0>(s)
        }}""",
        w=weights(4, 3),
    )


@pytest.mark.parametrize("name", ["labels", "target"])
def test_a_model_with_its_own_loss(name):
    config = ProgramConfig(loss=LossConfig("output", output="cost"))
    program = build_program(own_loss(name), config)
    assert program.labels is None
    training = stepper(program)
    feeds = {"x": weights(12, 4), name: weights(12, 3, seed=1)}
    losses = [training.step(feeds, {"learning_rate": 0.5}).loss for _ in range(50)]
    best = np.linalg.lstsq(feeds["x"], feeds[name], rcond=None)[0]
    np.testing.assert_allclose(
        losses[-1], ((feeds["x"] @ best - feeds[name]) ** 2).mean(), rtol=0.01
    )
    answers = training.evaluator().evaluate(feeds)
    assert answers["scores"].shape == (12, 3)
    np.testing.assert_allclose(answers["loss"], training.step(feeds, RATE).loss, rtol=1e-5)


def test_several_outputs_stay_in_the_evaluation():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,3] w) => (float[batch,3] logits, float[batch,3] p) {
          logits = MatMul(x, w)
          p = Softmax(logits)
        }""",
        w=weights(4, 3),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig(output="logits")))
    answers = (
        stepper(program).evaluator().evaluate({"x": weights(2, 4), "labels": np.array([0, 1])})
    )
    assert set(answers) == {"logits", "p", "loss"}


@pytest.mark.parametrize(
    ("loss", "shape", "class_axis"),
    [
        (LossConfig(), "batch", 1),
        (LossConfig(ignore_index=1), "batch", 1),
        (LossConfig(class_axis=1), "batch,3,5", 1),
        (LossConfig(shift_labels=True), "batch,5", 2),
        (LossConfig(shift_labels=True, ignore_index=0), "batch,5", 2),
    ],
)
def test_the_accuracy_of_a_step(loss, shape, class_axis):
    """Of the labels that count; with shifted labels, each position predicts the next one."""
    image = shape.endswith("3,5")
    body = "y = Mul(x, w)" if image else "y = MatMul(x, w)"
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{shape + ("" if image else ",3")}] x, float[3,{1 if image else 3}] w)
        => (float[{shape + ("" if image else ",3")}] y) {{ {body} }}""",
        w=np.ones((3, 1), np.float32) if image else np.eye(3, dtype=np.float32),
    )
    config = ProgramConfig(loss=loss, metrics=("accuracy",), engine="portable")
    training = stepper(build_program(model, config))
    rng = np.random.default_rng(1)
    sizes = [{"batch": 4}.get(d) or int(d) for d in shape.split(",")] + ([] if image else [3])
    x = rng.standard_normal(sizes).astype(np.float32)
    guess = x.argmax(class_axis)
    labels = np.where(rng.random(guess.shape) < 0.5, guess, rng.integers(0, 3, guess.shape))
    if loss.shift_labels:
        guess, wanted = guess[:, :-1], labels[:, 1:]
        x[:, -1] = [9, 0, 0]  # the last position predicts nothing
    else:
        wanted = labels
    counted = wanted != (-100 if loss.ignore_index is None else loss.ignore_index)
    result = training.step({"x": x, "labels": labels}, RATE)
    assert 0 < result.metrics["accuracy"] < 1
    assert result.metrics["accuracy"] == np.float32((guess == wanted)[counted].mean())


def test_accuracy_needs_classes():
    config = ProgramConfig(loss=LossConfig("mse"), metrics=("accuracy",))
    with pytest.raises(ConfigError) as info:
        build_program(small_mlp(), config)
    assert_three_lines(info.value)


# ---- names ----------------------------------------------------------------------------------

TAKEN = ("overflow", "loss_scale", "learning_rate", "loss", "labels", "accuracy")
OURS = (
    "ortboost/loss_scale",
    "ortboost/next/w1",
    "ortboost/step",
    "ortboost/gate",
    "ortboost/update/Mul",
)


def called(name: str, kind: str) -> ir.Model:
    model = small_mlp()
    if kind == "inner":
        next(iter(model.graph)).outputs[0].name = name
    elif kind == "parameter":
        value = model.graph.initializers.pop("b1")
        value.name = name
        model.graph.register_initializer(value)
    else:
        values = model.graph.inputs if kind == "input" else model.graph.outputs
        values[0].name = name
    return model


def one_step(model) -> float:
    program = build_program(model, ProgramConfig(metrics=("accuracy",)))
    return stepper(program).step(batch_for(program, 4), RATE).loss


@pytest.mark.parametrize("name", [*TAKEN, *OURS, "w1_grad"])
def test_inner_tensors_make_way_for_our_names(name):
    assert one_step(called(name, "inner")) == one_step(small_mlp())


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize("name", [*TAKEN, *OURS, "w1_grad"])
def test_inputs_and_outputs_with_our_names_are_refused(name, kind):
    with pytest.raises(OrtBoostError) as info:
        one_step(called(name, kind))
    assert isinstance(info.value, (ModelError, UsageError))
    assert_three_lines(info.value)
    assert name in str(info.value)


def test_a_rewrite_of_ours_in_the_source_does_no_harm():
    assert one_step(called("ortboost/slot/momentum/w1", "parameter")) == one_step(small_mlp())


# ---- refusals -------------------------------------------------------------------------------


def test_all_blockers_are_listed_at_once():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w) => (float[batch,4] y) {
          a = MatMul(x, w)
          [first] b = Hardmax(a)
          [second] c = Mish(a)
          [third] d = Hardmax(a)
          e = Add(b, c)
          y = Add(d, e)
        }""",
        w=weights(4, 4),
    )
    with pytest.raises(ModelError) as info:
        build_program(model, ProgramConfig())
    assert_three_lines(info.value)
    assert "'first'" in info.value.where
    assert "'third'" in info.value.where


def test_an_unknown_engine():
    with pytest.raises((UsageError, DependencyError)) as info:
        build_program(small_mlp(), ProgramConfig(engine="natvie"))
    assert_three_lines(info.value)


# ---- the evaluation graph -------------------------------------------------------------------


def test_evaluation_runs_on_the_state_alone():
    program = build_program(small_convnet(), ProgramConfig())
    feeds = batch_for(program, 5)
    known = {v.name for v in program.evaluation.graph.inputs}
    data = {k: v for k, v in {**program.initial, **feeds}.items() if k in known}
    answers = run(program.evaluation, data)
    expected = run(small_convnet(), {"x": feeds["x"]})["logits"]
    np.testing.assert_allclose(answers["logits"], expected, rtol=1e-5, atol=1e-6)


# ---- the fingerprint --------------------------------------------------------------------------

BASE = ProgramConfig()


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": Sgd()},
        {"optimizer": Adam()},
        {"weight_decay": 0.1},
        {"loss_scale": NO_SCALE},
        {"loss": LossConfig(reduction="sum")},
        {"freeze": ("w1",)},
        {"metrics": ("accuracy",)},
        {"gradient_divisor": 2.0},
        {"new_head": 5},
        {"groups": (ParameterGroup("a", ("w1",), "0.5"),)},
    ],
    ids=str,
)
def test_the_fingerprint_follows_the_configuration(fields):
    changed = build_program(small_mlp(), dataclasses.replace(BASE, **fields))
    assert changed.fingerprint != build_program(small_mlp(), BASE).fingerprint


def test_the_fingerprint_does_not_follow_the_values():
    one, other = (build_program(small_mlp(seed=s), BASE) for s in (0, 10))
    assert (one.initial["w1"] != other.initial["w1"]).all()
    assert one.fingerprint == other.fingerprint


def test_the_fingerprint_is_reproducible():
    assert (
        build_program(small_mlp(), BASE).fingerprint == build_program(small_mlp(), BASE).fingerprint
    )
    one = build_program(model_path("resnet20"), BASE).fingerprint
    assert one == build_program(model_path("resnet20"), BASE).fingerprint


TWO_OUTPUTS = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,4] x, float[4,3] w, float[4,2] v) => (float[N,3] cls, float[N,2] box) {
  cls = MatMul(x, w)  box = MatMul(x, v)
}"""


def two_outputs():
    return text_model(TWO_OUTPUTS, w=np.ones((4, 3), np.float32), v=np.ones((4, 2), np.float32))


def test_parameters_of_another_output_are_left_alone():
    program = build_program(two_outputs(), ProgramConfig(loss=LossConfig(output="cls")))
    entries = {entry.name: entry.next for entry in program.catalogue.entries("parameter")}
    assert entries == {"w": "ortboost/next/w", "v": None}
    report = next(r for r in program.reports if r.rewrite == "choose_trainable")
    assert report.kept == {"v": "the loss does not depend on it"}
    assert any("not trained" in note for note in report.notes)


def test_a_parameter_that_was_asked_for_is_not_left_out_silently():
    config = ProgramConfig(loss=LossConfig(output="cls"), trainable=("w", "v"))
    with pytest.raises(ModelError, match="depend"):
        build_program(two_outputs(), config)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        build_program(small_mlp(), ProgramConfig())
        assert gc.isenabled() == enabled
        with pytest.raises(UsageError):
            build_program(small_mlp(), ProgramConfig(freeze=("nothing",)))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_running_statistics_survive_what_is_removed_as_unused():
    """Removing the identity Transposes of a decomposed Resize does not remove any state."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,4,4] x, float[2,1,3,3] w, float[2] s, float[2] t, float[2] m, float[2] v,
             float[4] sizes) => (float[N,2] y) {
          c = Conv(x, w) b = BatchNormalization(c, s, t, m, v)
          r = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(b, , sizes)
          p = GlobalAveragePool(r) y = Flatten(p) }""",
        w=weights(2, 1, 3, 3),
        s=weights(2, seed=1),
        t=weights(2, seed=2),
        m=weights(2, seed=3),
        v=np.ones(2, np.float32),
        sizes=np.array([1, 1, 2, 2], np.float32),
    )
    program = build_program(model, ProgramConfig(engine="portable"))
    assert {e.name for e in program.catalogue.state if e.next} >= {"w", "s", "t", "m", "v"}
    made = {node.op_type for node in program.step.graph.all_nodes()}
    assert "Resize" not in made


def test_what_preparation_completes_survives_what_is_removed_as_unused():
    """Equal Transposes beside a LayerNormalization whose mean and deviation only gradients read."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,4,4] x, float[2,1,3,3] w, float[2] s, float[2] t, float[4] sizes)
            => (float[N,2] y) {
          c = Conv(x, w)
          r = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(c, , sizes)
          p = GlobalAveragePool(r) f = Flatten(p) y = LayerNormalization(f, s, t) }""",
        w=weights(2, 1, 3, 3),
        s=weights(2, seed=1),
        t=weights(2, seed=2),
        sizes=np.array([1, 1, 2, 2], np.float32),
    )
    program = build_program(model, ProgramConfig(engine="portable"))
    assert {e.name for e in program.catalogue.state if e.next} >= {"w", "s", "t"}


def test_a_momentum_of_1_is_told():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3] y) {
          y = BatchNormalization<momentum=1.0>(x, s, b, m, v) }""",
        **dict.fromkeys("sbmv", np.array([1, 2, 3], np.float32)),
    )
    config = ProgramConfig(loss=LossConfig("mse"))
    notes = [note for report in build_program(model, config).reports for note in report.notes]
    assert any(note.startswith("1 BatchNormalization with a momentum of 1") for note in notes)
    frozen = dataclasses.replace(config, frozen_norm=("*",))
    notes = [note for report in build_program(model, frozen).reports for note in report.notes]
    assert not any("momentum" in note for note in notes)


def test_a_real_inverse_transform_is_written_out_for_evaluation_too():
    """A global filter (Rao et al., 2021); onnxruntime 1.19 does not open the model itself."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,8,3,1] x, float[5,3,2] w) => (float[N,8,3,1] y) {
          s = DFT<axis = 1, onesided = 1>(x)  p = Mul(s, w)
          y = DFT<axis = 1, inverse = 1, onesided = 1>(p) }""",
        w=weights(5, 3, 2),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig("mse")))
    assert state_names(program, "parameter") == ["w"]
    x, w = weights(2, 8, 3, 1), weights(5, 3, 2)
    spectrum = np.fft.rfft(x[..., 0], axis=1)
    filtered = spectrum.real * w[..., 0] + 1j * spectrum.imag * w[..., 1]
    found = run(program.evaluation, {"x": x, "w": w, "labels": np.zeros_like(x)})["y"]
    np.testing.assert_allclose(found[..., 0], np.fft.irfft(filtered, axis=1), atol=1e-6)


def test_the_last_window_of_an_average_pool_is_that_of_the_standard():
    """torch's `AvgPool2d(2, ceil_mode=True)`: onnxruntime 1.19 counts positions past the end."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,3,3] x, float[1,1,1,1] w) => (float[N,1,2,2] y) { h = Conv(x, w)
          y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1, count_include_pad=1>(h)
        }""",
        w=weights(1, 1, 1, 1),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig("mse")))
    feeds = {"x": np.ones((2, 1, 3, 3), np.float32), "w": np.ones((1, 1, 1, 1), np.float32)}
    found = run(program.evaluation, {**feeds, "labels": np.zeros((2, 1, 2, 2), np.float32)})
    np.testing.assert_allclose(found["y"], np.ones((2, 1, 2, 2)))


def test_class_indices_that_a_models_own_losses_read_are_checked():
    """Two heads and three labels; a runtime reads out of bounds for a class that does not exist."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,4] x, int64[n] kind, int64[n,1] part, float[n,2] box, float[4,3] wk,
            float[4,5] wp, float[4,2] wb) =>
            (float[n,3] k, float[n,5] p, float[n,2] b, float loss) <int64[1] one = {1}> {
        k = MatMul(x, wk) p = MatMul(x, wp) b = MatMul(x, wb) flat = Squeeze(part, one)
        lk = SoftmaxCrossEntropyLoss(k, kind)
        lp = SoftmaxCrossEntropyLoss<ignore_index = -1>(p, flat)
        d = Sub(b, box) s = Mul(d, d) lb = ReduceMean<keepdims = 0>(s)
        both = Add(lk, lp) loss = Add(both, lb) }""",
        wk=weights(4, 3),
        wp=weights(4, 5),
        wb=weights(4, 2),
    )
    loss = LossConfig("output", output="loss")
    program = build_program(model, ProgramConfig(loss=loss, optimizer=Sgd()))
    found = {spec.name: (spec.classes, spec.ignored) for spec in program.catalogue.batch}
    assert found == {"x": (None, None), "kind": (3, None), "part": (5, -1), "box": (None, None)}
    feeds = {
        "x": weights(6, 4, seed=1),
        "kind": np.array([0, 1, 2, 0, 1, 2]),
        "part": np.array([[4], [0], [-1], [2], [3], [1]]),
        "box": weights(6, 2, seed=2),
    }
    training, x, n = stepper(program), feeds["x"], 6
    scores, boxes = x @ weights(4, 3), x @ weights(4, 2)
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = {
        "wk": x.T @ (chances - np.eye(3)[feeds["kind"]]) / n,
        "wb": x.T @ (boxes - feeds["box"]) * 2 / boxes.size,
    }
    training.step(feeds, RATE)
    for name, gradient in expected.items():
        moved = program.initial[name] - training.state()[name]
        np.testing.assert_allclose(moved / 0.1, gradient, rtol=1e-4, atol=1e-6)
    for name, stray in (("kind", 3), ("part", 5), ("kind", -1)):
        wrong = feeds | {name: np.full_like(feeds[name], stray)}
        for run_one in (training.evaluator().evaluate, partial(training.step, hyper=RATE)):
            with pytest.raises(UsageError, match=f"The label {stray} is not a class"):
                run_one(wrong)


@pytest.mark.parametrize("kind", [ir.to_proto, lambda model: model])
@pytest.mark.parametrize("source", ["named", *sorted(p.name for p in EXPORTS.glob("*.onnx"))])
def test_a_model_in_memory_is_not_changed(source, kind):
    """Not even the names of weights, which are renamed in the program."""
    if source == "named":
        model = ir.from_onnx_text(
            """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
            net (float[N,2] x) => (float[N,2] y)
            <float[2,2] "ortboost/w" = {1, 2, 3, 4}, float[2] b = {1, 2}> {
              c = Constant<value = float[2] {1, 2}>()
              a = Gemm(x, "ortboost/w", b) d = own.shift(a) y = Mul(d, c) }
            <domain: "own", opset_import: ["" : 18]>
            shift (u) => (v) {
              e = Constant<value = float[2] {1, 2}>() v = Add(u, e) }"""
        )
    else:
        model = ir.load(EXPORTS / source)
    given = kind(model)

    def content():
        proto = given if isinstance(given, onnx.ModelProto) else ir.to_proto(given)
        return proto.SerializeToString(deterministic=True)

    before = content()
    build_program(given, ProgramConfig())
    assert content() == before
