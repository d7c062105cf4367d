from __future__ import annotations

import warnings

import numpy as np
import pytest

from ortboost import amp, boost, nn
from ortboost.core.errors import OrtBoostError
from tests.mindspore.nn import golden


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


def test_a_scale_that_nothing_divides_by_is_told():
    net, loss = parts()
    optimizer = boost.GradientAccumulation(2, nn.SGD(net.trainable_params(), loss_scale=2.0))
    for scale in (2.0, 256.0):
        manager = amp.FixedLossScaleManager(scale, drop_overflow_update=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            amp.build_train_network(net, optimizer, loss, loss_scale_manager=manager)
        assert [str(w.message)[:33] for w in caught] == ["the loss is multiplied by 256, bu"] * (
            scale == 256
        )


def test_the_step_can_be_built_on_a_loss_cell():
    net, loss = parts()
    step = amp.build_train_network(
        nn.WithLossCell(net, loss), nn.SGD(net.trainable_params()), keep_batchnorm_fp32=True
    )
    assert isinstance(step, nn.TrainOneStepCell)


@pytest.mark.parametrize("manager", [None, amp.DynamicLossScaleManager(64)])
def test_with_a_boost_level_the_steps_are_those_of_boost(manager):
    kinds = (boost.BoostTrainOneStepCell, boost.BoostTrainOneStepWithLossScaleCell)
    for level, boosted in (("O0", False), ("O1", True), ("O2", True)):
        net, loss = parts()
        step = amp.build_train_network(
            net,
            nn.SGD(net.trainable_params()),
            loss,
            boost_level=level,
            loss_scale_manager=manager,
        )
        assert isinstance(step, kinds) == boosted
    net, loss = parts()
    wrapped = boost.GradientAccumulation(2, nn.SGD(net.trainable_params()))
    step = amp.build_train_network(net, wrapped, loss, loss_scale_manager=manager)
    assert isinstance(step, kinds)
    assert step.max_accumulation_step == 2


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"level": "O2", "cast_model_type": "int8"}, ValueError),
        ({"level": "O3", "keep_batchnorm_fp32": 1}, TypeError),
        ({"cast_model_type": "float16"}, ValueError),  # level O0
        ({"keep_batchnorm_fp32": 1}, TypeError),
        ({"boost_level": "O3"}, ValueError),
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


@pytest.mark.parametrize(
    ("level", "policy", "scaled"),
    [
        ("O1", "autocast", False),
        ("O2", "all", True),
        ("O3", "all", False),
        ("auto", "autocast", False),
    ],
)
def test_a_level_trains_mixed_with_the_scale_that_it_has(level, policy, scaled):
    net, loss = parts()
    step = amp.build_train_network(net, nn.Momentum(net.trainable_params(), 0.05, 0.9), loss, level)
    assert isinstance(step, nn.TrainOneStepWithLossScaleCell) == scaled
    assert net.precision.policy == policy
    batches = list(golden.batches("mlp", 10))
    answers = [step(x, labels) for x, labels in batches]
    if scaled:  # 2^24 is too much for float16: the first steps overflow, and are skipped
        assert bool(answers[0][1])
        assert float(answers[0][2]) == 2.0**23
        assert not bool(answers[-1][1])
    else:
        assert np.isfinite([float(answer) for answer in answers]).all()
    assert all(parameter.asnumpy().dtype == np.float32 for parameter in net.get_parameters())


def test_mixed_precision_is_near_float32_and_not_the_same():
    losses = {}
    for level in ("O0", "O1"):
        net, loss = parts()
        step = amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.05), loss, level)
        losses[level] = np.array(
            [float(step(x, labels)) for x, labels in golden.batches("mlp", 10)]
        )
    np.testing.assert_allclose(losses["O1"], losses["O0"], rtol=5e-3)
    assert (losses["O1"] != losses["O0"]).all()


def test_the_network_computes_in_float32_outside_of_training():
    net, _ = parts()
    x, _ = next(iter(golden.batches("mlp", 1)))
    before = net(x).asnumpy()
    assert amp.auto_mixed_precision(net, "O3", np.float16) is net
    np.testing.assert_array_equal(net(x).asnumpy(), before)


def test_lists_of_operators():
    net, loss = parts()
    assert "Conv" in amp.get_white_list()
    assert "Softmax" in amp.get_black_list()
    amp.custom_mixed_precision(net, white_list=["Gemm"])
    assert net.precision.force_low == ("Gemm",)
    assert "Relu" in net.precision.keep_fp32
    amp.custom_mixed_precision(net, white_list=[*amp.get_white_list(), "Relu"])
    amp.custom_mixed_precision(nn.WithLossCell(net, loss), black_list=["Relu", "Softmax"])
    assert net.precision.keep_fp32 == ("Relu",)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.SGD(net.trainable_params(), 0.05))
    assert np.isfinite(float(step(*next(iter(golden.batches("mlp", 1))))))


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, ValueError),
        ({"white_list": ["Gemm"], "black_list": ["Relu"]}, ValueError),
        ({"white_list": ["Conv"]}, ValueError),
        ({"white_list": ["Gemm", "Sotfmax"]}, ValueError),
        ({"black_list": ["Sotfmax"]}, ValueError),
        ({"white_list": [nn.SGD]}, TypeError),
        ({"white_list": ["Gemm"], "dtype": "float32"}, ValueError),
    ],
)
def test_refused_lists(arguments, kind):
    net, _ = parts()
    with pytest.raises(kind) as raised:
        amp.custom_mixed_precision(net, **arguments)
    assert isinstance(raised.value, OrtBoostError)
    with pytest.raises(TypeError):
        amp.custom_mixed_precision(1, white_list=["Gemm"])
    with pytest.raises(ValueError, match="O7"):
        amp.auto_mixed_precision(net, "O7")
