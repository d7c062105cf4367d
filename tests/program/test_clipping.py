"""Clipping: the values of its formulas, after unscaling and before the decay."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ortboost.core.loss_scale import NO_SCALE, FixedScaleConfig, GroupedScaleConfig
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.transforms.loss_config import LossConfig
from tests.support import ENGINES, batch_for, small_mlp, stepper, text_model, weights

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


ONE, GROUPED = FixedScaleConfig(1024.0), GroupedScaleConfig(init_scale=(64.0, 512.0))
unclipped = functools.cache(moved)


@pytest.mark.parametrize(
    ("limit", "scale"), [(1e-6, ONE), (0.1, ONE), (0.5, ONE), (0.5, GROUPED), (100.0, ONE)]
)
@pytest.mark.parametrize("by", ["value", "norm", "global-norm"])
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_clipped_as_documented(by, limit, scale, engine):
    gradients, _ = unclipped(engine=engine)
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
    gradients, _ = unclipped(engine=engine)
    total = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in gradients.values()))
    limit = 1e-4
    tiny = moved(
        engine=engine, gradient_divisor=total / limit, clip=ClipConfig("global-norm", limit)
    )
    found = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in tiny[0].values()))
    assert found == pytest.approx(limit / (1 + 1e-6 / limit), rel=2e-3)
    assert found < 0.995 * limit


def test_the_squares_of_many_large_norms_do_not_overflow_together():
    number, size, norm = 40, 10_000, 2.0**61.6  # of each; the sum of the squares is 2^128.5
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,1] x, """
        + ", ".join(f"float[1,{size}] w{i}" for i in range(number))
        + ") => (float[batch,1] y) <int64[1] ax = {1}> {"
        + "".join(f"m{i} = MatMul(x, w{i}) s{i} = ReduceSum(m{i}, ax) " for i in range(number))
        + f"y = Sum({', '.join(f's{i}' for i in range(number))}) }}",
        **{f"w{i}": weights(1, size, seed=i) for i in range(number)},
    )
    config = ProgramConfig(
        optimizer=Sgd(),
        loss=LossConfig("l1"),  # its gradient for each weight is x
        loss_scale=NO_SCALE,
        clip=ClipConfig("global-norm", 100.0),
    )
    training = stepper(build_program(model, config))
    before = training.get("w0")
    batch = {"x": np.full((1, 1), norm / 100, np.float32), "labels": np.zeros((1, 1), np.float32)}
    assert training.step(batch, {"learning_rate": 1.0}).updated
    moved = np.linalg.norm(before - training.get("w0"))
    assert moved == pytest.approx(100 / np.sqrt(number), rel=1e-3)
