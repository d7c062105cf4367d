"""The average of the weights: its values, when it moves, and who reads it."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.boosts import Ema, GradAccumulation, GradFreeze, SparseEmbedding
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, FixedScaleConfig
from ortboost.deploy.export import export_model
from ortboost.optimizers import Adam, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.evaluator import open_evaluator
from ortboost.runtime.update_bn import BatchStatistics
from tests.support import (
    ENGINES,
    assert_three_lines,
    batch_for,
    run,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.3}


def build(model=None, boost=None, others=(), **fields):
    boosts = (boost or Ema(0.9), *others)
    fields = {"optimizer": Sgd(), "loss_scale": NO_SCALE, **fields}
    return build_program(model or small_mlp(), ProgramConfig(boosts=boosts, **fields))


def averages(training):
    names = [e.name for e in training.catalogue.entries("parameter") if e.next]
    return {name: training.get(f"ortboost/slot/ema/{name}") for name in names}


def moved(average, weight, update, decay=0.9, warm_up=True):
    """The formula in float64."""
    d = min(decay, (1 + update) / (10 + update)) if warm_up else decay
    return average + (1 - d) * (np.asarray(weight, np.float64) - average)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("warm_up", [True, False])
@pytest.mark.parametrize("optimizer", [Sgd(), Adam()])
def test_it_follows_the_weights(engine, warm_up, optimizer):
    program = build(boost=Ema(0.4, warm_up), optimizer=optimizer, engine=engine)
    training = stepper(program)
    expected = {name: array.astype(np.float64) for name, array in averages(training).items()}
    for name, average in expected.items():  # it starts at the weights
        np.testing.assert_array_equal(average, training.get(name))
    for update in range(1, 9):  # (1 + t) / (10 + t) passes 0.4 at the fifth
        training.step(batch_for(program, seed=update), RATE)
        for name, average in averages(training).items():
            expected[name] = moved(expected[name], training.get(name), update, 0.4, warm_up)
            np.testing.assert_allclose(average, expected[name], rtol=2e-6, atol=1e-7)


def test_training_goes_on_as_without_it():
    programs = [
        build_program(small_mlp(), ProgramConfig(boosts=boosts, optimizer=Adam()))
        for boosts in ((), (Ema(),))
    ]
    steppers = [stepper(program) for program in programs]
    for seed in range(3):
        losses = [s.step(batch_for(programs[0], seed=seed), RATE).loss for s in steppers]
        assert losses[0] == losses[1]
    np.testing.assert_array_equal(steppers[0].get("w1"), steppers[1].get("w1"))


def test_a_skipped_step_moves_nothing():
    program = build(loss_scale=FixedScaleConfig(8.0))
    training = stepper(program)
    training.step(batch_for(program), RATE)
    before = averages(training)
    batch = batch_for(program)
    batch["x"] = np.full_like(batch["x"], np.inf)
    assert training.step(batch, RATE).overflow
    for name, average in averages(training).items():
        np.testing.assert_array_equal(average, before[name])


def test_with_accumulation_it_moves_once_a_window():
    program = build(others=(GradAccumulation(2),))
    training = stepper(program)
    start = averages(training)
    training.step(batch_for(program), RATE)
    for name, average in averages(training).items():
        np.testing.assert_array_equal(average, start[name])
    training.step(batch_for(program, seed=1), RATE)
    for name, average in averages(training).items():
        expected = moved(start[name], training.get(name), 1)
        np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-8)
    training.step(batch_for(program, seed=2), RATE)
    before = averages(training)
    training.flush(RATE)
    for name, average in averages(training).items():
        expected = moved(before[name], training.get(name), 2)
        np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-8)


def test_evaluation_and_export_use_the_average(tmp_path):
    program = build(small_convnet())
    training = stepper(program)
    for seed in range(4):
        training.step(batch_for(program, seed=seed), RATE)
    state = training.state()
    batch = batch_for(program, seed=9)
    # A program without the boost, given the averages as its weights.
    plain = build_program(small_convnet(), ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE))
    values = {e.name: state[e.name] for e in plain.catalogue.state}
    values |= averages(training)
    expected = open_evaluator(plain, values).evaluate(batch)
    assert np.abs(averages(training)["cw"] - training.get("cw")).max() > 1e-3
    for found in (
        training.evaluator().evaluate(batch),
        open_evaluator(program, state).evaluate(batch),
    ):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    exported = export_model(program, state, optimize=False).model
    assert set(exported.graph.initializers) >= {"cw", "fw", "fb", "s", "b"}
    assert not [name for name in exported.graph.initializers if name.startswith("ortboost/")]
    answer = run(exported, {"x": batch["x"]})["logits"]
    np.testing.assert_allclose(answer, expected["logits"], rtol=1e-6, atol=1e-6)


def test_statistics_are_estimated_anew_for_the_average():
    program = build(small_convnet())
    training = stepper(program)
    for seed in range(4):
        training.step(batch_for(program, seed=seed), RATE)
    state = training.state()
    plain = build_program(small_convnet(), ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE))
    values = {e.name: state[e.name] for e in plain.catalogue.state} | averages(training)
    batches = [batch_for(program, seed=seed) for seed in (8, 9)]
    found = BatchStatistics(program).over(batches, state)
    for name, expected in BatchStatistics(plain).over(batches, values).items():
        np.testing.assert_array_equal(found[name], expected)
    assert not np.array_equal(found["mean"], BatchStatistics(plain).over(batches, state)["mean"])


def test_a_program_that_was_never_trained_evaluates_its_weights():
    batch = batch_for(build())
    plain = build_program(small_mlp(), ProgramConfig())
    found = [open_evaluator(p, p.initial).evaluate(batch)["logits"] for p in (build(), plain)]
    np.testing.assert_array_equal(*found)


def test_it_is_saved_and_loaded(tmp_path):
    program = build()
    program.save(tmp_path / "run")
    loaded = Program.load(tmp_path / "run")
    assert loaded.config.boosts == program.config.boosts
    assert loaded.evaluated == program.evaluated
    assert loaded.evaluated["w1"] == "ortboost/slot/ema/w1"


def test_an_average_of_a_frozen_group_waits():
    program = build(small_convnet(), others=(GradFreeze(groups=2, sequence=(0, 1)),))
    training = stepper(program)
    waited = []
    for seed in range(2):
        before, weights_before = averages(training), {n: training.get(n) for n in ("cw", "fw")}
        training.step(batch_for(program, seed=seed), RATE)
        for name, weight in weights_before.items():
            still = np.array_equal(averages(training)[name], before[name])
            assert still == np.array_equal(training.get(name), weight)
            waited.append(still)
    assert sorted(waited) == [False, False, False, True]


def test_it_goes_with_rows_of_tables():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,2] tokens, float[6,4] table, float[3,4] v) => (float[N,3] y) {
          e = Gather(table, tokens)
          axes = Constant<value_ints = [1]>()
          m = ReduceMean<keepdims = 0>(e, axes)
          y = Gemm<transB = 1>(m, v) }""",
        table=weights(6, 4),
        v=weights(3, 4, seed=1),
    )
    program = build(model, others=(SparseEmbedding(),))
    training = stepper(program)
    start = averages(training)
    feeds = {"tokens": np.array([[0, 1], [1, 2]]), "labels": np.array([0, 2])}
    training.step(feeds, RATE)
    for name, average in averages(training).items():
        expected = moved(start[name], training.get(name), 1)
        np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(averages(training)["table"][3:], start["table"][3:])


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, float("nan")])
def test_a_decay_outside_0_to_1_is_refused(decay):
    with pytest.raises(ConfigError) as caught:
        Ema(decay)
    assert_three_lines(caught.value)
    assert "decay" in str(caught.value)


@pytest.mark.parametrize("other", [ob.AdaSum(1), ob.DimReduce("components.npy")])
def test_what_sets_weights_after_the_update_is_refused(other):
    with pytest.raises(ConfigError) as caught:
        build(others=(other,))
    assert_three_lines(caught.value)
    assert "after the update" in str(caught.value)
