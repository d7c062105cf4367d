"""Gradient freeze: groups by the graph's layers, one graph for each, one state for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost.boosts.freeze_groups import freeze_groups
from ortboost.boosts.freeze_schedule import COST, FreezeConfig
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig
from ortboost.graph.io import load_model
from ortboost.graph.layers import Layer, find_layers
from ortboost.graph.weights.parameters import find_parameters
from ortboost.optimizers import Adam, Momentum, Sgd
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.program.program import Program
from tests.support import (
    ENGINES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    model_path,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}
TURNS = FreezeConfig(param_groups=2, sequence=(0, 1, 1, 0))


def trainable(model):
    return [p for p in find_parameters(model).values() if p.trainable]


def build(model=None, **fields):
    return build_program(model or small_mlp(), ProgramConfig(**{"grad_freeze": TURNS, **fields}))


def train(training, steps, seed=0):
    results = []
    for step in range(steps):
        batch = batch_for(training.program, 6, seed=seed + step)
        results.append(training.step(batch, RATE))
    return results


def sequences(first="one", embedded=True):
    """Layers over a sequence whose length the model leaves open; an embedding costs no product."""
    reads = "int64[batch,n] x, float[9,4] t" if embedded else "float[batch,n,4] x, float[4,4] t"
    op = "Gather(t, x)" if embedded else "MatMul(x, t)"
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({reads}, float[4,4] v, float[4,4] w, float[3,4] u) => (float[batch,3] logits)
            <int64[1] axes = {{1}}> {{
          [{first}] a = {op}
          [two] b = MatMul(a, v)
          [three] c = MatMul(b, w)
          [pool] d = ReduceMean<keepdims = 0>(c, axes)
          [head] logits = Gemm<transB = 1>(d, u)
        }}""",
        t=weights(9 if embedded else 4, 4),
        v=weights(4, 4, seed=1),
        w=weights(4, 4, seed=2),
        u=weights(3, 4, seed=3),
    )


@pytest.mark.parametrize("embedded", [True, False])
def test_by_cost_group_0_trains_everything_where_lengths_are_open(embedded):
    model = sequences(embedded=embedded)
    wanted = trainable(model)
    costs = [layer.cost for layer in find_layers(model, wanted)]
    assert len(costs) == 4
    assert min(costs[1:3]) > 8 * costs[3] > 0
    groups, _ = freeze_groups(model, wanted, FreezeConfig(param_groups=4, freeze_type=COST))
    assert groups[0] == ("t", "v", "w", "u")
    assert groups[3] in (("w", "u"), ("u",))


def test_by_cost_group_0_trains_layers_that_cost_nothing(monkeypatch):
    model = sequences()
    free = [Layer("one", ["t"], 0), Layer("two", ["v"], 0), Layer("three", ["w", "u"], 9)]
    monkeypatch.setattr("ortboost.boosts.freeze_groups.find_layers", lambda *_: free)
    groups, _ = freeze_groups(
        model, trainable(model), FreezeConfig(param_groups=2, freeze_type=COST)
    )
    assert groups == (("t", "v", "w", "u"), ("w", "u"))
    for layer in free:
        layer.cost = 0
    with pytest.raises(ConfigError, match="cost of the layers is unknown") as caught:
        freeze_groups(model, trainable(model), FreezeConfig(param_groups=2, freeze_type=COST))
    assert_three_lines(caught.value)


# ---- groups ------------------------------------------------------------------------------------


def test_a_layer_is_a_weight_with_what_follows_it():
    model = small_convnet()
    layers = find_layers(model, trainable(model))
    assert [layer.node for layer in layers] == ["conv", "fc"]
    assert [set(layer.parameters) for layer in layers] == [{"cw", "s", "b"}, {"fw", "fb"}]
    # conv, bn and relu give out 4 x 6 x 6, pool and flatten 4, fc 3
    assert [layer.cost for layer in layers] == [
        4 * 6 * 6 * 9 + 32 * (3 * 144 + 4 + 4),
        12 + 32 * 3,
    ]


@pytest.mark.parametrize(("stride", "counted"), [(8, True), (512, True), (10**6, False)])
def test_costs_are_those_of_inputs_that_are_long_enough(stride, counted):
    """Audio has 16,000 samples in a second: of 128 its first layers leave none."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[batch,1,t] x, float[2,1,9] first, float[2,2,5] second) => (float[batch,2,m] y) {{
          [a] h = Conv<strides = [{stride}]>(x, first)
          [b] y = Conv(h, second) }}""",
        first=weights(2, 1, 9),
        second=weights(2, 2, 5),
    )
    costs = {layer.node: layer.cost for layer in find_layers(model, trainable(model))}
    assert [name for name, cost in costs.items() if (cost > 0) == counted] == ["a", "b"]


def test_every_parameter_of_a_large_model_is_in_one_layer():
    model = load_model(model_path("transformer_tiny"))
    wanted = trainable(model)
    layers = find_layers(model, wanted)
    found = [name for layer in layers for name in layer.parameters]
    assert sorted(found) == sorted(p.name for p in wanted)


@pytest.mark.parametrize("number", [1, 3, 10])
def test_groups_are_nested_and_end_with_the_last_layer(number):
    model = load_model(model_path("resnet20"))
    wanted = trainable(model)
    groups, report = freeze_groups(model, wanted, FreezeConfig(param_groups=number))
    assert len(groups) == number
    assert set(groups[0]) == {p.name for p in wanted}
    for larger, smaller in itertools.pairwise(groups):
        assert set(smaller) < set(larger)
    assert "fc.weight" in groups[-1]
    assert len(report.changed) == number


def test_by_cost_each_group_saves_its_share():
    model = load_model(model_path("resnet20"))
    wanted = trainable(model)
    layers = find_layers(model, wanted)
    total = sum(layer.cost for layer in layers)
    groups, _ = freeze_groups(model, wanted, FreezeConfig(param_groups=5, freeze_type=COST))
    for index, group in enumerate(groups):
        dropped = sum(layer.cost for layer in layers if not set(layer.parameters) & set(group))
        assert dropped <= index / 5 * total + 1
        assert dropped >= (index / 5 - max(layer.cost for layer in layers) / total) * total - 1


def test_with_more_groups_than_layers_nothing_is_frozen_and_a_note_says_so():
    """In MindSpore each group is then everything; here training equals that without the boost."""
    program = build(grad_freeze=FreezeConfig(freeze_p=0.0), optimizer=Momentum())
    assert list(program.graphs) == ["step"]
    (report,) = [report for report in program.reports if report.rewrite == "grad_freeze"]
    assert "10 groups are requested, but the network has 2 layers" in report.kept["grad_freeze"]
    assert "--boost grad-freeze:groups=2" in report.notes[0]
    three = build(grad_freeze=FreezeConfig(param_groups=3))
    (report,) = [report for report in three.reports if report.rewrite == "grad_freeze"]
    assert "--boost grad-freeze:groups=2" in report.notes[0]
    frozen, plain = stepper(program), stepper(build(grad_freeze=None, optimizer=Momentum()))
    assert [result.group for result in train(frozen, 4)] == [0, 0, 0, 0]
    train(plain, 4)
    kept = [entry.name for entry in program.catalogue.entries("parameter")]
    one, other = ({name: step.get(name) for name in kept} for step in (frozen, plain))
    assert_same_bits(one, other)


def test_given_groups_are_taken_as_they_are():
    config = FreezeConfig(groups=(("w2",), ("b2", "w2")), sequence=(0, 1))
    program = build(grad_freeze=config)
    assert [e.name for e in program.catalogue_of("step").entries("parameter") if e.next] == ["w2"]
    moving = [e.name for e in program.catalogue_of("step.1").entries("parameter") if e.next]
    assert moving == ["w2", "b2"]
    (report,) = [report for report in program.reports if report.rewrite == "grad_freeze"]
    assert report.notes == ["grad-freeze: no group trains 2 tensors, for example 'w1'"]
    with pytest.raises(ConfigError, match="'w9'") as caught:
        build(grad_freeze=FreezeConfig(groups=(("w9",),)))
    assert_three_lines(caught.value)


# ---- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_backward_pass_is_cut_off(engine):
    config = FreezeConfig(param_groups=4)
    program = build_program(
        model_path("resnet20"), ProgramConfig(grad_freeze=config, engine=engine)
    )
    sizes = [sum(1 for _ in graph.graph.all_nodes()) for graph in program.graphs.values()]
    assert list(program.graphs) == ["step", "step.1", "step.2", "step.3"]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[3] < 0.65 * sizes[0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("make", [small_mlp, small_convnet])
def test_a_frozen_step_is_a_step_that_trains_less(make, engine):
    """With the same gradients, to the bit, for what it trains."""
    program = build(make(), engine=engine, optimizer=Sgd())
    frozen = stepper(program)
    full = stepper(build_program(make(), ProgramConfig(engine=engine, optimizer=Sgd())))
    (first,) = train(frozen, 1)
    train(full, 1)
    assert first.group == 0
    state = {name: full.get(name) for name in full.state()}
    (second,) = train(frozen, 1, seed=9)
    train(full, 1, seed=9)
    assert second.group == 1
    kept = {e.name for e in program.catalogue_of("step.1").entries("parameter") if not e.next}
    assert kept
    for entry in program.catalogue.entries("parameter", "buffer"):
        expected = state[entry.name] if entry.name in kept else full.get(entry.name)
        np.testing.assert_array_equal(frozen.get(entry.name), expected, err_msg=entry.name)


def test_groups_come_as_the_plan_says_and_it_starts_again():
    results = train(stepper(build()), 6)
    assert [result.group for result in results] == [0, 1, 1, 0, 0, 1]
    assert [result.applied_steps for result in results] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("separate", [True, False])
def test_the_optimizer_state_of_groups(separate):
    """Replayed in numpy: a momentum buffer for each group, or one for all."""
    config = FreezeConfig(param_groups=2, sequence=(0, 1, 1, 0), separate_state=separate)
    program = build(grad_freeze=config, optimizer=Momentum(momentum=0.5))
    training = stepper(program)
    buffers: dict[tuple[str, int], np.ndarray] = {}
    weights = {name: training.get(name).astype(np.float64) for name in ("w1", "b1", "w2", "b2")}
    for step, group in enumerate((0, 1, 1, 0)):
        probe = stepper(build_program(small_mlp(), ProgramConfig(optimizer=Sgd())))
        for name in weights:
            probe.set(name, training.get(name))
        batch = batch_for(program, 6, seed=step)
        probe.step(batch, {"learning_rate": 1.0})
        for name in weights if group == 0 else ("w2", "b2"):
            grad = training.get(name).astype(np.float64) - probe.get(name)
            key = (name, group if separate else 0)
            buffers[key] = 0.5 * buffers.get(key, 0.0) + grad
            weights[name] = weights[name] - 0.1 * buffers[key]
        training.step(batch, RATE)
        for name, weight in weights.items():
            np.testing.assert_allclose(training.get(name), weight, rtol=0, atol=2e-6)
    slots = {entry.name for entry in program.catalogue.entries("slot")}
    assert (names.slot_name("momentum", "w2", 1) in slots) == separate


def test_adam_counts_the_updates_of_each_group():
    training = stepper(build(optimizer=Adam()))
    train(training, 4)
    assert int(training.get(names.group_step(0))) == 2
    assert int(training.get(names.group_step(1))) == 2
    assert int(training.get(names.STEP)) == 4


def test_an_overflow_tries_the_same_group_again():
    training = stepper(build(loss_scale=DynamicScaleConfig(init_scale=1024.0)))
    train(training, 1)
    batch = batch_for(training.program, 6)
    bad = {**batch, "x": np.full_like(batch["x"], np.inf)}
    before = training.state()
    result = training.step(bad, RATE)
    assert (result.overflow, result.group, result.loss_scale) == (True, 1, 512.0)
    for entry in training.catalogue.entries("parameter", "slot", "buffer"):
        assert training.get(entry.name).tobytes() == before[entry.name].tobytes()
    assert training.step(batch, RATE).group == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accumulate": 2},
        {"clip": ClipConfig("global-norm", 0.5), "optimizer": Adam()},
        {"check_finite": False, "loss_scale": NO_SCALE, "accumulate": 2},
    ],
)
def test_a_loaded_state_goes_on_to_the_same_bits_and_in_place_changes_none(
    fields, engine, tmp_path
):
    program = build(small_convnet(), engine=engine, **fields)
    program.save(tmp_path / "run")
    one = stepper(program)
    two = stepper(program, in_place=False)
    train(one, 3)
    train(two, 3)
    assert_same_bits(one.state(), two.state())
    three = stepper(Program.load(tmp_path / "run"))
    three.load_state(one.state())
    results = [train(training, 5, seed=3) for training in (one, two, three)]
    assert len({tuple(r.group for r in result) for result in results}) == 1
    assert_same_bits(one.state(), two.state())
    assert_same_bits(one.state(), three.state())


def test_with_accumulation_a_window_is_of_one_group():
    training = stepper(build(accumulate=2))
    results = train(training, 8)
    assert [result.group for result in results] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert [result.updated for result in results] == [False, True] * 4
    train(training, 3)
    assert training.flush(RATE)
    assert int(training.get(names.STEP)) == 6
