"""The update alone ends where a step with the same gradients does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ortboost.autodiff.engine import gradient_name
from ortboost.boosts import Clip, GradCentralization, GradFreeze, Thor
from ortboost.core.errors import ConfigError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import OPTIMIZERS
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.split import split_program
from ortboost.runtime.updater import Updater
from tests.support import (
    assert_three_lines,
    batch_for,
    run,
    small_convnet,
    stepper,
)

RATE = {"learning_rate": 0.05}
CONFIG = ProgramConfig(
    loss_scale=NO_SCALE, check_finite=False, weight_decay=0.1, accumulate=2, engine="portable"
)


def made(*boosts, **fields):
    config = dataclasses.replace(CONFIG, **fields)
    return build_program(
        small_convnet(), dataclasses.replace(config, boosts=(*config.boosts, *boosts))
    )


def gradients(program, state, batch):
    """Those of the batch, from the graph that several processes run."""
    checked = dataclasses.replace(program.config, check_finite=True)
    split = split_program(build_program(small_convnet(), checked))["step"].gradients
    names = {value.name for value in split.graph.inputs}
    found = run(split, {**batch, **{name: v for name, v in state.items() if name in names}})
    trained = [e.name for e in program.catalogue.entries("parameter") if e.next is not None]
    return {name: found[gradient_name(name)] for name in trained}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_a_step(name):
    program = made(Clip("global-norm", 0.5), optimizer=OPTIMIZERS[name]())
    step, update = stepper(program), Updater(program, device="cpu", threads=1)
    for index in range(5):
        batch = batch_for(program, seed=index)
        for entry in update.catalogue.entries("parameter"):
            update.set(entry.name, step.get(entry.name))
        given = gradients(program, step.state(), batch)
        step.step(batch, RATE)
        update.step(given, RATE)
    assert step.flush(RATE)
    assert update.flush(RATE)
    assert not update.flush(RATE)
    for entry in update.catalogue.state:
        np.testing.assert_allclose(update.get(entry.name), step.get(entry.name), 1e-5, 1e-7)
    assert int(update.get("ortboost/step")) == 3


@pytest.mark.parametrize("rates", [{}, {"learning_rate": None}, {"learning_rate": np.nan}])
def test_without_a_rate_nothing_is_written(rates):
    program = made()
    update = Updater(program, device="cpu", threads=1)
    given = gradients(program, dict(program.initial), batch_for(program))
    before = update.get("cw")
    for call in (lambda: update.step(given, rates), lambda: update.step(given, rates)):
        with pytest.raises(UsageError) as caught:
            call()
        assert_three_lines(caught.value)
    np.testing.assert_array_equal(update.get("cw"), before)


def test_it_holds_what_an_update_reads_and_nothing_else():
    program = made(GradCentralization(multiple_of=1))
    update = Updater(program, device="cpu", threads=1)
    kinds = {entry.kind for entry in update.catalogue.state}
    assert kinds == {"parameter", "slot", "counter"}  # no running statistics
    assert [spec.name for spec in update.catalogue.batch] == [
        "cw_grad",
        "s_grad",
        "b_grad",
        "fw_grad",
        "fb_grad",
    ]


@pytest.mark.parametrize(
    ("boost", "what"),
    [
        (GradFreeze(p=0.5, groups=2, steps=10), "several step graphs"),
        (Thor(frequency=2), "several step graphs"),
        (Thor(frequency=1), "more than the gradients"),
    ],
)
def test_a_step_that_needs_more_than_gradients_is_refused(boost, what):
    with pytest.raises(ConfigError, match=what) as caught:
        Updater(made(boost), device="cpu", threads=1)
    assert_three_lines(caught.value)
