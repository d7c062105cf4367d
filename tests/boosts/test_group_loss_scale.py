"""Boundaries between scale groups: forward identity, backward the ratio, blame where it is due."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, GroupedScaleConfig
from ortboost.optimizers import Adam, Momentum, Sgd
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig
from tests.mindspore.nn import golden
from tests.program.test_combine import network
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    grouped_update,
    model_path,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.05}


def build(model, groups=2, engine="portable", **fields):
    law = groups if isinstance(groups, GroupedScaleConfig) else law_of(groups)
    config = ProgramConfig(loss_scale=law, engine=engine, **fields)
    return build_program(model, config)


def law_of(groups, **fields):
    number = groups if isinstance(groups, int) else len(groups)
    init = tuple(2.0 ** (5 + 3 * index) for index in range(number))
    return GroupedScaleConfig(init_scale=init, groups=groups, **{"grow": 1.0, **fields})


def report(program):
    return next(r for r in program.reports if r.rewrite == "scale_groups")


def tied():
    """One weight in two layers of different groups."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4,4] v, float[3,4] u)
            => (float[batch,3] logits) {
          [one] a = MatMul(x, w)
          [act] b = Tanh(a)
          [two] c = MatMul(b, v)
          [again] d = MatMul(c, w)
          [skip] e = Add(d, b)
          [out] logits = Gemm<transB = 1>(e, u)
        }""",
        w=weights(4, 4),
        v=weights(4, 4, seed=1),
        u=weights(3, 4, seed=2),
    )


MODELS = {
    "mlp": (small_mlp, 2),
    "convnet": (small_convnet, 2),
    "residual": (network, 3),
    "tied": (tied, 3),
    "by name": (network, (("*w",), ("*",))),
    "against the order": (small_mlp, (("w2", "b2"), ("w1", "b1"))),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_groups_of_any_kind_change_no_update(name, engine):
    """Powers of two go in and out exactly; the portable engine may sum in another order."""
    make, groups = MODELS[name]
    fields = {"optimizer": Momentum(), "engine": engine}
    grouped = stepper(build(make(), groups, **fields))
    plain = stepper(build_program(make(), ProgramConfig(loss_scale=NO_SCALE, **fields)))
    for seed in range(3):
        for training in (grouped, plain):
            result = training.step(batch_for(training.program, 6, seed=seed), RATE)
            assert not result.overflow
    for entry in plain.catalogue.entries("parameter", "buffer", "slot"):
        np.testing.assert_allclose(
            grouped.get(entry.name), plain.get(entry.name), rtol=2e-6, atol=5e-7
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_no_boundary_is_left_in_the_step(name, engine):
    make, groups = MODELS[name]
    program = build(make(), groups, engine)
    assert report(program).changed
    assert not [v.name for v in program.step.graph.inputs if "boundary" in (v.name or "")]
    spec = [spec.name for spec in program.catalogue.batch]
    assert spec == ["x", "labels"]


def test_the_report_names_the_first_tensors_of_each_group():
    two = report(build(small_mlp(), 2)).notes
    assert "scale group 1: 2 tensors, w1, b1" in two
    assert "scale group 2: 2 tensors, w2, b2" in two
    three = report(build(small_mlp(), (("w1", "b1", "w2"), ("b2",)))).notes
    assert "scale group 1: 3 tensors, w1, b1, ..." in three
    assert "scale group 2: 1 tensors, b2" in three


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_network(engine):
    program = build(model_path("transformer_tiny"), 4, engine)
    grouped = stepper(program)
    plain = stepper(
        build_program(
            model_path("transformer_tiny"), ProgramConfig(loss_scale=NO_SCALE, engine=engine)
        )
    )
    for training in (grouped, plain):
        training.step(batch_for(program, 4), RATE, seed=3)
    for entry in plain.catalogue.entries("parameter"):
        np.testing.assert_allclose(
            grouped.get(entry.name), plain.get(entry.name), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("guilty", [1, 2, 3])
def test_the_group_where_an_overflow_begins_is_to_blame(guilty, engine):
    """Its own scale is beyond all reason; what is below it is not finite either."""
    init = tuple(2.0**127 if number == guilty else 2.0**10 for number in (1, 2, 3))
    law = GroupedScaleConfig(init, 3, min_scale=None, max_scale=None)
    loss = LossConfig(reduction="sum")
    training = stepper(build(network(), law, engine, loss=loss))
    before = training.state()
    batch = batch_for(training.program, 64)
    result = training.step(batch, RATE)
    assert result.overflow
    expected = grouped_update(law.starts(), np.arange(1, 4) == guilty, law)
    np.testing.assert_array_equal(training.get(names.SCALE), expected)
    assert result.loss_scale == expected[0]
    assert result.loss_scales == tuple(expected)
    for entry in training.catalogue.entries("parameter", "buffer", "slot"):
        assert training.get(entry.name).tobytes() == before[entry.name].tobytes()


@given(pattern=st.lists(st.booleans(), min_size=1, max_size=30))
@settings(max_examples=15, deadline=None)
def test_the_scales_in_the_graph_follow_their_host_twin(pattern):
    training = in_three_groups()
    law = THREE
    training.load_state(training.program.initial)
    good = batch_for(training.program, 6)
    bad = {**good, "x": np.full_like(good["x"], np.nan)}
    scales = law.starts()
    for overflow in pattern:
        result = training.step(bad if overflow else good, {"learning_rate": 0.0})
        assert result.overflow == overflow
        # nan data come from outside: the last group is not finite, so it is to blame
        scales = grouped_update(scales, np.array([False, False, overflow]), law)
        np.testing.assert_array_equal(training.get(names.SCALE), scales)
    assert result.total_skips == sum(pattern)


THREE = GroupedScaleConfig((64.0, 8.0, 16.0), 3, min_scale=4.0, max_scale=70.0)


@functools.cache
def in_three_groups():
    return stepper(build(steep(), THREE))


@pytest.mark.parametrize("engine", ENGINES)
def test_ten_steps_are_those_of_mindspore(engine):
    """Ours un-scales by the scale that was used; the original by the new one, 2^(1/1000) larger.

    All gradients of a clean run are too small there by that factor, which is a smaller rate.
    """
    file = golden.read("boost")
    about = file["meta"]["groups"]
    law = GroupedScaleConfig(
        tuple(about["start"]), (("fc1.*",), ("fc2.*",)), min_scale=None, max_scale=None
    )
    net = golden.network("mlp")
    config = ProgramConfig(loss_scale=law, engine=engine, optimizer=Momentum(momentum=0.9))
    training = stepper(build_program(net.to_model(), config))
    rate = {"learning_rate": 0.05 * 2.0 ** (-1 / 1000)}
    for index, (x, labels) in enumerate(golden.batches("mlp", about["count"])):
        result = training.step({"x": x, "labels": labels.astype(np.int64)}, rate)
        assert result.loss == pytest.approx(float(file["groups/loss"][index]), abs=2e-6)
        assert result.loss_scale == pytest.approx(float(file["groups/loss_scale"][index]), rel=1e-6)
    for entry in file["meta"]["layout"]["mlp"]:
        window = tuple(slice(None, None, stride) for stride in entry["stride"])
        want = file["groups/params"][0][entry["offset"] : entry["offset"] + entry["size"]]
        have = training.get(entry["name"])[window].ravel()
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-6)


def steep():
    """The gradient of `w2` is tiny, for its input is; what goes down through it is huge."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w1, float[4,4] w2, float[3,4] w3)
            => (float[batch,3] logits) {
          [one] a = MatMul(x, w1)
          [act1] b = Tanh(a)
          [two] c = MatMul(b, w2)
          [act2] d = Tanh(c)
          [out] logits = Gemm<transB = 1>(d, w3)
        }""",
        w1=weights(4, 4) * np.float32(1e-30),
        w2=weights(4, 4, seed=1) * np.float32(1e4),
        w3=weights(3, 4, seed=2),
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_group_is_to_blame_for_what_it_sends_down(frozen, engine):
    """Otherwise none is blamed, every scale grows, and all later steps are skipped."""
    law = GroupedScaleConfig(
        (2.0**10, 2.0**126, 2.0**10), (("w1",), ("w2",), ("w3",)), min_scale=None, max_scale=None
    )
    fields = {}
    if frozen:  # the graph trains nothing of the group that causes it
        fields["grad_freeze"] = FreezeConfig(groups=(("w1", "w3"), ("w2",)), sequence=(0,))
    loss = LossConfig(reduction="sum")
    training = stepper(build(steep(), law, engine, loss=loss, optimizer=Sgd(), **fields))
    result = training.step(batch_for(training.program, 64), RATE)
    assert result.overflow
    expected = grouped_update(law.starts(), np.array([False, True, False]), law)
    np.testing.assert_array_equal(training.get(names.SCALE), expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"accumulate": 2},
        {"grad_freeze": FreezeConfig(param_groups=3, sequence=(0, 2, 1, 0))},
        {"optimizer": Adam(), "weight_decay": 0.1},
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_together_with_other_boosts_it_resumes_to_the_same_bits(fields, engine, tmp_path):
    program = build(network(), law_of(3, grow=1.01), engine, **fields)
    program.save(tmp_path)
    one, two = stepper(program), stepper(program, in_place=False)
    for seed in range(4):
        for training in (one, two):
            training.step(batch_for(program, 6, seed=seed), RATE)
    assert_same_bits(one.state(), two.state())
    three = stepper(Program.load(tmp_path))
    three.load_state(one.state())
    for seed in range(4):
        for training in (one, three):
            training.step(batch_for(program, 6, seed=seed), RATE)
    assert_same_bits(one.state(), three.state())


def test_scales_of_groups_that_a_step_does_not_train_stay():
    freeze = FreezeConfig(groups=(("sw", "aw", "bw", "fw"), ("fw", "fb")), sequence=(1, 0))
    program = build(network(), law_of(3, grow=1.5, max_scale=None), grad_freeze=freeze)
    training = stepper(program)
    before = training.get(names.SCALE)
    training.step(batch_for(program, 6), RATE)
    np.testing.assert_array_equal(training.get(names.SCALE), before * np.float32([1, 1, 1.5]))
    training.step(batch_for(program, 6), RATE)
    expected = before * np.float32([1.5, 1.5, 2.25])
    np.testing.assert_array_equal(training.get(names.SCALE), expected)


# ---- marks -------------------------------------------------------------------------------------


def marked(marks, groups=(("w1", "b1"), ("w2", "b2"))):
    return law_of(groups, marks=tuple(marks))


@pytest.mark.parametrize("outside", [0, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_marks_say_where_scales_change(engine, outside):
    law = marked([("a", 1, 2), ("logits", 2, outside)])
    grouped = stepper(build(small_mlp(), law, engine, optimizer=Sgd()))
    plain = stepper(
        build_program(
            small_mlp(), ProgramConfig(loss_scale=NO_SCALE, optimizer=Sgd(), engine=engine)
        )
    )
    for training in (grouped, plain):
        assert not training.step(batch_for(plain.program, 6), RATE).overflow
    for entry in plain.catalogue.entries("parameter"):
        np.testing.assert_allclose(
            grouped.get(entry.name), plain.get(entry.name), rtol=2e-6, atol=1e-7
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_with_marks_the_last_group_is_to_blame_for_what_comes_from_the_loss(engine):
    law = marked([("a", 1, 2), ("logits", 2, 3)])
    training = stepper(build(small_mlp(), law, engine))
    batch = batch_for(training.program, 6)
    assert training.step({**batch, "x": np.full_like(batch["x"], np.nan)}, RATE).overflow
    expected = grouped_update(law.starts(), np.array([False, True]), law)
    np.testing.assert_array_equal(training.get(names.SCALE), expected)


@pytest.mark.parametrize(
    "marks",
    [
        [("logits", 2, 3)],  # group 1 would have the scale of group 2
        [("a", 1, 2)],  # nothing introduces the scale of group 2
        [("logits", 1, 3), ("a", 2, 1)],  # the wrong way round
    ],
)
def test_marks_that_give_a_parameter_another_scale_are_refused(marks):
    with pytest.raises(ConfigError, match="The marks give") as caught:
        build(small_mlp(), marked(marks))
    assert_three_lines(caught.value)


def test_a_mark_that_a_skip_connection_walks_round_is_refused():
    law = law_of((("w", "v"), ("u",)), marks=(("logits", 2, 3), ("d", 1, 2)))
    with pytest.raises(ConfigError, match="The marks give") as caught:
        build(tied(), law)
    assert_three_lines(caught.value)


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (5, "2 layers"),
        ((("w1",), ("w2",)), "in no group"),
        ((("w1",), ("nothing",)), "matches no"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(small_mlp(), groups)
    assert_three_lines(caught.value)


def test_a_mark_at_no_tensor_is_refused():
    with pytest.raises(ConfigError, match="is not a tensor between") as caught:
        build(small_mlp(), marked([("nowhere", 1, 2)]))
    assert_three_lines(caught.value)


def test_first_scales_whose_ratio_is_zero_in_float32_are_refused():
    far = {"init_scale": (2.0**-100, 2.0**100), "min_scale": None, "max_scale": None}
    with pytest.raises(ConfigError, match="too far apart") as caught:
        GroupedScaleConfig(**far)
    assert_three_lines(caught.value)
    assert GroupedScaleConfig(**{**far, "init_scale": (2.0**-20, 2.0**100)}).number == 2


def test_it_needs_the_finite_check():
    with pytest.raises(ConfigError, match="finite check"):
        ProgramConfig(loss_scale=GroupedScaleConfig(), check_finite=False)


def test_the_configuration_survives_json():
    law = GroupedScaleConfig((4.0, 8.0), (("a*",), ("b", "c")), marks=(("t", 1, 2),))
    config = ProgramConfig(loss_scale=law)
    data = json.loads(json.dumps(config.to_dict()))
    assert ProgramConfig.from_dict(data) == config


@pytest.mark.parametrize("emulate", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_scales_far_apart_in_float16(engine, emulate):
    """Their ratio, 4e-8, is 0 or inexact there: 6e-8 is the smallest number above 0."""
    groups = GroupedScaleConfig(
        init_scale=(1e-3, 2.5e4), groups=(("w1", "b1"), ("w2", "b2")), min_scale=None
    )
    moved = []
    for scale, precision in (
        (NO_SCALE, PrecisionConfig()),
        (groups, PrecisionConfig("fp16", emulate=emulate)),
    ):
        config = ProgramConfig(
            loss_scale=scale, precision=precision, optimizer=Sgd(), engine=engine
        )
        training = stepper(build_program(small_mlp(), config))
        before = training.get("w1")
        assert training.step(batch_for(training.program, 6), RATE).updated
        moved.append(training.get("w1") - before)
    size = np.abs(moved[0]).max()
    np.testing.assert_allclose(moved[1], moved[0], atol=0.02 * size)
