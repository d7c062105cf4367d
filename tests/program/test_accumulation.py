"""Gradient accumulation: windows, overflow inside them, incomplete windows at the end."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import Adam, Lars, Momentum, Sgd
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.program.program import Program
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    small_convnet,
    small_mlp,
    stepper,
)

RATE = {"learning_rate": 0.1}


def start(model=None, **fields):
    return stepper(build_program(model or small_mlp(), ProgramConfig(**fields)))


def micro_batches(training, count, size=4):
    whole = batch_for(training.program, count * size)
    return whole, [
        {key: value[i * size : (i + 1) * size] for key, value in whole.items()}
        for i in range(count)
    ]


def bad(batch):
    return {**batch, "x": np.full_like(batch["x"], np.nan)}


def trained(training, *kinds):
    entries = training.catalogue.entries(*(kinds or ("parameter",)))
    return {entry.name: training.get(entry.name) for entry in entries}


def assert_close(one, other, atol):
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", [Sgd(), Momentum(nesterov=True), Adam(), Lars()])
@pytest.mark.parametrize("window", [2, 3])
def test_a_window_is_one_step_on_the_whole_batch(window, optimizer, engine):
    fields = {"optimizer": optimizer, "engine": engine, "weight_decay": 0.01}
    one, many = start(**fields), start(accumulate=window, **fields)
    for _ in range(3):
        whole, parts = micro_batches(one, window)
        result = one.step(whole, RATE)
        results = [many.step(part, RATE) for part in parts]
        assert [r.updated for r in results] == [False] * (window - 1) + [True]
        assert results[-1].applied_steps == result.applied_steps
        assert np.mean([r.loss for r in results]) == pytest.approx(result.loss, abs=1e-6)
    # Adam divides a nearly zero gradient by itself, which amplifies rounding.
    atol = 2e-5 if isinstance(optimizer, Adam) else 5e-7
    assert_close(trained(one), trained(many), atol)


def test_the_mean_is_summed_as_documented():
    """a <- g / N, then a <- a + g / N, to the bit."""
    window = 3
    many = start(accumulate=window, loss_scale=NO_SCALE)
    _, parts = micro_batches(many, window)
    gradients = []
    for part in parts:
        single = start(accumulate=1 << 20, loss_scale=NO_SCALE)
        single.step(part, RATE)
        gradients.append(single.get(names.accumulator_name("w1")) * np.float32(1 << 20))
    expected = np.zeros_like(gradients[0])
    for gradient in gradients:
        expected = expected + gradient / np.float32(window)
    for part in parts:
        many.step(part, RATE)
    np.testing.assert_array_equal(many.get(names.accumulator_name("w1")), expected)


def test_nothing_moves_inside_of_a_window():
    many = start(accumulate=3)
    before = trained(many, "parameter", "slot")
    before = {name: value for name, value in before.items() if "accumulated" not in name}
    _, parts = micro_batches(many, 3)
    for part in parts[:2]:
        assert not many.step(part, RATE).updated
    assert_same_bits({name: many.get(name) for name in before}, before)
    assert int(many.get(names.STEP)) == 0
    assert int(many.get(names.MICRO_STEPS)) == 2


def test_the_learning_rate_is_that_of_the_update():
    one, other = start(accumulate=2), start(accumulate=2)
    _, parts = micro_batches(one, 2)
    for rate, part in zip((9.0, 0.1), parts, strict=True):
        one.step(part, {"learning_rate": rate})
    for part in parts:
        other.step(part, RATE)
    assert_same_bits(trained(one), trained(other))


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_micro_batch_that_overflows_is_skipped_and_does_not_count(where):
    law = DynamicScaleConfig(init_scale=1024.0, scale_window=1000)
    clean, dirty = (start(accumulate=3, loss_scale=law) for _ in range(2))
    _, parts = micro_batches(clean, 3)
    for part in parts:
        clean.step(part, RATE)
    for index, part in enumerate(parts):
        if index == where:
            result = dirty.step(bad(part), RATE)
            assert result.overflow
            assert not result.updated
            assert result.loss_scale == 512.0
            assert result.total_skips == 1
        last = dirty.step(part, RATE)
    assert last.updated
    assert last.applied_steps == 1
    # Powers of two: the smaller scale changes no bit.
    assert_same_bits(trained(clean), trained(dirty))


@pytest.mark.parametrize(
    ("scale", "check"),
    [
        (NO_SCALE, True),
        (FixedScaleConfig(256.0), True),
        (DynamicScaleConfig(init_scale=64.0, scale_window=2), True),
        (FixedScaleConfig(256.0), False),
        (NO_SCALE, False),
    ],
)
def test_every_loss_scale_gives_the_same_update(scale, check):
    plain = start(accumulate=2, loss_scale=NO_SCALE)
    many = start(accumulate=2, loss_scale=scale, check_finite=check)
    for _ in range(2):
        _, parts = micro_batches(plain, 2)
        for part in parts:
            plain.step(part, RATE)
            many.step(part, RATE)
    assert_same_bits(trained(plain), trained(many))


@pytest.mark.parametrize("by", ["global-norm", "norm", "value"])
def test_the_mean_is_clipped_not_the_micro_batches(by):
    clip = ClipConfig(by, 0.01)
    one, many = start(clip=clip), start(clip=clip, accumulate=2)
    whole, parts = micro_batches(one, 2)
    one.step(whole, RATE)
    for part in parts:
        many.step(part, RATE)
    assert_close(trained(one), trained(many), 1e-8)


def test_running_statistics_follow_every_micro_batch():
    many = start(small_convnet(), accumulate=4)
    before = many.get("mean")
    _, parts = micro_batches(many, 1)
    many.step(parts[0], RATE)
    assert np.abs(many.get("mean") - before).max() > 1e-4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", [True, False])
def test_in_place_or_not_the_bits_are_the_same(engine, check):
    program = build_program(
        small_convnet(),
        ProgramConfig(
            accumulate=2, engine=engine, check_finite=check, loss_scale=FixedScaleConfig(8.0)
        ),
    )
    one, other = stepper(program), stepper(program, in_place=False)
    for seed in range(5):
        batch = batch_for(program, 4, seed=seed)
        one.step(batch, RATE)
        other.step(batch, RATE)
    one.flush(RATE)
    other.flush(RATE)
    assert_same_bits(one.state(), other.state())


def test_a_state_inside_of_a_window_goes_on_to_the_same_bits():
    one = start(accumulate=3)
    _, parts = micro_batches(one, 3)
    one.step(parts[0], RATE)
    other = start(accumulate=3)
    other.load_state(one.state())
    for training in (one, other):
        results = [training.step(part, RATE) for part in parts[1:]]
        assert results[-1].updated
    assert_same_bits(one.state(), other.state())


# ---- what is left ------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 2])
def test_a_flush_applies_the_mean_of_what_there_is(left):
    whole, partial = start(accumulate=left), start(accumulate=3)
    _, parts = micro_batches(whole, left)
    for part in parts:
        whole.step(part, RATE)
        partial.step(part, RATE)
    if left == 1:
        assert whole.get(names.STEP) == 1
    assert partial.flush(RATE)
    assert_close(trained(whole), trained(partial), 1e-7)
    assert int(partial.get(names.STEP)) == 1
    assert int(partial.get(names.MICRO_STEPS)) == 0


def test_a_flush_of_nothing_changes_nothing():
    many = start(accumulate=2)
    before = many.state()
    assert not many.flush(RATE)
    assert_same_bits(many.state(), before)
    assert not start().flush(RATE)


def test_after_a_flush_a_new_window_begins():
    many, fresh = start(accumulate=2), start(accumulate=2)
    _, parts = micro_batches(many, 3)
    many.step(parts[0], RATE)
    many.flush(RATE)
    fresh.load_state(many.state())
    for training in (many, fresh):
        assert not training.step(parts[1], RATE).updated
        assert training.step(parts[2], RATE).updated
    assert_same_bits(many.state(), fresh.state())


# ---- the program -------------------------------------------------------------------------------


def test_without_accumulation_there_is_no_trace_of_it():
    program = build_program(small_mlp(), ProgramConfig(accumulate=1))
    assert list(program.graphs) == ["step"]
    assert not [e.name for e in program.catalogue.state if "accumulated" in e.name]


def test_a_program_of_two_graphs_survives_its_folder(tmp_path):
    program = build_program(small_mlp(), ProgramConfig(accumulate=2))
    program.save(tmp_path)
    assert {path.name for path in tmp_path.glob("*.onnx")} == {
        "step.onnx",
        "flush.onnx",
        "eval.onnx",
    }
    loaded = Program.load(tmp_path)
    assert loaded.fingerprint == program.fingerprint
    assert loaded.catalogue == program.catalogue
    assert loaded.catalogue_of("flush").batch == ()
    one, other = stepper(program), stepper(loaded)
    batch = batch_for(program, 4)
    for training in (one, other):
        training.step(batch, RATE)
        assert training.flush(RATE)
    assert_same_bits(one.state(), other.state())


def test_saving_again_removes_graphs_that_are_no_more(tmp_path):
    build_program(small_mlp(), ProgramConfig(accumulate=2)).save(tmp_path)
    build_program(small_mlp(), ProgramConfig()).save(tmp_path)
    assert not (tmp_path / "flush.onnx").exists()
    assert list(Program.load(tmp_path).graphs) == ["step"]


@pytest.mark.parametrize("value", [0, -1])
def test_a_window_of_nothing_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        ProgramConfig(accumulate=value)
    assert_three_lines(caught.value)
