from __future__ import annotations

import numpy as np
import pytest

from ortboost import amp, nn
from ortboost.errors import OrtBoostError
from tests.nn import golden


def parts():
    net = golden.network("mlp")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return net, loss


@pytest.mark.parametrize(
    ("manager", "kind", "scale"),
    [
        (None, nn.TrainOneStepCell, None),
        (amp.FixedLossScaleManager(256, False), nn.TrainOneStepCell, 256),
        (amp.FixedLossScaleManager(256), nn.TrainOneStepWithLossScaleCell, 256),
        (amp.DynamicLossScaleManager(512, 2, 100), nn.TrainOneStepWithLossScaleCell, 512),
    ],
)
def test_every_manager_gets_the_step_it_asks_for(manager, kind, scale):
    net, loss = parts()
    divisor = 256.0 if kind is nn.TrainOneStepCell and manager else 1.0
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9, loss_scale=divisor)
    step = amp.build_train_network(net, optimizer, loss, loss_scale_manager=manager)
    assert type(step) is kind
    for x, labels in golden.batches("mlp", 10):
        answer = step(x, labels)
    if kind is nn.TrainOneStepCell:
        assert step.sens == (scale or 1)
    else:
        assert float(answer[2]) == scale
    file = golden.read("train_mlp")
    errors = golden.errors(net, file["meta"]["layout"]["mlp"], file["momentum/wd0/params"][-1])
    assert max(errors.values()) < 1e-6


def test_the_step_can_be_built_on_a_loss_cell():
    net, loss = parts()
    step = amp.build_train_network(
        nn.WithLossCell(net, loss), nn.SGD(net.trainable_params()), keep_batchnorm_fp32=True
    )
    assert isinstance(step, nn.TrainOneStepCell)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"level": "O2"}, NotImplementedError),
        ({"boost_level": "O1"}, NotImplementedError),
        ({"level": "O9"}, ValueError),
        ({"loss_scale_manager": 1}, TypeError),
        ({"unknown": 1}, ValueError),
    ],
)
def test_refusals(arguments, kind):
    net, loss = parts()
    with pytest.raises(kind) as raised:
        amp.build_train_network(net, nn.SGD(net.trainable_params()), loss, **arguments)
    assert isinstance(raised.value, OrtBoostError)


def test_a_scale_may_be_a_numpy_number():
    assert amp.FixedLossScaleManager(np.float32(8)).get_loss_scale() == 8
    assert amp.DynamicLossScaleManager(np.int64(8)).get_loss_scale() == 8.0
