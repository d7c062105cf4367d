"""THOR against a float64 replay, with both engines."""

import dataclasses
import json

import numpy as np
import pytest

from ortboost.boosts import GradAccumulation, GradCentralization, LossScale, MixedPrecision, Thor
from ortboost.boosts.thor_inverse import inverse_cost
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.boosts import thor_replay as replay
from tests.support import (
    ENGINES,
    GOLDEN,
    assert_three_lines,
    batch_for,
    model_path,
    small_mlp,
    stepper,
    text_model,
    weights,
)

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


def assert_follows(training, p):
    for name, expected in p.items():
        error = np.linalg.norm(training.get(name) - expected) / np.linalg.norm(expected)
        assert error < 1e-5, f"{name}: {error}"


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
        assert_follows(training, p)
    assert training.get("ortboost/thor/kept_blocks") == 0


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
        {"kl_clip": 1e-3},
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


def test_gradients_are_centralized_after_the_weight_decay():
    boosts = (Thor(0.03, frequency=2), OFF, GradCentralization(multiple_of=1))
    mine = replay.Thor(0.03, 2, weight_decay=0.1, center={"w1": 1, "w2": 0, "w3": 1})
    compare("dense", "portable", boosts, mine, weight_decay=0.1)


@pytest.mark.parametrize("network", NETWORKS)
def test_factors_of_mixed_precision_are_computed_in_float32(network):
    """Their inputs are rounded to float16, the products and inverses are not."""
    model, _, draw, shape, loss = NETWORKS[network]()
    x, labels = draw(np.random.default_rng(7)), np.random.default_rng(8).integers(0, 5, shape)
    found = []
    for lower in ((), (MixedPrecision("fp16", emulate=True),)):
        boosts = (Thor(0.03, frequency=2), LossScale(FixedScaleConfig(2.0**12)), *lower)
        program = build_program(model, ProgramConfig(engine="portable", boosts=boosts, **loss))
        training = stepper(program)
        training.step({"x": x, "labels": labels}, {"learning_rate": RATE})
        assert training.get("ortboost/thor/kept_blocks") == 0
        found.append({e.name: training.get(e.name) for e in training.catalogue.entries("slot")})
    expected, rounded = found
    inverses = [name for name in expected if "inverse" in name]
    for name in inverses:
        assert rounded[name].dtype == np.float32
        error = np.linalg.norm(rounded[name] - expected[name]) / np.linalg.norm(expected[name])
        assert error < 2e-3, name
    assert any(not np.array_equal(rounded[name], expected[name]) for name in inverses)
    held = np.concatenate([rounded[name].ravel() for name in inverses])
    assert (held != held.astype(np.float16)).mean() > 0.1


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
        (DynamicScaleConfig(init_scale=2.0**12, scale_window=2), 1.0),
        (NO_SCALE, 1.0),
    ],
)
def test_factors_are_unscaled_with_the_scale_that_was_used(network, scale, divisor):
    boosts = (Thor(0.03, frequency=2), LossScale(scale))
    compare(network, "portable", boosts, replay.Thor(0.03, 2))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_sum_has_the_factors_of_the_mean_and_larger_gradients(network):
    model, layers, draw, shape, fields = NETWORKS[network]()
    p = {name: v.const_value.numpy().astype(float) for name, v in model.graph.initializers.items()}
    loss = dataclasses.replace(fields.get("loss", LossConfig()), reduction="sum")
    training = stepper(build_program(model, ProgramConfig(loss=loss, boosts=(Thor(0.03), OFF))))
    mine, rng = replay.Thor(0.03, 100), np.random.default_rng(7)
    for _ in range(3):
        x, labels = draw(rng), rng.integers(0, 5, shape)
        _, grads, terms = replay.gradients(layers, p, x, labels)
        training.step({"x": x, "labels": labels}, {"learning_rate": RATE / terms})
        grads = {name: terms * value for name, value in grads.items()}
        mine.update(layers, p, grads, mine.factors_of(layers, terms), RATE / terms)
    assert_follows(training, p)


def test_labels_that_do_not_count_are_no_terms():
    model, layers, draw, shape, _ = text()
    p = {name: v.const_value.numpy().astype(float) for name, v in model.graph.initializers.items()}
    config = ProgramConfig(
        loss=LossConfig(class_axis=-1, ignore_index=-1), boosts=(Thor(0.03), OFF), padding_idx={}
    )
    training = stepper(build_program(model, config))
    mine, rng = replay.Thor(0.03, 100), np.random.default_rng(7)
    for _ in range(3):
        x, labels = draw(rng), rng.integers(-1, 5, shape)
        training.step({"x": x, "labels": labels}, {"learning_rate": RATE})
        mine.step(layers, p, x, labels, RATE)
    assert_follows(training, p)


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_left_of_a_window_is_preconditioned_too(first):
    """In both graphs: the flush comes at an update of second order, or after one."""
    model, layers, draw, shape, _ = dense()
    p = {name: v.const_value.numpy().astype(float) for name, v in model.graph.initializers.items()}
    boosts = (Thor(0.03, frequency=2), OFF, GradAccumulation(3))
    training = stepper(build_program(model, ProgramConfig(boosts=boosts)))
    mine, rng = replay.Thor(0.03, 2), np.random.default_rng(7)
    for update in range(first + 1):
        window = []
        for _ in range(3 if update < first else 2):
            x, labels = draw(rng), rng.integers(0, 5, shape)
            training.step({"x": x, "labels": labels}, {"learning_rate": RATE})
            _, grads, terms = replay.gradients(layers, p, x, labels)
            window.append((grads, mine.factors_of(layers, terms)))
        grads, factors = (replay.mean_of(found) for found in zip(*window, strict=True))
        mine.update(layers, p, grads, factors, RATE)
    assert training.flush({"learning_rate": RATE})
    assert_follows(training, p)


# ---- graphs and states ---------------------------------------------------------------------------


def test_an_overflow_is_tried_again_with_the_same_graph():
    program = build_program(small_mlp(), ProgramConfig(boosts=(Thor(frequency=3),)))
    training, batch = stepper(program), batch_for(program)
    bad = {**batch, "x": np.full_like(batch["x"], np.inf)}
    ran = []
    for feeds in (bad, batch, bad, batch, batch, bad, bad, batch, batch):
        ran.append(training.next_graph)
        before = training.state()
        result = training.step(feeds, {"learning_rate": 0.1})
        assert result.overflow == (feeds is bad)
        if result.overflow:
            changed = {n for n, v in training.state().items() if v.tobytes() != before[n].tobytes()}
            assert not any("thor" in name or "weight" in name for name in changed)
    second, first = "step", "step.1"
    assert ran == [second, second, first, first, first, second, second, second, first]


def test_only_the_graph_of_second_order_writes_factors_and_inverses():
    boosts = (Thor(frequency=3, factor_decay=0.5), GradAccumulation(2))
    program = build_program(small_mlp(), ProgramConfig(boosts=boosts))
    assert set(program.graphs) == {"step", "step.1", "flush", "flush.1"}
    for name in program.graphs:
        entries = [
            e for e in program.catalogue_of(name).state if e.name.startswith("ortboost/thor")
        ]
        written = {e.name.split("/")[2].rstrip("abfg_") for e in entries if e.next is not None}
        expected = {
            "step": {"inverse", "factor", "window", "kept_blocks"},
            "flush": {"inverse", "factor", "kept_blocks"},
        }
        assert {name.rstrip("s") for name in written} == {
            n.rstrip("s") for n in expected.get(name, set())
        }


def test_every_update_may_be_of_second_order():
    program = build_program(small_mlp(), ProgramConfig(boosts=(Thor(frequency=1),)))
    assert set(program.graphs) == {"step"}


def test_an_inverse_that_is_not_accurate_is_not_taken():
    """If the damping is too small for float64, the layer keeps the identity, and it is counted."""
    config = ProgramConfig(boosts=(Thor(damping=1e-25), OFF))
    training = stepper(build_program(small_mlp(), config))
    plain = stepper(build_program(small_mlp(), ProgramConfig(boosts=(OFF,))))
    batch = batch_for(training.program, 2)
    for one in (training, plain):
        one.step(batch, {"learning_rate": 0.1})
    kept = training.get("ortboost/thor/kept_blocks")
    inverses = {
        e.name: training.get(e.name) for e in training.catalogue.state if e.role == "inverse"
    }
    assert kept == len(inverses) == 4
    for value in inverses.values():
        np.testing.assert_array_equal(value, np.eye(value.shape[1])[None])
    for name in ("w1", "b1", "w2", "b2"):
        np.testing.assert_array_equal(training.get(name), plain.get(name))


def test_the_report_says_what_is_preconditioned_and_why_the_rest_is_not():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] shared, float[4] s, float[4,3] w) => (float[batch,3] y) {
          h = MatMul(x, shared)
          i = MatMul(h, shared)
          j = Mul(i, s)
          y = MatMul(j, w)
        }""",
        shared=weights(4, 4),
        s=weights(4),
        w=weights(4, 3),
    )
    program = build_program(model, ProgramConfig(boosts=(Thor(),)))
    report = next(r for r in program.reports if r.rewrite == "thor")
    assert set(report.changed) == {"w"}
    assert report.kept["shared"] == "2 nodes read it"
    assert "Mul" in report.kept["s"]
    assert "the loss is a mean; its terms are the labels" in report.notes


@pytest.mark.parametrize(
    ("reductions", "what"),
    [
        ("r = ReduceSum<keepdims = 0>(s, one) loss = ReduceMean<keepdims = 0>(r)", "mean"),
        ("r = ReduceMean<keepdims = 0>(s, one) loss = ReduceSum<keepdims = 0>(r)", "sum"),
        ("r = ReduceSum<keepdims = 0>(s, first) loss = ReduceMean<keepdims = 0>(r)", "sum"),
        ("loss = ReduceSum<keepdims = 0>(s)", "sum"),
    ],
)
def test_the_reduction_over_samples_says_what_the_loss_is(reductions, what):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[batch,3] t, float[4,3] w) => (float loss)
        <int64[1] one = {{1}}, int64[1] first = {{-2}}> {{
          y = MatMul(x, w) d = Sub(y, t) s = Mul(d, d) {reductions}
        }}""",
        w=weights(4, 3),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig("output"), boosts=(Thor(),)))
    (report,) = [r for r in program.reports if r.rewrite == "thor"]
    assert report.notes == [f"the loss is a {what}; its terms are the samples, axis 0 of 'x'"]


def test_a_damping_that_has_decayed_to_nothing_leaves_rows_without_a_gradient_alone():
    """The factor of an id that no sample has is 0: `1 / (0 + sqrt(d))` is not a float32."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[batch] ids, float[5,4] table, float[4,3] w) => (float[batch,3] y) {
          e = Gather(table, ids) y = MatMul(e, w) }""",
        table=weights(5, 4),
        w=weights(4, 3, seed=1),
    )
    boost = Thor(frequency=1, damping_decay=1e-60)
    training = stepper(build_program(model, ProgramConfig(boosts=(boost,))))
    batch = {"ids": np.array([0, 1, 1]), "labels": np.array([0, 1, 2])}
    for _ in range(4):
        assert training.step(batch, {"learning_rate": 1e-3}).updated
    np.testing.assert_array_equal(training.get("table")[2:], weights(5, 4)[2:])


@pytest.mark.parametrize("settings", [{}, {"factor_decay": 0.5}, {"block": 0}])
def test_the_table_says_what_a_layer_costs(settings):
    boosts = (Thor(**settings), GradAccumulation(2))
    program = build_program(str(model_path("lenet5")), ProgramConfig(boosts=boosts))
    (table,) = [r.table for r in program.reports if r.rewrite == "thor"]
    for name, row in table.items():
        own = [value for state, value in program.initial.items() if state.endswith(f"/{name}")]
        thor = [
            v for v in own if v.ndim == 3
        ]  # of all states of this weight only blocks have that rank
        assert row["state_bytes"] == sum(value.nbytes for value in thor)
    conv, dense = table["conv2.weight"], table["fc3.weight"]
    assert (conv["layer"], conv["G"]) == ("conv", "32")
    a, number = (400, 1) if settings == {"block": 0} else (128, 4)
    assert conv["A"] == ("400" if number == 1 else "400, 4 blocks of 128")
    assert conv["factors"] == 4 * 4 * (
        number * a**2 + 32**2 + 400 * 25
    )  # positions, with the patches
    assert conv["step"] == 400 * 32 * (a + 32)
    assert dense["factors"] == 84**2 + 10**2
    assert dense["step"] == 84 * 10 * (84 + 10)
    assert dense["inverses"] == inverse_cost(96) + inverse_cost(16)


@pytest.mark.parametrize(
    "settings",
    [
        {"damping": 0.0},
        {"damping": ()},
        {"damping": (0.1, -1.0)},
        {"frequency": 0},
        {"block": -1},
        {"mode": "gpu"},
        {"mode": "mindspore"},
        {"mode": "mindspore", "batch_size": 8, "pi": True},
        {"factor_decay": 1.0},
        {"damping_decay": 0.0},
        {"kl_clip": -1.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ConfigError) as caught:
        Thor(**settings)
    assert_three_lines(caught.value)


def test_factors_of_mindspore_are_those_of_one_batch():
    boosts = (Thor(mode="mindspore", batch_size=8), GradAccumulation(2))
    with pytest.raises(ConfigError, match="from a single batch") as caught:
        build_program(small_mlp(), ProgramConfig(boosts=boosts))
    assert_three_lines(caught.value)


# ---- MindSpore -----------------------------------------------------------------------------------

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
