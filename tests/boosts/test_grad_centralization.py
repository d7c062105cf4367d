"""Which gradients are centralized, and what that does to an update."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.boosts.grad_centralization import CentralizeConfig, centralize
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, GroupedScaleConfig
from ortboost.graph.weights.parameters import find_parameters
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
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


def grouped(groups: int = 16):
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,16,4,4] x, float[16,16,3,3] cw,
            float[16,{16 // groups},3,3] dw, float[16] db,
             float[3,16] fw) => (float[batch,3] logits) {{
          [conv] c = Conv<pads = [1, 1, 1, 1]>(x, cw)
          [depthwise] d = Conv<pads = [1, 1, 1, 1], group = {groups}>(c, dw, db)
          [pool] p = GlobalAveragePool(d)
          [flat] f = Flatten(p)
          [fc] logits = Gemm<transB = 1>(f, fw)
        }}""",
        cw=weights(16, 16, 3, 3),
        dw=weights(16, 16 // groups, 3, 3, seed=1),
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


@pytest.mark.parametrize(("groups", "chosen"), [(1, True), (2, False), (16, False)])
def test_a_convolution_in_groups_is_left_alone_however_few(groups, chosen):
    found = report(build(grouped(groups)))
    assert ("dw" in found.changed) == chosen
    assert ("grouped" in found.kept.get("dw", "")) != chosen


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


def layouts():
    """Weights whose outputs lie along different axes; 4 inputs everywhere."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4,3,3] x, float[4,6,2,2] tw, float[6,4,1,1] cw, float[4,5] mw,
             float[5,4] gw, float[4,5] nw, float[3,5] hw, float[3,3] sw)
            => (float[batch,3] logits) {
          [up] t = ConvTranspose(x, tw)
          [act] a = Tanh(t)
          [turn] cwt = Transpose<perm = [1, 0, 2, 3]>(cw)
          [turned] c = Conv(a, cwt)
          [pool] p = GlobalAveragePool(c)
          [flat] f = Flatten(p)
          [product] m = MatMul(f, mw)
          [plain] g = Gemm(m, gw)
          [again] n = Gemm(g, nw)
          [turn2] hwt = Transpose(hw)
          [head] h = MatMul(n, hwt)
          [turn3] ht = Transpose(h)
          [rows] s = Gemm<transA = 1>(sw, ht)
          [back] logits = Transpose(s)
        }""",
        tw=weights(4, 6, 2, 2, seed=1),
        cw=weights(6, 4, 1, 1, seed=2),
        mw=weights(4, 5, seed=3),
        gw=weights(5, 4, seed=4),
        nw=weights(4, 5, seed=5),
        hw=weights(3, 5, seed=6),
        sw=weights(3, 3, seed=7),
    )


# The axes of the inputs of one output, by hand: what is summed over in the layer.
INPUTS = {
    "tw": (0, 2, 3),
    "cw": (0, 2, 3),
    "mw": (0,),
    "gw": (0,),
    "nw": (0,),
    "hw": (1,),
    "sw": (0,),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_is_over_the_inputs_of_an_output_whatever_the_layout(engine):
    fields = {"optimizer": Sgd(), "engine": engine}
    plain = stepper(build(layouts(), centralize=None, **fields))
    central = stepper(build(layouts(), **fields))
    batch, before = batch_for(plain.program, 6), plain.state()
    for training in (plain, central):
        training.step(batch, {"learning_rate": 1.0})
    for name, axes in INPUTS.items():
        moved = (before[name] - plain.get(name)).astype(np.float64)
        assert np.abs(moved.mean(axis=axes)).max() > 1e-5, name  # there is a mean to subtract
        found = before[name] - central.get(name)
        expected = moved - moved.mean(axis=axes, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-7, err_msg=name)


def test_the_multiple_is_of_the_inputs():
    found = report(build(layouts(), centralize=CentralizeConfig(multiple_of=4)))
    assert set(found.changed) == {"tw", "mw", "nw"}
    assert "it has 6 inputs" in found.kept["cw"]


def test_groups_of_the_loss_scale_do_not_hide_a_layer():
    """A boundary on the weight itself does not count as a reader."""
    law = GroupedScaleConfig(groups=(("dw", "fw"), ("*",)))
    found = report(build(grouped(), loss_scale=law))
    assert set(found.changed) == {"cw", "fw"}
    assert "grouped" in found.kept["dw"]


def test_what_is_used_in_two_ways_stays():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4,4] v, float[3,4] u, float[4,4] k)
            => (float[batch,3] logits) {
          [one] a = MatMul(x, w)
          [two] b = Gemm<transB = 1>(a, w)
          [same] c = MatMul(b, v)
          [alike] d = Gemm(c, v)
          [odd] z = Mul(k, k)
          [by] e = MatMul(d, z)
          [out] logits = Gemm<transB = 1>(e, u)
        }""",
        w=weights(4, 4),
        v=weights(4, 4, seed=1),
        u=weights(3, 4, seed=2),
        k=weights(4, 4, seed=3),
    )
    found = report(build(model))
    assert set(found.changed) == {"v", "u"}
    assert "'one' and 'two'" in found.kept["w"]
    assert "'odd'" in found.kept["k"]


def test_an_embedding_and_a_recurrent_layer():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[s,b] x, float[9,4] table, float[1,20,4] w, float[1,20,5] r) => (float[1,b,5] y) {
          [embed] e = Gather(table, x)
          [cell] all, y = LSTM<hidden_size = 5>(e, w, r)
        }""",
        table=weights(9, 4),
        w=weights(1, 20, 4),
        r=weights(1, 20, 5),
    )
    trained = [p for p in find_parameters(model).values() if p.trainable]
    chosen, _ = centralize(model, trained, EVERY)
    assert chosen == {"table": (1,), "w": (2,), "r": (2,)}


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
