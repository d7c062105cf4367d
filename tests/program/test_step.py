"""One step: the scale, the gate, the update, the counters."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    initial_state,
    update,
)
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ParameterGroup, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    assert_same_bits,
    batch_for,
    needs_native,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
)

RATE = {"learning_rate": 0.1}
GOOD = batch_for(build_program(small_mlp(), ProgramConfig()), 6)
SCALES = {
    "window3": DynamicScaleConfig(init_scale=2.0**12, scale_window=3),
    "window1": DynamicScaleConfig(init_scale=2.0**14, scale_window=1, max_scale=2.0**16),
    "factor3": DynamicScaleConfig(init_scale=5.0, scale_factor=3.0, scale_window=2, max_scale=None),
    "low_minimum": DynamicScaleConfig(init_scale=1.0, scale_window=2, min_scale=2.0**-4),
    "below_minimum": DynamicScaleConfig(init_scale=0.5, scale_window=4),
    "hysteresis": DynamicScaleConfig(init_scale=2.0**12, scale_window=3, hysteresis=2),
    "patient": DynamicScaleConfig(
        init_scale=2.0**12, scale_window=2, hysteresis=3, consecutive_hysteresis=True
    ),
    "late": DynamicScaleConfig(init_scale=2.0**12, scale_window=2, hysteresis=2, late_growth=True),
    "fixed": FixedScaleConfig(128.0),
    "off": NO_SCALE,
}


@functools.cache
def trainer(**fields):
    return stepper(build_program(small_mlp(), ProgramConfig(**fields)))


@functools.cache
def scaled(name, engine="auto"):
    config = ProgramConfig(loss_scale=SCALES[name], engine=engine)
    return stepper(build_program(small_mlp(), config))


def fresh(training):
    training.load_state(training.program.initial)
    return training


def bad(value=np.inf):
    return {**GOOD, "x": np.full_like(GOOD["x"], value)}


POISON = [np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=30, deadline=None)
@given(pattern=st.lists(st.sampled_from([None, None, *POISON]), max_size=25))
def test_the_scale_in_the_graph_follows_its_host_twin(scale, pattern):
    training, config = fresh(scaled(scale)), SCALES[scale]
    twin, applied = initial_state(config), 0
    for poison in pattern:
        before = training.state()
        result = training.step(GOOD if poison is None else bad(poison), RATE)
        overflow = poison is not None
        twin = update(twin, overflow, config)
        applied += not overflow
        assert result.overflow == overflow
        assert np.float32(result.loss_scale).tobytes() == np.float32(twin.scale).tobytes()
        assert result.applied_steps == applied
        assert result.consecutive_skips == twin.consecutive_skips
        assert result.total_skips == twin.total_skips
        after = training.state()
        assert after["ortboost/step"] == applied
        assert after["ortboost/last_skipped"] == twin.skipped_last
        assert after["ortboost/consecutive_skips"] == twin.consecutive_skips
        assert after["ortboost/total_skips"] == twin.total_skips
        if "ortboost/loss_scale" in after:
            assert after["ortboost/loss_scale"] == twin.scale
        for entry in training.catalogue.entries("parameter", "slot"):
            same = before[entry.name].tobytes() == after[entry.name].tobytes()
            assert same == overflow, entry.name


@pytest.mark.parametrize("size", [1, 20, 100])
def test_a_long_window(size):
    training = stepper(
        build_program(
            small_mlp(), ProgramConfig(loss_scale=DynamicScaleConfig(8.0, scale_window=size))
        )
    )
    scales = [training.step(GOOD, {"learning_rate": 0.0}).loss_scale for _ in range(2 * size)]
    assert scales == [8.0] * (size - 1) + [16.0] * size + [32.0]


@pytest.mark.parametrize(
    "optimizer", [Sgd(), Momentum(), Adam(amsgrad=True), AdamW(), Lars()], ids=repr
)
def test_a_skipped_step_moves_nothing_but_scale_and_counters(optimizer):
    training = trainer(optimizer=optimizer, clip=ClipConfig("global-norm", 1.0), weight_decay=0.1)
    fresh(training)
    training.step(GOOD, RATE)
    before = training.state()
    assert training.step(bad(), RATE).overflow
    after = training.state()
    moved = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert moved == {
        "ortboost/loss_scale",
        "ortboost/good_steps",
        "ortboost/last_skipped",
        "ortboost/consecutive_skips",
        "ortboost/total_skips",
    }


@pytest.mark.parametrize("value", [1e38, 3e38])
def test_finite_data_overflow_too(value):
    training = fresh(scaled("window3"))
    assert training.step(bad(value), RATE).overflow
    assert training.get("w1").tobytes() == START["w1"].tobytes()


def test_the_gradients_decide_not_the_loss():
    """As in MindSpore, an infinite loss with finite gradients is not an overflow."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,3] x, float[1,3] w) => (float y) {
          sum = Add(x, w)
          y = ReduceSum<keepdims = 0>(sum)
        }""",
        w=np.ones((1, 3), np.float32),
    )
    training = stepper(build_program(model, ProgramConfig(loss=LossConfig("output"))))
    result = training.step({"x": np.full((1, 3), 3e38, np.float32)}, RATE)
    assert result.loss == np.inf
    assert not result.overflow


def test_one_bad_element_of_one_gradient_is_enough():
    training = fresh(trainer())
    poisoned = {**GOOD, "x": GOOD["x"].copy()}
    poisoned["x"][2, 1] = np.nan
    assert training.step(poisoned, RATE).overflow


def test_large_finite_gradients_are_no_overflow():
    # Only their sum overflows: sum(g) * 0 would be wrong here.
    program = build_program(small_mlp(), ProgramConfig(loss_scale=FixedScaleConfig(3e38)))
    training = stepper(program)
    result = training.step({**GOOD, "x": np.abs(GOOD["x"])}, {"learning_rate": 0.0})
    gradients = training.state()["ortboost/slot/momentum/b2"].astype(np.float64) * 3e38
    assert np.abs(gradients).sum() > 0
    assert not result.overflow


@pytest.mark.parametrize(
    ("size", "fields"),
    [
        (3e38, {"loss_scale": FixedScaleConfig(2.0**-20)}),
        (3e38, {"loss_scale": DynamicScaleConfig(init_scale=2.0**-20, scale_window=9)}),
        (1e36, {"loss_scale": NO_SCALE, "gradient_divisor": 2.0**-20}),
        (1e36, {"loss_scale": FixedScaleConfig(4.0), "gradient_divisor": 2.0**-20}),
    ],
    ids=str,
)
def test_gradients_that_overflow_when_they_are_unscaled(size, fields):
    """Finite in the engine's output, infinite where the optimizer reads them."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2] x, float[2,3] w)
          => (float[batch,3] logits) { logits = MatMul(x, w) }""",
        w=np.zeros((2, 3), np.float32),
    )
    config = ProgramConfig(loss=LossConfig(reduction="sum"), **fields)
    training = stepper(build_program(model, config))
    feeds = {"x": np.full((4, 2), size, np.float32), "labels": np.zeros(4, np.int64)}
    result = training.step(feeds, RATE)
    assert result.overflow
    assert not training.get("w").any()


@pytest.mark.parametrize("scale", ["window3", "fixed", "off"])
def test_the_loss_that_is_shown_is_not_scaled(scale):
    plain = fresh(scaled("off")).step(GOOD, RATE).loss
    assert fresh(scaled(scale)).step(GOOD, RATE).loss == plain


@needs_native  # a runtime's optimizer folds constant factors into products of the portable step
def test_powers_of_two_change_no_bit():
    runs = []
    for scale in ("window3", "fixed", "off"):
        training = fresh(scaled(scale, engine="native"))
        for _ in range(5):
            training.step(GOOD, RATE)
        runs.append({e.name: training.get(e.name) for e in training.catalogue.entries("parameter")})
    for other in runs[1:]:
        assert all(runs[0][name].tobytes() == other[name].tobytes() for name in other)


def test_without_the_check_everything_is_applied():
    training = stepper(
        build_program(
            small_mlp(), ProgramConfig(loss_scale=FixedScaleConfig(8.0), check_finite=False)
        )
    )
    names = [entry.name for entry in training.catalogue.state]
    assert "ortboost/total_skips" not in names
    assert not training.step(GOOD, RATE).overflow
    result = training.step(bad(), RATE)
    assert not result.overflow
    assert (result.applied_steps, result.total_skips) == (2, 0)
    assert not np.isfinite(training.get("w2")).all()
    assert result.loss_scale == 8.0


def test_without_the_check_a_good_step_has_the_same_bits():
    gated = fresh(scaled("off"))
    free = stepper(
        build_program(small_mlp(), ProgramConfig(loss_scale=NO_SCALE, check_finite=False))
    )
    for _ in range(5):
        assert gated.step(GOOD, RATE).loss == free.step(GOOD, RATE).loss
    for name in ("w1", "b1", "w2", "b2"):
        assert gated.get(name).tobytes() == free.get(name).tobytes()


# ---- batch normalization ------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [True, False])
def test_running_statistics_of_a_skipped_step(gated):
    program = build_program(small_convnet(), ProgramConfig(gate_buffers=gated))
    training, feeds = stepper(program), batch_for(program, 4)
    training.step(feeds, RATE)
    before = training.state()
    overflowing = {**feeds, "x": feeds["x"] * np.float32(np.inf)}
    assert training.step(overflowing, RATE).overflow
    after = training.state()
    for name in ("mean", "var"):
        assert (before[name].tobytes() == after[name].tobytes()) == gated
    for entry in training.catalogue.entries("parameter", "slot"):
        assert before[entry.name].tobytes() == after[entry.name].tobytes()


def large_batch(feeds):
    """One image of 1e25: its layer normalizes it away, so only the variance overflows."""
    x = feeds["x"].copy()
    x[0] *= np.float32(1e25)
    return {**feeds, "x": x}


@pytest.mark.parametrize("scale", ["window3", "fixed", "off"])
def test_running_statistics_that_overflow_alone(scale):
    program = build_program(small_convnet(), ProgramConfig(loss_scale=SCALES[scale]))
    training, feeds = stepper(program), batch_for(program, 4)
    training.watch()
    training.step(feeds, RATE)
    before = training.state()
    result = training.step(large_batch(feeds), RATE)
    assert np.isfinite(result.loss)
    assert result.overflow
    assert "forward" in str(training.diagnose(large_batch(feeds), RATE))
    for name in ("mean", "var", "cw"):
        assert before[name].tobytes() == training.get(name).tobytes()
    assert not training.step(feeds, RATE).overflow


@pytest.mark.parametrize("gated", [True, False])
def test_running_statistics_are_checked_where_they_are_gated(gated):
    """Without the gate they are taken over in any case: skipping the step would not help."""
    program = build_program(small_convnet(), ProgramConfig(gate_buffers=gated))
    made = {value.name for node in program.step.graph for value in node.outputs}
    assert ("ortboost/statistics" in made) == gated


@pytest.mark.parametrize("variance", ["unbiased", "onnx"])
def test_running_statistics_follow_the_batch(variance):
    program = build_program(small_convnet(), ProgramConfig(running_variance=variance))
    training, feeds = stepper(program), batch_for(program, 4)
    before = training.state()
    training.step(feeds, RATE)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(feeds["x"][:, 0].astype(np.float64), ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2)
    )
    c = np.einsum("nhwij,oij->ohwn", windows, before["cw"][:, 0].astype(np.float64))
    flat = c.reshape(4, -1)
    expected_mean = 0.9 * before["mean"] + 0.1 * flat.mean(1)
    expected_var = 0.9 * before["var"] + 0.1 * flat.var(1, ddof=1 if variance == "unbiased" else 0)
    np.testing.assert_allclose(training.get("mean"), expected_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(training.get("var"), expected_var, rtol=2e-6)


def test_frozen_norms_keep_their_statistics_and_use_them():
    program = build_program(small_convnet(), ProgramConfig(frozen_norm=("bn",)))
    training, feeds = stepper(program), batch_for(program, 4)
    before = training.state()
    expected = training.evaluator().evaluate(feeds)["loss"]
    np.testing.assert_allclose(training.step(feeds, RATE).loss, expected, rtol=1e-6)
    for name in ("mean", "var"):
        assert training.get(name).tobytes() == before[name].tobytes()
        assert next(e for e in program.catalogue.state if e.name == name).next is None
    assert training.get("s").tobytes() != before["s"].tobytes()


# ---- the update ---------------------------------------------------------------------------------


def deltas(config: ProgramConfig, rates, model=None) -> dict[str, np.ndarray]:
    """How the parameters move in one step."""
    training = stepper(build_program(model or small_mlp(), config))
    before = training.state()
    training.step(GOOD, rates)
    after = training.state()
    return {e.name: after[e.name] - before[e.name] for e in training.catalogue.entries("parameter")}


PLAIN = deltas(ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE), RATE)
START = {n: v.const_value.numpy() for n, v in small_mlp().graph.initializers.items()}


def test_groups_have_their_own_rate():
    config = ProgramConfig(
        optimizer=Sgd(),
        loss_scale=NO_SCALE,
        groups=(ParameterGroup("head", ("*2",), learning_rate="0.5"),),
    )
    moved = deltas(config, {"learning_rate": 0.1, "learning_rate/head": 0.3})
    for name in ("w1", "b1"):
        np.testing.assert_allclose(moved[name], PLAIN[name], rtol=1e-5, atol=1e-7)
    for name in ("w2", "b2"):
        np.testing.assert_allclose(moved[name], 3 * PLAIN[name], rtol=1e-4, atol=1e-7)


def test_a_group_without_a_rate_follows_the_common_one():
    config = ProgramConfig(
        optimizer=Sgd(), loss_scale=NO_SCALE, groups=(ParameterGroup("head", ("*2",)),)
    )
    program = build_program(small_mlp(), config)
    assert [spec.name for spec in program.catalogue.hyper] == ["learning_rate"]
    moved = deltas(config, RATE)
    assert all(moved[name].tobytes() == PLAIN[name].tobytes() for name in moved)


def test_a_rate_that_is_not_given_is_the_common_one():
    config = ProgramConfig(
        optimizer=Sgd(), loss_scale=NO_SCALE, groups=(ParameterGroup("head", ("*2",), "0.5"),)
    )
    moved = deltas(config, RATE)
    assert all(moved[name].tobytes() == PLAIN[name].tobytes() for name in moved)


@pytest.mark.parametrize("decay", ["all", "no-norm", "weights"])
def test_decay_reaches_what_the_filter_lets_through(decay):
    config = ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE, weight_decay=0.5, decay=decay)
    moved = deltas(config, RATE)
    for name, delta in moved.items():
        own = 0.0 if decay == "weights" and name.startswith("b") else 0.1 * 0.5 * START[name]
        np.testing.assert_allclose(delta, PLAIN[name] - own, rtol=1e-4, atol=1e-6)


def test_lars_adapts_the_rates_of_weights_or_of_what_is_named():
    def moved(adapt):
        return deltas(ProgramConfig(optimizer=Lars(), loss_scale=NO_SCALE, adapt=adapt), RATE)

    of_weights, everything, nothing = moved(None), moved(("*",)), moved(())
    assert_same_bits(of_weights, moved(("w*",)))
    for name, delta in of_weights.items():
        like, other = (everything, nothing) if name.startswith("w") else (nothing, everything)
        assert delta.tobytes() == like[name].tobytes()
        assert not np.allclose(delta, other[name], rtol=1e-3)


def test_norms_do_not_decay_unless_all_do():
    moved = {}
    for decay in ("no-norm", "all"):
        config = ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE, weight_decay=0.5, decay=decay)
        training = stepper(build_program(small_convnet(), config))
        before = training.state()
        training.step(batch_for(training.program, 4), RATE)
        moved[decay] = {n: training.get(n) - before[n] for n in ("cw", "s", "b", "fb")}
        moved[decay]["start"] = before["s"]
    for name in ("cw", "fb"):
        assert moved["all"][name].tobytes() == moved["no-norm"][name].tobytes()
    shift = moved["all"]["s"] - moved["no-norm"]["s"]
    np.testing.assert_allclose(shift, -0.05 * moved["all"]["start"], rtol=1e-4, atol=1e-6)


def test_the_decay_of_a_group_is_for_exactly_its_parameters():
    config = ProgramConfig(
        optimizer=Sgd(),
        loss_scale=NO_SCALE,
        weight_decay=0.5,
        decay="weights",
        groups=(
            ParameterGroup("a", ("b2", "w2"), weight_decay=0.25),
            ParameterGroup("b", ("*2", "b1"), weight_decay=0.0),
        ),
    )
    moved = deltas(config, RATE)
    for name, decay in {"w1": 0.5, "b1": 0.0, "w2": 0.25, "b2": 0.25}.items():
        expected = PLAIN[name] - 0.1 * decay * START[name]
        np.testing.assert_allclose(moved[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("divisor", [2.0, 1024.0, 3.0])
@pytest.mark.parametrize("scale", [NO_SCALE, FixedScaleConfig(64.0)])
def test_gradient_divisor(divisor, scale):
    config = ProgramConfig(optimizer=Sgd(), loss_scale=scale, gradient_divisor=divisor)
    moved = deltas(config, {"learning_rate": 0.1 * divisor})
    for name in moved:
        np.testing.assert_allclose(moved[name], PLAIN[name], rtol=1e-4, atol=1e-6)


def test_the_learning_rate_is_the_one_of_the_step():
    training = fresh(trainer(optimizer=Sgd(), loss_scale=NO_SCALE))
    training.step(GOOD, {"learning_rate": 0.0})
    assert all(training.get(name).tobytes() == START[name].tobytes() for name in START)


def test_only_applied_steps_count_for_adam():
    """A skipped first step must not shift Adam's bias correction."""
    runs = []
    for pattern in ((), (np.inf, np.nan)):
        training = fresh(trainer(optimizer=Adam()))
        for poison in pattern:
            training.step(bad(poison), RATE)
        for _ in range(3):
            training.step(GOOD, RATE)
        runs.append(training.state())
    for name in START:
        assert runs[0][name].tobytes() == runs[1][name].tobytes()


def test_accuracy_of_the_batch():
    training = fresh(trainer(metrics=("accuracy",)))
    guess = training.evaluator().evaluate(GOOD)["logits"].argmax(1)
    result = training.step(GOOD, RATE)
    assert result.metrics == {"accuracy": np.float32((guess == GOOD["labels"]).mean())}


def test_reduction_none_shows_every_loss():
    training = stepper(build_program(small_mlp(), ProgramConfig(loss=LossConfig(reduction="none"))))
    summed = stepper(build_program(small_mlp(), ProgramConfig(loss=LossConfig(reduction="sum"))))
    one, other = training.step(GOOD, RATE), summed.step(GOOD, RATE)
    assert one.losses.shape == (6,)
    np.testing.assert_allclose(one.losses.sum(), other.loss, rtol=1e-6)
    assert one.loss == pytest.approx(one.losses.mean())
    for name in START:  # the sum is differentiated
        np.testing.assert_allclose(training.get(name), summed.get(name), rtol=1e-5, atol=1e-7)
