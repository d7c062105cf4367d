"""Every update rule against PyTorch, MindSpore's formulas and numpy, outside a program."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts.base import GraphContext
from ortboost.graph.build import Builder
from ortboost.graph.weights.parameters import Parameter
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd, UpdateInputs
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.program.step import append_update
from tests.support import GOLDEN, session

with np.load(GOLDEN / "torch" / "optimizers.npz") as _file:
    Z = {name: _file[name] for name in _file.files}
SHAPES = [tuple(shape) for shape in json.loads(str(Z["shapes"]))]
CASES = json.loads(str(Z["cases"]))
GRADIENTS, INITIAL = Z["gradients"], Z["initial"]
FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def split(flat: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


class Toy:
    """The fragments of one optimizer for all toy tensors, as one graph."""

    def __init__(self, optimizer, weight_decay=0.0, adapt=True):
        self.slots = optimizer.slots
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="toy")
        builder = Builder(graph, "toy")

        def given(name, shape, dtype=FLOAT):
            value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
            graph.inputs.append(value)
            return value

        rate, step = given("lr", ()), given("step", (), DOUBLE)
        self.outputs = []
        for i, shape in enumerate(SHAPES):
            update = optimizer.update(
                builder,
                UpdateInputs(
                    weight=given(f"w{i}", shape),
                    grad=given(f"g{i}", shape),
                    slots={slot: given(f"{slot}{i}", shape) for slot in self.slots},
                    learning_rate=rate,
                    step=step,
                    weight_decay=weight_decay,
                    adapt=adapt,
                ),
            )
            assert tuple(update.slots) == self.slots
            for name, value in [("w", update.weight), *update.slots.items()]:
                value.shape, value.type = ir.Shape(shape), ir.TensorType(FLOAT)
                graph.outputs.append(value)
                self.outputs.append(f"{name}{i}")
        builder.flush()
        model = ir.Model(graph, ir_version=10)
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        self.session = session(model)

    def run(self, rate, gradients=GRADIENTS, rates=None):
        """Parameters after every step, [steps, N]."""
        state = {f"w{i}": part for i, part in enumerate(split(INITIAL))}
        state |= {
            f"{slot}{i}": np.zeros(shape, np.float32)
            for slot in self.slots
            for i, shape in enumerate(SHAPES)
        }
        path = []
        for number, row in enumerate(gradients, 1):
            feeds = {f"g{i}": part for i, part in enumerate(split(row))}
            lr = rate if rates is None else rates[number - 1]
            feeds |= {"lr": np.asarray(lr, np.float32), "step": np.asarray(number, np.float64)}
            wanted = {value.name for value in self.session.get_inputs()}
            feeds = {k: v for k, v in {**feeds, **state}.items() if k in wanted}
            answers = self.session.run(None, feeds)
            state.update(zip(self.outputs, answers, strict=True))
            path.append(np.concatenate([state[f"w{i}"].ravel() for i in range(len(SHAPES))]))
        return np.stack(path)


RULES = {
    "sgd": Sgd(),
    "sgd_momentum": Sgd(momentum=0.9),
    "sgd_dampening": Sgd(momentum=0.9, dampening=0.1),
    "sgd_nesterov": Sgd(momentum=0.9, nesterov=True),
    "sgd_weight_decay": Momentum(),
    "adam": Adam(),
    "adam_weight_decay": Adam(),
    "adamw": AdamW(),
}
KEPT = Z["steps"] - 1


def close(actual, expected, single=None):
    """Within float32 rounding: at most four times PyTorch's own float32 error."""
    own = 0.0 if single is None else np.abs(single - expected[-1]).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=max(4 * own, 1e-6))


@pytest.mark.parametrize("case", RULES)
def test_as_pytorch(case):
    settings = CASES[case]["arguments"]
    toy = Toy(RULES[case], settings.get("weight_decay", 0.0))
    close(toy.run(settings["lr"])[KEPT], Z[case], Z[f"{case}_f32"])


def test_every_case_of_pytorch_is_covered():
    assert set(CASES) == {*RULES, "sgd_clip_norm", "sgd_clip_value"}


# ---- numpy, in float64 ------------------------------------------------------------------------


def path_of(rule, gradients=GRADIENTS, lr=0.01, rates=None):
    """Run a rule `rule(w, g, slots, t, lr) -> w` tensor by tensor in float64."""
    w = [part.astype(np.float64) for part in split(INITIAL)]
    slots = [{} for _ in w]
    path = []
    for t, row in enumerate(gradients, 1):
        rate = lr if rates is None else rates[t - 1]
        for i, g in enumerate(split(row.astype(np.float64))):
            w[i] = rule(w[i], g, slots[i], t, rate)
        path.append(np.concatenate([part.ravel() for part in w]))
    return np.stack(path)


def adam_law(b1=0.9, b2=0.999, eps=1e-8, wd=0.0, **kind):
    def rule(w, g, s, t, lr):
        if kind.get("decoupled"):
            w = w - lr * wd * w
        else:
            g = g + wd * w
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        s["max"] = np.maximum(s.get("max", 0), s["v"]) if kind.get("amsgrad") else s["v"]
        m = b1 * s["m"] + (1 - b1) * g if kind.get("nesterov") else s["m"]
        if not kind.get("bias_correction", True):
            return w - lr * m / (np.sqrt(s["max"]) + eps)
        c1, c2 = 1 - b1**t, 1 - b2**t
        if kind.get("eps_hat"):
            return w - lr * np.sqrt(c2) / c1 * m / (np.sqrt(s["max"]) + eps)
        return w - lr * (m / c1) / (np.sqrt(s["max"] / c2) + eps)

    return rule


ADAMS = {
    "amsgrad": (Adam(beta2=0.9, amsgrad=True), {"b2": 0.9, "amsgrad": True}, 0.0),
    "nesterov": (Adam(nesterov=True), {"nesterov": True}, 0.0),
    "eps_hat": (Adam(eps=1e-2, eps_hat=True), {"eps": 1e-2, "eps_hat": True}, 0.0),
    "large_eps": (Adam(eps=1e-2), {"eps": 1e-2}, 0.0),
    "no_correction": (Adam(bias_correction=False), {"bias_correction": False}, 0.0),
    "betas": (Adam(beta1=0.5, beta2=0.9), {"b1": 0.5, "b2": 0.9}, 0.0),
    "zero_betas": (Adam(beta1=0.0, beta2=0.0), {"b1": 0.0, "b2": 0.0}, 0.0),
    "decoupled": (AdamW(amsgrad=True), {"amsgrad": True, "decoupled": True}, 0.1),
    "decay": (Adam(eps=1e-2, eps_hat=True), {"eps": 1e-2, "eps_hat": True}, 0.1),
}


@pytest.mark.parametrize("case", ADAMS)
def test_forms_of_adam(case):
    optimizer, law, decay = ADAMS[case]
    # A shrinking gradient distinguishes amsgrad from the plain form.
    gradients = GRADIENTS * np.linspace(2, 0.1, len(GRADIENTS), dtype=np.float32)[:, None]
    path = Toy(optimizer, decay).run(0.01, gradients)
    expected = path_of(adam_law(wd=decay, **law), gradients)
    np.testing.assert_allclose(path, expected, rtol=0, atol=3e-6)
    if law:
        plain = path_of(adam_law(wd=decay), gradients)
        assert np.abs(plain - expected).max() > 1e-4  # otherwise the test is meaningless


def test_the_learning_rate_may_change_at_every_step():
    rates = np.linspace(0.1, 0.01, len(GRADIENTS))

    def rule(w, g, s, t, lr):
        s["v"] = 0.9 * s.get("v", 0) + g
        return w - lr * s["v"]

    path = Toy(Momentum()).run(None, rates=rates)
    np.testing.assert_allclose(path, path_of(rule, rates=rates), rtol=0, atol=2e-6)


def lars_law(coefficient, epsilon, wd, clip):
    def rule(w, g, s, t, lr):
        w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
        rate = 1.0
        if w_norm > 0 and g_norm > 0:
            rate = coefficient * w_norm / (g_norm + wd * w_norm + epsilon)
        rate = min(rate / lr, 1.0) if clip else rate
        s["v"] = 0.9 * s.get("v", 0) + rate * (g + wd * w)
        return w - lr * s["v"]

    return rule


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("zero", [False, True])
def test_lars(decay, clip, zero):
    gradients = np.zeros_like(GRADIENTS) if zero else GRADIENTS
    optimizer = Lars(trust_coefficient=0.02, epsilon=1e-5, use_clip=clip)
    path = Toy(optimizer, decay).run(0.1, gradients)
    law = lars_law(0.02, 1e-5, decay, clip)
    np.testing.assert_allclose(path, path_of(law, gradients, lr=0.1), rtol=0, atol=2e-6)


def test_lars_leaves_what_it_does_not_adapt_to_the_inner_rule_without_decay():
    path = Toy(Lars(), 0.05, adapt=False).run(0.1)
    np.testing.assert_array_equal(path, Toy(Momentum()).run(0.1))


def test_lars_keeps_the_slots_of_its_inner_rule():
    assert Lars(inner=Adam(amsgrad=True)).slots == Adam(amsgrad=True).slots
    path = Toy(Lars(inner=Adam(), trust_coefficient=0.02)).run(0.01)
    law = adam_law()

    def rule(w, g, s, t, lr):
        g = g * 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 1e-5)
        return law(w, g, s, t, lr)

    np.testing.assert_allclose(path, path_of(rule), rtol=0, atol=5e-6)


# ---- clipping, which is part of the step --------------------------------------------------------


def clipped(clip: ClipConfig, gradients=GRADIENTS, divisor=1.0):
    """Parameters after every step of SGD with momentum, through the whole update."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="toy")
    trained, values = [], {}
    for i, shape in enumerate(SHAPES):
        for kind in ("w", "g"):
            value = ir.Value(name=f"{kind}{i}", type=ir.TensorType(FLOAT), shape=ir.Shape(shape))
            graph.inputs.append(value)
            values[value.name] = value
        trained.append(Parameter(f"w{i}", shape, FLOAT, "weight", "toy"))
    model = ir.Model(graph, ir_version=10)
    config = ProgramConfig(optimizer=Momentum(), clip=clip, gradient_divisor=divisor)
    gradient_of = {p.name: values[f"g{p.name[1:]}"] for p in trained}
    parts = append_update(GraphContext(model, trained=trained), config, gradient_of, {})
    names = list(parts.next_of)
    graph.outputs[:] = parts.next_of.values()
    opened = session(model)
    state = {f"w{i}": part for i, part in enumerate(split(INITIAL))} | dict(parts.initial)
    path = []
    for row in gradients:
        feeds = {f"g{i}": part for i, part in enumerate(split(row))}
        feeds["learning_rate"] = np.asarray(0.1, np.float32)
        wanted = {value.name for value in opened.get_inputs()}
        answers = opened.run(None, {k: v for k, v in {**state, **feeds}.items() if k in wanted})
        state.update(zip(names, answers, strict=True))
        path.append(np.concatenate([state[f"w{i}"].ravel() for i in range(len(SHAPES))]))
    return np.stack(path)


@pytest.mark.parametrize(
    ("case", "clip"),
    [
        ("sgd_clip_norm", ClipConfig("global-norm", 1.0)),
        ("sgd_clip_value", ClipConfig("value", 0.25)),
    ],
)
@pytest.mark.parametrize("divisor", [1.0, 8.0])
def test_clipping_as_pytorch(case, clip, divisor):
    path = clipped(clip, GRADIENTS * np.float32(divisor), divisor)
    close(path[KEPT], Z[case], Z[f"{case}_f32"])


def test_the_norm_of_each_tensor_is_clipped_by_itself():
    def rule(w, g, s, t, lr):
        g = g * min(1.0, 0.5 / (np.linalg.norm(g) + 1e-6))
        s["v"] = 0.9 * s.get("v", 0) + g
        return w - 0.1 * s["v"]

    np.testing.assert_allclose(clipped(ClipConfig("norm", 0.5)), path_of(rule), rtol=0, atol=2e-6)


@pytest.mark.parametrize("by", ["value", "norm", "global-norm"])
def test_a_wide_limit_clips_nothing(by):
    free = Toy(Momentum()).run(0.1)
    np.testing.assert_allclose(clipped(ClipConfig(by, 1e6)), free, rtol=0, atol=1e-7)


@pytest.mark.parametrize("by", ["norm", "global-norm"])
def test_zero_gradients_survive_clipping(by):
    path = clipped(ClipConfig(by, 0.5), np.zeros_like(GRADIENTS))
    np.testing.assert_array_equal(path, np.tile(INITIAL, (len(GRADIENTS), 1)))
