"""The state machines of scale cells and managers against MindSpore 2.10, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost import amp, nn
from ortboost.network import Parameter
from ortboost.tensor import Tensor
from tests.nn import golden

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
