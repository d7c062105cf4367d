"""Clipping: the values of its formulas, after unscaling and before the decay."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.loss_scale import FixedScaleConfig, GroupedScaleConfig
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from tests.support import ENGINES, batch_for, small_mlp, stepper

NAMES = ("w1", "b1", "w2", "b2")
DECAY = 0.5


def moved(**fields):
    """The change of each parameter in one step with rate 1, and the parameters before it."""
    config = ProgramConfig(optimizer=Sgd(), decay="all", **fields)
    training = stepper(build_program(small_mlp(), config))
    before = {name: training.get(name).astype(np.float64) for name in NAMES}
    training.step(batch_for(training.program, 6), {"learning_rate": 1.0})
    return {name: before[name] - training.get(name) for name in NAMES}, before


def clipped(gradients, by, limit):
    """The formulas of the documentation, in double precision."""
    if by == "value":
        return {name: np.clip(g, -limit, limit) for name, g in gradients.items()}
    norms = {name: np.linalg.norm(g) for name, g in gradients.items()}
    if by == "global-norm":
        norms = dict.fromkeys(norms, np.sqrt(sum(norm**2 for norm in norms.values())))
    return {name: g * min(1.0, limit / (norms[name] + 1e-6)) for name, g in gradients.items()}


@pytest.mark.parametrize(
    "scale", [FixedScaleConfig(1024.0), GroupedScaleConfig(init_scale=(64.0, 512.0))]
)
@pytest.mark.parametrize("limit", [1e-6, 0.1, 0.5, 100.0])
@pytest.mark.parametrize("by", ["value", "norm", "global-norm"])
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_clipped_as_documented(by, limit, scale, engine):
    gradients, _ = moved(engine=engine)
    if (by, limit) == ("norm", 0.5):  # some are clipped and some are not
        sizes = [np.linalg.norm(g) for g in gradients.values()]
        assert min(sizes) < limit < max(sizes)
    expected = clipped(gradients, by, limit)
    config = {"engine": engine, "loss_scale": scale, "clip": ClipConfig(by, limit)}
    found, before = moved(weight_decay=DECAY, **config)
    for name in NAMES:
        clean = found[name] - DECAY * before[name]
        size = np.abs(expected[name]).max()
        np.testing.assert_allclose(clean, expected[name], rtol=0, atol=1e-5 * size + 1.5e-7)


@pytest.mark.parametrize("trainable", [("w2",), ("w2", "b2"), ("w1", "w2", "b2")])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_global_norm_is_that_of_all_that_is_trained(trainable, engine):
    free, _ = moved(engine=engine, trainable=trainable)
    norms = [np.linalg.norm(free[name]) for name in trainable]
    limit = 0.5 * np.sqrt(sum(norm**2 for norm in norms))
    bound = ClipConfig("global-norm", float(limit))
    found, _ = moved(engine=engine, trainable=trainable, clip=bound)
    for name in trainable:
        np.testing.assert_allclose(found[name], 0.5 * free[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_bound_is_for_the_norm_with_a_millionth(engine):
    """`c / (|g| + 1e-6)`: a limit equal to the norm shortens the gradient slightly."""
    gradients, _ = moved(engine=engine)
    total = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in gradients.values()))
    limit = 1e-4
    tiny = moved(
        engine=engine, gradient_divisor=total / limit, clip=ClipConfig("global-norm", limit)
    )
    found = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in tiny[0].values()))
    assert found == pytest.approx(limit / (1 + 1e-6 / limit), rel=2e-3)
    assert found < 0.995 * limit
