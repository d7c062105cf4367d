"""Random combinations of boosts against a float64 replay that knows only their formulas."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ortboost.boosts import (
    Clip,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    GroupLossScale,
    LossScale,
    Recompute,
    Thor,
)
from ortboost.core.loss_scale import (
    NO_SCALE,
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
)
from ortboost.optimizers import Adam, AdamW, Momentum, Sgd
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ParameterGroup, ProgramConfig
from tests.boosts import thor_replay
from tests.support import stepper, text_model, weights

LAYERS = (("w1", "b1"), ("w2", "b2"), ("w3", "b3"))
NAMES = [name for layer in LAYERS for name in layer]
INPUTS = {"w1": 1, "w2": 1, "w3": 0}  # the axis of the inputs of a weight
SCALE_GROUPS = (("w1", "b1"), ("w2", "b2", "w3", "b3"))
RATE, HEAD_RATE = 0.1, 0.02


def network():
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,8] x, float[16,8] w1, float[16] b1, float[16,16] w2, float[16] b2,
             float[16,4] w3, float[4] b3) => (float[batch,4] y) {
          h1 = Gemm<transB = 1>(x, w1, b1) r1 = Relu(h1)
          h2 = Gemm<transB = 1>(r1, w2, b2) r2 = Relu(h2)
          m3 = MatMul(r2, w3) y = Add(m3, b3)
        }""",
        **{n: weights(16, 8 if n == "w1" else 16, seed=i) for i, n in enumerate(("w1", "w2"))},
        **{n: weights(16, seed=i) for i, n in enumerate(("b1", "b2"), 2)},
        w3=weights(16, 4, seed=4),
        b3=weights(4, seed=5),
    )


class Replay:
    """The state of a training, in float64; the counters and scales as the graph keeps them."""

    def __init__(self, config):
        self.config, self.boosts = config, {boost.name: boost for boost in config.boosts}
        self.layers = [
            thor_replay.Dense("w1", "b1", turned=True),
            thor_replay.Relu(),
            thor_replay.Dense("w2", "b2", turned=True),
            thor_replay.Relu(),
            thor_replay.Dense("w3", "b3"),
        ]
        tensors = network().graph.initializers
        self.p = {name: tensors[name].const_value.numpy().astype(float) for name in NAMES}
        self.slots, self.updates, self.window, self.skips = {}, {}, [], 0
        self.applied, self.good = 0, 0
        policy = config.loss_scale
        grouped = isinstance(policy, GroupedScaleConfig)
        self.scales = policy.starts() if grouped else np.float32([getattr(policy, "scale", 1.0)])
        if isinstance(policy, DynamicScaleConfig):
            self.scales = np.float32([policy.init_scale])
        thor = self.boosts.get("thor")
        kept = ("damping", "frequency", "block", "factor_decay", "pi", "kl_clip")
        self.thor = thor and thor_replay.Thor(**{key: getattr(thor, key) for key in kept})

    @property
    def group(self):
        freeze = self.boosts.get("grad-freeze")
        return 0 if freeze is None else freeze.sequence[self.applied % len(freeze.sequence)]

    def step(self, x, labels):
        """Loss, and whether the step overflows."""
        overflow = not np.isfinite(x).all()
        self._rescale(overflow)
        if overflow:
            self.skips += 1
            return np.nan, True
        loss, grads, terms = thor_replay.gradients(self.layers, self.p, x, labels)
        divisor = self.config.gradient_divisor
        for layer in self.layers[::2]:  # the rows of THOR's factors are gradients, too
            layer.d = layer.d / divisor
        factors = self.thor.factors_of(self.layers, terms) if self.thor else {"": [0]}
        trained = {name for layer in LAYERS[self.group :] for name in layer}
        grads = {name: grads[name] / divisor for name in NAMES if name in trained}
        self.window.append((grads, factors))
        if len(self.window) == self.config.accumulate:
            self.flush()
        return loss, False

    def flush(self):
        """The update with the mean of the window."""
        if not self.window:
            return False
        grads, factors = (thor_replay.mean_of(f) for f in zip(*self.window, strict=True))
        self.window = []
        freeze, group = self.boosts.get("grad-freeze"), self.group
        own = group if freeze is not None and freeze.separate_state else 0
        self.applied += 1
        self.updates[own] = self.updates.get(own, 0) + 1
        if self.thor:
            grads = self._preconditioned(grads, factors)
        if "clip" in self.boosts:
            grads = _clipped(grads, self.boosts["clip"])
        for name, grad in grads.items():
            self._move(name, grad, own, self.updates[own])
        return True

    def _rescale(self, overflow):
        policy = self.config.loss_scale
        if isinstance(policy, DynamicScaleConfig):
            self.good = 0 if overflow else self.good + 1
            grow = self.good == policy.scale_window
            self.scales = self.scales * np.float32(0.5 if overflow else 2.0 if grow else 1.0)
            self.good = 0 if grow else self.good
        if isinstance(policy, GroupedScaleConfig):
            # NaN in the data is everywhere, so that the last group is to blame.
            factors = np.full(2, policy.grow, np.float32)
            factors[0] = 1.0 if self.group else policy.grow  # freezing starts with group 1
            factors[1] = policy.shrink if overflow else policy.grow
            self.scales = self.scales * factors

    def _preconditioned(self, grads, factors):
        thor = self.thor
        if thor.count % thor.frequency == 0:
            thor.refresh(factors, self.layers, np.sqrt(thor.damping))
        thor.count += 1
        of = {layer.weight: layer for layer in self.layers if hasattr(layer, "weight")}
        steps = {name: thor.preconditioned(name, grads[name], of) for name in INPUTS}
        share = 1.0
        if thor.kl_clip:
            change = RATE**2 * sum((steps[name] * grads[name]).sum() for name in INPUTS)
            share = min(1.0, np.sqrt(thor.kl_clip / change))
        return {**grads, **{name: u * share for name, u in steps.items()}}

    def _move(self, name, grad, own, count):
        """The update of one parameter by the optimizer."""
        rule, p, head = self.config.optimizer, self.p[name], self.config.groups and "3" in name
        rate, decay = (HEAD_RATE, 0.0) if head else (RATE, self.config.weight_decay)
        if isinstance(rule, AdamW):
            p = p * (1 - rate * decay)
        else:
            grad = grad + decay * p
        if "grad-centralization" in self.boosts and name in INPUTS:
            grad = grad - grad.mean(INPUTS[name], keepdims=True)
        old = self.slots.get((name, own), [np.zeros_like(p)] * 2)
        if isinstance(rule, Sgd):
            v = rule.momentum * old[0] + grad
            self.slots[name, own] = [v]
            self.p[name] = p - rate * (grad + rule.momentum * v if rule.nesterov else v)
            return
        m, v = (
            beta * o + (1 - beta) * g
            for beta, o, g in zip((rule.beta1, rule.beta2), old, (grad, grad**2), strict=True)
        )
        self.slots[name, own] = [m, v]
        m, v = m / (1 - rule.beta1**count), v / (1 - rule.beta2**count)
        self.p[name] = p - rate * m / (np.sqrt(v) + rule.eps)


def _clipped(grads, clip):
    if clip.by == "value":
        return {name: np.clip(g, -clip.limit, clip.limit) for name, g in grads.items()}
    norms = {name: np.linalg.norm(g) for name, g in grads.items()}
    if clip.by == "global-norm":
        norms = dict.fromkeys(norms, np.linalg.norm(list(norms.values())))
    return {name: g * min(1.0, clip.limit / (norms[name] + 1e-6)) for name, g in grads.items()}


def drawn(r):
    """A random configuration."""
    if r.random() < 0.4:
        splitter = Thor(
            damping=0.1,
            frequency=r.choice([1, 2, 3]),
            block=r.choice([0, 5]),
            factor_decay=r.choice([0.0, 0.7]),
            pi=r.random() < 0.5,
            kl_clip=r.choice([0.0, 1e-3]),
            distribute_inverses=r.random() < 0.5,
        )
    else:
        sequence = tuple(r.choices(range(3), k=4))
        splitter = GradFreeze(groups=3, sequence=sequence, separate_state=r.random() < 0.5)
    scales = [
        LossScale(NO_SCALE),
        LossScale(FixedScaleConfig(64.0)),
        LossScale(DynamicScaleConfig(init_scale=2.0**10, scale_window=2, max_scale=None)),
    ]
    if isinstance(splitter, GradFreeze):  # with THOR it is refused
        starts = (2.0**5, 2.0**9)
        policy = GroupedScaleConfig(starts, SCALE_GROUPS, grow=1.5, shrink=0.5, max_scale=None)
        scales += [GroupLossScale(policy)] * 2
    boosts = [
        splitter,
        r.choice(scales),
        r.choice([None, Clip("value", 0.02), Clip("norm", 0.1), Clip("global-norm", 0.2)]),
        r.choice([None, GradCentralization(multiple_of=1)]),
        GradAccumulation(r.choice([1, 2, 3])),
        r.choice([None, None, Recompute(every="block")]),
    ]
    return ProgramConfig(
        boosts=tuple(boost for boost in boosts if boost is not None),
        optimizer=r.choice([Sgd(), Momentum(nesterov=True), Adam(eps=1e-2), AdamW(eps=1e-2)]),
        weight_decay=r.choice([0.0, 0.03]),
        gradient_divisor=r.choice([1.0, 4.0]),
        groups=r.choice([(), (ParameterGroup("head", ("?3",), HEAD_RATE, 0.0),)]),
    )


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("seed", range(32))
def test_any_combination_follows_the_replay(seed):
    r, rng = random.Random(seed), np.random.default_rng(seed)
    config = drawn(r)
    program = build_program(network(), config)
    training, replay = stepper(program), Replay(config)
    rates = {"learning_rate": RATE} | ({"learning_rate/head": HEAD_RATE} if config.groups else {})
    for event in r.choices(("step", "overflow", "flush", "resume"), (6, 1, 1, 1), k=16):
        x = rng.standard_normal((6, 8)).astype(np.float32)
        labels = rng.integers(0, 4, 6)
        if event == "resume":
            state = training.state()
            training = stepper(program)
            training.load_state(state)
        elif event == "flush":
            if config.accumulator is not None:
                assert training.flush(rates) == replay.flush()
        else:
            if event == "overflow":
                x[0, 0] = np.nan
            result, before = training.step({"x": x, "labels": labels}, rates), replay.applied
            loss, overflow = replay.step(x, labels)
            assert result.overflow == overflow
            assert result.updated == (replay.applied > before)
            np.testing.assert_allclose(result.loss, loss, rtol=1e-3)
            found = result.loss_scales or (result.loss_scale,)
            np.testing.assert_allclose(found, replay.scales, rtol=1e-5)
    assert int(training.get(names.STEP)) == replay.applied
    assert int(training.get(names.TOTAL_SKIPS)) == replay.skips
    for name, expected in replay.p.items():
        np.testing.assert_allclose(training.get(name), expected, rtol=5e-3, atol=5e-4)
    for (name, own), slots in replay.slots.items():
        for slot, expected in zip(config.optimizer.slots, slots, strict=False):
            found = training.get(names.slot_name(slot, name, own))
            np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-3)
