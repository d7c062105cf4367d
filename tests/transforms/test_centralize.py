"""Which gradients are centralized, and what that does to an update."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.errors import ConfigError
from ortboost.loss_scale import NO_SCALE
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.transforms.centralize import CentralizeConfig
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

EVERY = CentralizeConfig(multiple_of=1)


def build(model=None, **fields):
    fields = {"loss_scale": NO_SCALE, "centralize": EVERY, **fields}
    return build_program(model or small_mlp(), ProgramConfig(**fields))


def grouped():
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,16,4,4] x, float[16,16,3,3] cw, float[16,1,3,3] dw, float[16] db,
             float[3,16] fw) => (float[batch,3] logits) {
          [conv] c = Conv<pads = [1, 1, 1, 1]>(x, cw)
          [depthwise] d = Conv<pads = [1, 1, 1, 1], group = 16>(c, dw, db)
          [pool] p = GlobalAveragePool(d)
          [flat] f = Flatten(p)
          [fc] logits = Gemm<transB = 1>(f, fw)
        }""",
        cw=weights(16, 16, 3, 3),
        dw=weights(16, 1, 3, 3, seed=1),
        db=weights(16, seed=2),
        fw=weights(3, 16, seed=3),
    )


def report(program):
    return next(r for r in program.reports if r.rewrite == "grad_centralization")


def test_weights_of_layers_are_chosen_and_the_rest_has_a_reason():
    found = report(build(grouped()))
    assert set(found.changed) == {"cw", "fw"}
    assert "grouped" in found.kept["dw"]
    assert "bias" in found.kept["db"]
    found = report(build(small_convnet()))
    assert set(found.changed) == {"cw", "fw"}
    assert "norm_scale" in found.kept["s"]


def test_the_rule_of_sixteen_is_the_default():
    found = report(build(grouped(), centralize=CentralizeConfig()))
    assert set(found.changed) == {"cw", "fw"}
    found = report(build(small_convnet(), centralize=CentralizeConfig()))
    assert not found.changed
    assert "multiple of 16" in found.kept["cw"]


def test_patterns_choose():
    found = report(build(grouped(), centralize=CentralizeConfig(("f*",), 1)))
    assert set(found.changed) == {"fw"}
    with pytest.raises(ConfigError) as caught:
        build(grouped(), centralize=CentralizeConfig(("nothing*",), 1))
    assert_three_lines(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_mean_is_taken_off_after_the_decay(decay, engine):
    fields = {"optimizer": Sgd(), "weight_decay": decay, "engine": engine, "decay": "all"}
    plain = stepper(build(centralize=None, **fields))
    central = stepper(build(**fields))
    batch, before = batch_for(plain.program, 6), plain.state()
    for training in (plain, central):
        training.step(batch, {"learning_rate": 1.0})
    for name in ("w1", "w2", "b1"):
        moved = (before[name] - plain.get(name)).astype(np.float64)
        expected = moved if name == "b1" else moved - moved.mean(axis=1, keepdims=True)
        found = before[name] - central.get(name)
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-7, err_msg=name)


def test_all_axes_but_the_first_are_averaged():
    program = build(small_convnet(), optimizer=Sgd())
    training = stepper(program)
    before = training.get("cw")
    training.step(batch_for(program, 6), {"learning_rate": 1.0})
    moved = before - training.get("cw")
    assert np.abs(moved).max() > 1e-3
    np.testing.assert_allclose(moved.mean(axis=(1, 2, 3)), 0, atol=1e-8)


@pytest.mark.parametrize("optimizer", [Momentum(), Adam(), AdamW(), Lars()])
def test_moments_of_every_optimizer_are_of_the_centralized_gradient(optimizer):
    program = build(optimizer=optimizer, weight_decay=0.05)
    training = stepper(program)
    for seed in range(3):
        training.step(batch_for(program, 6, seed=seed), {"learning_rate": 0.1})
    slot = optimizer.slots[0]
    moment = training.get(f"ortboost/slot/{slot}/w1")
    assert np.abs(moment).max() > 1e-4
    np.testing.assert_allclose(moment.mean(axis=1), 0, atol=1e-8)


def test_it_comes_after_clipping():
    """The norm that is clipped is that of the gradient, not of what is left of it."""
    clip = ClipConfig("global-norm", 1e-3)
    plain = stepper(build(centralize=None, optimizer=Sgd(), clip=clip))
    central = stepper(build(optimizer=Sgd(), clip=clip))
    batch, before = batch_for(plain.program, 6), plain.state()
    for training in (plain, central):
        training.step(batch, {"learning_rate": 1000.0})
    moved = before["w1"] - plain.get("w1")
    np.testing.assert_allclose(
        before["w1"] - central.get("w1"), moved - moved.mean(axis=1, keepdims=True), atol=1e-6
    )


def test_in_place_or_not_the_bits_are_the_same():
    program = build(small_convnet(), weight_decay=0.1)
    one, other = stepper(program), stepper(program, in_place=False)
    for seed in range(3):
        for training in (one, other):
            training.step(batch_for(program, 4, seed=seed), {"learning_rate": 0.1})
    assert_same_bits(one.state(), other.state())


@pytest.mark.parametrize("arguments", [{"multiple_of": 0}, {"patterns": "fc*"}])
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(ConfigError) as caught:
        CentralizeConfig(**arguments)
    assert_three_lines(caught.value)


def test_the_configuration_survives_json():
    config = ProgramConfig(centralize=CentralizeConfig(("a*",), 4), accumulate=3)
    assert ProgramConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match="multiple_of"):
        ProgramConfig.from_dict({"centralize": {"multiple": 1}})
