"""THOR against a float64 replay, with both engines."""

import json

import numpy as np
import pytest

from ortboost.boosts import GradAccumulation, LossScale, Thor
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.boosts import thor_replay as replay
from tests.support import ENGINES, GOLDEN, stepper, text_model, weights

RATE = 0.05


def dense():
    """Rows over 128 on both sides, a weight in each layout, one behind a Transpose."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,140] x, float[131,140] w1, float[131] b1, float[131,7] w2, float[7] b2,
             float[5,7] w3) => (float[batch,5] logits) {
          h1 = Gemm<transB = 1>(x, w1, b1)
          r1 = Relu(h1)
          m2 = MatMul(r1, w2)
          h2 = Add(m2, b2)
          r2 = Relu(h2)
          t3 = Transpose<perm = [1, 0]>(w3)
          logits = MatMul(r2, t3)
        }""",
        w1=weights(131, 140, scale=0.1),
        b1=weights(131, seed=1),
        w2=weights(131, 7, seed=2, scale=0.2),
        b2=weights(7, seed=3),
        w3=weights(5, 7, seed=4),
    )
    layers = [
        replay.Dense("w1", "b1", turned=True),
        replay.Relu(),
        replay.Dense("w2", "b2"),
        replay.Relu(),
        replay.Dense("w3", turned=True),
    ]
    return model, layers, lambda rng: rng.standard_normal((8, 140)).astype(np.float32), (8,), {}


def conv():
    """Strides, uneven padding, dilation, a kernel that is not square, groups, depthwise."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4,9,8] x, float[6,4,3,2] w1, float[6] b1, float[8,3,2,3] w2,
             float[8,1,1,2] w3, float[5,8] w4, float[5] b4) => (float[batch,5] logits) {
          c1 = Conv<strides = [2, 1], pads = [1, 0, 2, 1], dilations = [1, 2]>(x, w1, b1)
          r1 = Relu(c1)
          c2 = Conv<group = 2, pads = [0, 1, 1, 0]>(r1, w2)
          r2 = Relu(c2)
          c3 = Conv<group = 8, auto_pad = "SAME_UPPER">(r2, w3)
          p = GlobalAveragePool(c3)
          f = Flatten(p)
          logits = Gemm<transB = 1>(f, w4, b4)
        }""",
        w1=weights(6, 4, 3, 2),
        b1=weights(6, seed=1),
        w2=weights(8, 3, 2, 3, seed=2),
        w3=weights(8, 1, 1, 2, seed=3),
        w4=weights(5, 8, seed=4),
        b4=weights(5, seed=5),
    )
    layers = [
        replay.Conv("w1", "b1", strides=(2, 1), pads=(1, 0, 2, 1), dilations=(1, 2)),
        replay.Relu(),
        replay.Conv("w2", group=2, pads=(0, 1, 1, 0)),
        replay.Relu(),
        replay.Conv("w3", group=8, pads=(0, 0, 0, 1)),
        replay.MeanPool(),
        replay.Dense("w4", "b4", turned=True),
    ]
    return model, layers, lambda rng: rng.standard_normal((6, 4, 9, 8)).astype(np.float32), (6,), {}


def text():
    """Embedding, layer normalization, MatMul of rank 3, one label for each position."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[batch,6] x, float[150,8] table, float[8] g, float[8] h, float[8,130] w1,
             float[130] b1, float[130,5] w2) => (float[batch,6,5] logits) {
          e = Gather(table, x)
          n = LayerNormalization<axis = -1, epsilon = 1e-4>(e, g, h)
          m = MatMul(n, w1)
          a = Add(m, b1)
          r = Relu(a)
          logits = MatMul(r, w2)
        }""",
        table=weights(150, 8),
        g=1 + weights(8, seed=1, scale=0.2),
        h=weights(8, seed=2, scale=0.2),
        w1=weights(8, 130, seed=3),
        b1=weights(130, seed=4),
        w2=weights(130, 5, seed=5, scale=0.2),
    )
    layers = [
        replay.Embedding("table"),
        replay.LayerNorm("g", "h", 1e-4),
        replay.Dense("w1", "b1"),
        replay.Relu(),
        replay.Dense("w2"),
    ]
    loss = {"loss": LossConfig(class_axis=-1)}
    return model, layers, lambda rng: rng.integers(0, 150, (4, 6)), (4, 6), loss


NETWORKS = {"dense": dense, "conv": conv, "text": text}


def compare(network, engine, boosts, mine, steps=6, optimizer=None, micro=1, **fields):
    """Weights of the program and of the replay, step by step."""
    model, layers, draw, shape, loss = NETWORKS[network]()
    p = {name: v.const_value.numpy().astype(float) for name, v in model.graph.initializers.items()}
    config = ProgramConfig(
        engine=engine,
        boosts=boosts,
        optimizer=optimizer or Momentum(),
        decay="all",
        **loss,
        **fields,
    )
    training = stepper(build_program(model, config))
    rng = np.random.default_rng(7)
    for _ in range(steps):
        window = []
        for _ in range(micro):
            x, labels = draw(rng), rng.integers(0, 5, shape)
            training.step({"x": x, "labels": labels}, {"learning_rate": RATE})
            _, grads, terms = replay.gradients(layers, p, x, labels)
            window.append((grads, mine.factors_of(layers, terms)))
        grads, factors = (replay.mean_of(found) for found in zip(*window, strict=True))
        mine.update(layers, p, grads, factors, RATE)
        for name, expected in p.items():
            found = training.get(name)
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert error < 1e-5, f"{name}: {error}"
    assert training.get("ortboost/thor/kept_blocks") == 0
    return training


OFF = LossScale(NO_SCALE)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("network", NETWORKS)
def test_weights_follow_the_replay(network, engine):
    compare(network, engine, (Thor(0.03, frequency=3), OFF), replay.Thor(0.03, 3))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "settings",
    [
        {"block": 0},
        {"block": 5},
        {"pi": True},
        {"factor_decay": 0.8},
        {"clip": True},
        {"damping": (0.1, 0.3, 0.02, 0.05)},
        {"damping_decay": 0.7, "frequency": 1},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_settings_follow_the_replay(network, settings):
    settings = {"damping": 0.03, "frequency": 2, **settings}
    compare(network, "portable", (Thor(**settings), OFF), replay.Thor(**settings))


def test_decay_and_nesterov_are_those_of_the_optimizer():
    boosts, optimizer = (Thor(0.03, frequency=3, clip=True), OFF), Momentum(0.8, nesterov=True)
    mine = replay.Thor(0.03, 3, momentum=0.8, nesterov=True, weight_decay=0.1, clip=True)
    compare("dense", "portable", boosts, mine, optimizer=optimizer, weight_decay=0.1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("network", NETWORKS)
def test_factors_are_averaged_over_a_window_of_accumulation(network, engine):
    boosts = (Thor(0.03, frequency=2), OFF, GradAccumulation(3))
    compare(network, engine, boosts, replay.Thor(0.03, 2), steps=4, micro=3)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("scale", "divisor"),
    [
        (FixedScaleConfig(4096.0), 1.0),
        (DynamicScaleConfig(init=2.0**12, window=2), 1.0),
        (NO_SCALE, 1.0),
    ],
)
def test_factors_are_unscaled_with_the_scale_that_was_used(network, scale, divisor):
    boosts = (Thor(0.03, frequency=2), LossScale(scale))
    compare(network, "portable", boosts, replay.Thor(0.03, 2))


# ---- MindSpore ------------------------------------------------------------------------------------

MINDSPORE = {
    "dense": """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,130] x, PARAMETERS) => (float[batch,5] logits) {
          h1 = Gemm<transB = 1>(x, "fc1.weight", "fc1.bias")
          r1 = Relu(h1)
          h2 = Gemm<transB = 1>(r1, "fc2.weight", "fc2.bias")
          r2 = Relu(h2)
          logits = Gemm<transB = 1>(r2, "fc3.weight")
        }""",
    "conv": """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,3,9,8] x, PARAMETERS) => (float[batch,5] logits) {
          c1 = Conv<strides = [2, 2], auto_pad = "SAME_UPPER">(x, "conv1.weight")
          r1 = Relu(c1)
          c2 = Conv(r1, "conv2.weight")
          r2 = Relu(c2)
          p = GlobalAveragePool(r2)
          f = Flatten(p)
          logits = Gemm<transB = 1>(f, "fc.weight", "fc.bias")
        }""",
    "text": """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[batch,4] x, PARAMETERS) => (float[rows,5] logits) {
          e = Gather("table.embedding_table", x)
          n = LayerNormalization<axis = -1>(e, "norm.gamma", "norm.beta")
          size = Constant<value_ints = [-1, 8]>()
          f = Reshape(n, size)
          h = Gemm<transB = 1>(f, "fc1.weight", "fc1.bias")
          r = Relu(h)
          logits = Gemm<transB = 1>(r, "fc2.weight", "fc2.bias")
        }""",
}


def mindspore_model(name, stored):
    """The net with MindSpore's names and first weights."""
    text = MINDSPORE[name]
    found = {k.split("/")[1]: v[0] for k, v in stored.items() if k.startswith(f"{name}/")}
    first = {k: v for k, v in found.items() if k not in ("x", "labels")}
    short = {key: f"p{index}" for index, key in enumerate(first)}
    for key, value in short.items():
        text = text.replace(f'"{key}"', value)
    declared = ", ".join(
        f"float[{','.join(map(str, first[key].shape))}] {value}" for key, value in short.items()
    )
    model = text_model(
        text.replace("PARAMETERS", declared), **{short[key]: value for key, value in first.items()}
    )
    return model, short


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("network", MINDSPORE)
def test_weights_follow_mindspore(network, engine):
    with np.load(GOLDEN / "mindspore" / "thor.npz") as file:
        stored = {key: file[key] for key in file.files}
    meta = json.loads(str(stored.pop("meta")))
    run = meta["runs"][network]
    model, short = mindspore_model(network, stored)
    boost = Thor(
        tuple(meta["damping"]),
        frequency=3,
        mode="mindspore",
        batch_size=run["batch"],
        clip=run["clip"],
    )
    config = ProgramConfig(
        engine=engine,
        boosts=(boost, OFF),
        optimizer=Momentum(run["momentum"]),
        weight_decay=run["weight_decay"],
        decay="all",
        padding_idx={},
    )
    training = stepper(build_program(model, config))
    for step, rate in enumerate(meta["rates"]):
        feeds = {key: stored[f"{network}/{key}"][step] for key in ("x", "labels")}
        training.step(feeds, {"learning_rate": rate})
        if step + 1 not in meta["steps"]:
            continue
        for key, name in short.items():
            expected = stored[f"{network}/{key}"][1 + meta["steps"].index(step + 1)]
            error = np.linalg.norm(training.get(name) - expected) / np.linalg.norm(expected)
            assert error < 1e-5, f"{key}, step {step + 1}: {error}"
