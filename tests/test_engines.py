"""The two engines against each other: each is the other's oracle, on whole training steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ortboost.core.loss_scale import DynamicScaleConfig
from ortboost.optimizers import Adam, Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.stepper import Stepper
from tests.support import NAMES, model_path, needs_native

pytestmark = needs_native

STEPS = 20
BATCH = 8
# Rounding flips units of a Relu that are close to zero, and BatchNormalization spreads that over
# the batch: at larger rates two runs of the deep networks drift apart whichever engine made them.
RATES = {"resnet20": 1e-5, "resnet_bottleneck": 1e-5, "mobilenet_like": 1e-5}
# Steps in which the inputs are so large that gradients overflow
OVERFLOWING = (5, 6, 13)


def batches(spec):
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        shape = (BATCH, *spec.shape[1:])
        if spec.dtype == np.int64:
            x = rng.integers(0, 256, shape)
        else:
            x = rng.standard_normal(shape).astype(np.float32)
            if step in OVERFLOWING:
                x *= np.float32(1e38)
        yield {spec.name: x, "labels": rng.integers(0, 10, BATCH)}


def train(name, config):
    program = build_program(model_path(name), config)
    stepper = Stepper(program, device="cpu")
    with np.errstate(over="ignore"):
        results = [
            stepper.step(feeds, {"learning_rate": RATES.get(name, 1e-3)}, seed=step)
            for step, feeds in enumerate(batches(program.catalogue.batch[0]))
        ]
    return program, results, stepper.state()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer"),
    # Adam divides rounding errors of gradients that are zero by themselves: not for all models
    [*((name, Momentum(0.9)) for name in NAMES), ("mlp", Adam()), ("lenet5", Adam())],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_twenty_steps_agree(name, optimizer):
    law = DynamicScaleConfig(init_scale=2.0**12, scale_window=4)
    config = ProgramConfig(optimizer=optimizer, loss_scale=law, engine="native")
    native = train(name, config)
    portable = train(name, dataclasses.replace(config, engine="portable"))
    assert (native[0].engine, portable[0].engine) == ("native", "portable")
    for one, other in zip(native[1], portable[1], strict=True):
        assert one.overflow == other.overflow
        assert one.loss_scale == other.loss_scale
        assert one.applied_steps == other.applied_steps
        if not one.overflow:
            assert other.loss == pytest.approx(one.loss, rel=1e-5, abs=1e-5)
    for entry in native[0].catalogue.entries("parameter", "buffer"):
        want, have = native[2][entry.name], portable[2][entry.name]
        allowed = 1e-4 * np.linalg.norm(want) + 1e-6 * np.sqrt(want.size)
        assert np.linalg.norm(have - want) <= allowed, entry.name
