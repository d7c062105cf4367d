"""No state becomes inf or NaN for any gradients, with any optimizer and boost."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.boosts import GradCentralization
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import OPTIMIZERS, Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import ENGINES, stepper, text_model

MOST = float(np.finfo(np.float32).max)
LIMIT = 2.0**62
SIZES = (1e-45, 1e-38, 1e-20, 1e-3, 1.0, 1e3, 1e9, 1e15, 4e18, 5e18, 1.8e19, 1.9e19, 1e30, MOST)
EXTREME = [0.0, *SIZES, *(-size for size in SIZES), np.inf, -np.inf, np.nan]
RULES = {
    "sgd": Sgd(),
    "momentum": Momentum(),
    "heavy": Momentum(momentum=1.0),
    "nesterov": Sgd(momentum=0.9, nesterov=True),
    "dampened": Sgd(momentum=0.9, dampening=0.5),
    "adam": Adam(),
    "amsgrad": Adam(amsgrad=True, nesterov=True),
    "mindspore": Adam(eps_hat=True),
    "forgetful": Adam(beta1=0.0, beta2=0.0, bias_correction=False),
    "adamw": AdamW(),
    "lars": Lars(),
    "lars-adam": Lars(inner=Adam(), use_clip=True),
}
FORMS = {
    "plain": {"loss_scale": NO_SCALE},
    "decayed": {"loss_scale": NO_SCALE, "weight_decay": 0.5, "boosts": (GradCentralization(),)},
    "clipped": {"loss_scale": NO_SCALE, "clip": ClipConfig("global-norm", 1.0)},
    "clipped-each": {"loss_scale": NO_SCALE, "clip": ClipConfig("norm", 1.0)},
    "window": {"loss_scale": NO_SCALE, "accumulate": 2},
    "dynamic": {"loss_scale": DynamicScaleConfig(init_scale=8.0, scale_window=2)},
    "shrinking": {"loss_scale": FixedScaleConfig(2.0**-30)},
}


def sums():
    """A model whose gradients are its inputs: its loss is sum(w x) + sum(v z)."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2,3] x, float[batch,20000] z, float[2,3] w, float[20000] v) => (float y) {
          a = Mul(x, w)
          b = ReduceSum<keepdims = 0>(a)
          c = Mul(z, v)
          d = ReduceSum<keepdims = 0>(c)
          y = Add(b, d)
        }""",
        w=np.ones((2, 3), np.float32),
        v=np.ones(20000, np.float32),
    )


@functools.cache
def trainer(rule, form, engine):
    config = ProgramConfig(
        optimizer=RULES[rule], engine=engine, loss=LossConfig("output"), **FORMS[form]
    )
    return stepper(build_program(sums(), config))


def test_every_optimizer_is_here():
    assert {type(rule) for rule in RULES.values()} == set(OPTIMIZERS.values())


CASES = [(rule, "plain") for rule in RULES] + [
    (rule, form) for rule in ("momentum", "adamw", "lars-adam") for form in FORMS if form != "plain"
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("rule", "form"), CASES)
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(EXTREME), st.integers(0, 7)), max_size=6))
def test_every_state_stays_finite(rule, form, engine, steps):
    training = trainer(rule, form, engine)
    training.load_state(training.program.initial)
    for size, place in steps:
        x, z = np.ones((1, 2, 3), np.float32), np.ones((1, 20000), np.float32)
        if place < 6:
            x.reshape(-1)[place] = size
        else:
            z[0, -1] = size
        before = training.state()
        result = training.step({"x": x, "z": z}, {"learning_rate": 0.1})
        after = training.state()
        assert all(np.isfinite(array).all() for array in after.values())
        if result.overflow:
            for entry in training.catalogue.entries("parameter", "slot"):
                assert before[entry.name].tobytes() == after[entry.name].tobytes()
        if abs(size) <= 1e15:
            assert not result.overflow  # large gradients alone are not an overflow
        if not abs(size) < 2 * LIMIT:
            assert result.overflow


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scale", [2.0**-30, 1.0, 2.0**10, 2.0**100])
def test_where_overflow_begins(scale, engine):
    """At an unscaled gradient norm of 2^62, or if the scaled gradient is inf."""
    config = ProgramConfig(
        optimizer=Sgd(),
        engine=engine,
        loss=LossConfig("output"),
        loss_scale=FixedScaleConfig(scale),
    )
    training = stepper(build_program(sums(), config))
    bound = min(LIMIT, 2 * (MOST / scale))  # the four numbers are half of the norm each
    for size, overflow in ((0.99 * bound, False), (1.01 * bound, True)):
        z = np.zeros((1, 20000), np.float32)
        z[0, :4] = size / 2
        feeds = {"x": np.zeros((1, 2, 3), np.float32), "z": z}
        assert training.step(feeds, {"learning_rate": 0.0}).overflow == overflow


@pytest.mark.parametrize("engine", ENGINES)
def test_the_diagnosis_names_a_gradient_that_is_too_large(engine):
    training = trainer("adam", "plain", engine)
    training.load_state(training.program.initial)
    feeds = {"x": np.zeros((1, 2, 3), np.float32), "z": np.full((1, 20000), 1e19, np.float32)}
    found = training.diagnose(feeds, {"learning_rate": 0.1})
    assert "v_grad" in str(found)
    assert "1e+19" in str(found)
