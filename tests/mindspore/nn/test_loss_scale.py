"""The state machines of scale cells and managers against MindSpore 2.10, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost import amp, nn
from ortboost.core.loss_scale import initial_state, update
from ortboost.mindspore.core.network import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.program import names
from tests.mindspore.nn import golden
from tests.support import assert_three_lines

RECORD = golden.read("loss_scale")
COMBOS = RECORD["meta"]["combos"]


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("combo", COMBOS)
def test_cell_on_the_host(combo):
    cell = nn.DynamicLossScaleUpdateCell(*COMBOS[combo])
    scale = Parameter(Tensor(np.float32(COMBOS[combo][0])), name="scale")
    seen = []
    for overflow in RECORD["overflow"]:
        assert cell(scale, Tensor(overflow)) == overflow
        seen.append(scale.asnumpy())
    np.testing.assert_array_equal(np.array(seen), RECORD[f"{combo}/cell"])
    assert cell.get_loss_scale() == COMBOS[combo][0]


@pytest.mark.parametrize("combo", [c for c in COMBOS if f"{c}/manager" in RECORD])
def test_manager(combo):
    manager = amp.DynamicLossScaleManager(*COMBOS[combo])
    seen = []
    for overflow in RECORD["overflow"]:
        manager.update_loss_scale(bool(overflow))
        seen.append(manager.get_loss_scale())
    np.testing.assert_array_equal(np.array(seen), RECORD[f"{combo}/manager"])
    assert manager.get_drop_overflow_update() is True


def test_fixed():
    cell = nn.FixedLossScaleUpdateCell(RECORD["fixed/cell"][0].item())
    scale = Parameter(Tensor(RECORD["fixed/cell"][0]))
    for overflow, want in zip(RECORD["overflow"], RECORD["fixed/cell"], strict=False):
        cell(scale, overflow)
        assert scale.asnumpy() == want


def test_the_graph_follows_the_cell_through_an_overflow_pattern():
    """Combo c in the step graph itself: inf batches make the overflows."""
    start, factor, window = 64.0, 2, 3
    pattern = RECORD["overflow"][:60]
    host = nn.DynamicLossScaleUpdateCell(start, factor, window)
    scale = Parameter(Tensor(start))
    net = golden.network("mlp")
    step = nn.TrainOneStepWithLossScaleCell(
        nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")),
        nn.SGD(net.trainable_params(), learning_rate=1e-3),
        nn.DynamicLossScaleUpdateCell(start, factor, window),
    )
    x, labels = next(iter(golden.batches("mlp", 1)))
    for overflow in pattern:
        host(scale, overflow)
        _, seen, value = step(np.full_like(x, np.inf) if overflow else x, labels)
        assert (bool(seen), float(value)) == (bool(overflow), float(scale.asnumpy()))
    assert float(step.scale_sense.asnumpy()) == float(scale.asnumpy())


def training(scale_sense):
    net = golden.network("mlp")
    loss = nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    return net, nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(net, loss), optimizer, scale_sense)


LAWS = [
    {},
    {"hysteresis": 2},
    {"hysteresis": 3},
    {"hysteresis": 2, "consecutive_hysteresis": True},
]


@pytest.mark.parametrize("options", LAWS)
def test_a_scale_moved_by_the_host_trains_as_one_moved_by_the_graph(options):
    """A Tensor as scale_sense and set_sense_scale after each step: the same bits, step by step."""
    pattern = RECORD["overflow"][:40]
    law = (64.0, 2, 3)
    by_graph, step = training(nn.DynamicLossScaleUpdateCell(*law, **options))
    by_host, moved = training(Tensor(np.float32(64.0)))
    host, scale = nn.DynamicLossScaleUpdateCell(*law, **options), Parameter(Tensor(64.0))
    for overflow, (x, labels) in zip(pattern, golden.batches("mlp", len(pattern)), strict=True):
        x = np.full_like(x, np.nan) if overflow else x
        loss, seen, value = step(x, labels)
        other_loss, other_seen, _ = moved(x, labels)
        host(scale, other_seen)
        moved.set_sense_scale(scale.value())
        assert bool(seen) == bool(other_seen) == bool(overflow)
        np.testing.assert_array_equal(loss, other_loss)
        assert float(value) == float(scale.asnumpy())
        assert moved.scale_sense.asnumpy() == step.scale_sense.asnumpy()
    for name, weights in golden.values(by_graph).items():
        np.testing.assert_array_equal(golden.values(by_host)[name], weights)


GRAPHS = {}


@pytest.mark.parametrize("options", LAWS)
@settings(max_examples=10, deadline=None)
@given(pattern=st.lists(st.booleans(), min_size=1, max_size=30), window=st.sampled_from([1, 3]))
def test_the_graph_follows_the_state_machine(options, pattern, window):
    key = (*options.items(), window)
    if key not in GRAPHS:
        made = training(nn.DynamicLossScaleUpdateCell(64.0, 2, window, **options))[1]
        x, labels = next(iter(golden.batches("mlp", 1)))
        made(x, labels)
        GRAPHS[key] = made, made._steps.stepper(made.network.loss_fn.labels(labels))
    stepper = GRAPHS[key][1]
    stepper.load_state(stepper.program.initial)
    law = stepper.program.config.loss_scale
    x, labels = next(iter(golden.batches("mlp", 1)))
    state = initial_state(law)
    for overflow in pattern:
        feeds = {"x": np.full_like(x, np.inf) if overflow else x, "labels": labels.astype(np.int64)}
        result = stepper.step(feeds, {"learning_rate": 0.0})
        state = update(state, overflow, law)
        assert (result.overflow, np.float32(result.loss_scale)) == (overflow, state.scale)
        assert result.consecutive_skips == state.consecutive_skips
        assert result.total_skips == state.total_skips
        good = state.cur_iter - 1 - state.last_overflow_iter
        assert stepper.get(names.GOOD_STEPS) == good
        if law.hysteresis > 1:
            assert stepper.get(names.OVERFLOWS_LEFT) == state.overflows_left


def test_hysteresis_on_the_host():
    cell = nn.DynamicLossScaleUpdateCell(64.0, 2, 2, hysteresis=2)
    scale, seen = Parameter(Tensor(64.0)), []
    for overflow in (True, True, True, False, False, True, True):
        cell(scale, overflow)
        seen.append(float(scale.asnumpy()))
    assert seen == [64, 32, 16, 16, 32, 32, 16]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"hysteresis": 0}, ValueError),
        ({"hysteresis": 1.5}, TypeError),
        ({"hysteresis": True}, TypeError),
        ({"consecutive_hysteresis": 1}, TypeError),
    ],
)
def test_what_is_no_hysteresis(options, kind):
    with pytest.raises(kind, match="hysteresis") as caught:
        nn.DynamicLossScaleUpdateCell(64.0, 2, 2, **options)
    assert_three_lines(caught.value)


def test_a_cell_needs_a_parameter_to_move():
    with pytest.raises(TypeError, match="loss_scale"):
        nn.DynamicLossScaleUpdateCell(4.0, 2, 2)(4.0, False)


def test_a_manager_hands_its_present_scale_to_the_cell():
    manager = amp.DynamicLossScaleManager(2**10, 2, 1)
    manager.update_loss_scale(False)
    assert manager.get_update_cell().get_loss_scale() == 2**11
    assert amp.FixedLossScaleManager(64).get_update_cell().get_loss_scale() == 64
    assert amp.FixedLossScaleManager(64, drop_overflow_update=False).get_update_cell() is None


def test_a_thousand_overflows_are_endured_and_one_more_is_not():
    manager = amp.DynamicLossScaleManager()
    for _ in range(1000):
        manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 1
    with pytest.raises(RuntimeError, match="1001"):
        manager.update_loss_scale(True)


def test_an_update_cell_moves_a_tensor_in_place():
    """MindSpore 2.10 does: 4096 is 2048 after an overflow."""
    cell, scale = nn.DynamicLossScaleUpdateCell(2**12, 2, 1000), Tensor(4096.0)
    assert cell(scale, Tensor(True))
    assert float(scale) == 2048.0
    parameter = Parameter(np.float32(4096))
    nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)(parameter, True)
    assert float(parameter.asnumpy()) == 2048.0
    fixed = Tensor(64.0)
    nn.FixedLossScaleUpdateCell(64)(fixed, True)
    assert float(fixed) == 64.0


def test_a_scale_that_cannot_be_moved_is_refused():
    frozen = np.float32([4.0])
    frozen.setflags(write=False)
    for scale in (frozen, np.float32([1, 2]), np.int64([4])):
        with pytest.raises(ValueError, match="The scale is") as info:
            nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)(scale, False)
        assert_three_lines(info.value)
    with pytest.raises(TypeError):
        nn.DynamicLossScaleUpdateCell(2**12, 2, 1000)(4096.0, False)
