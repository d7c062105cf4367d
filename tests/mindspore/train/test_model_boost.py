"""``Model`` with a boost level."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost import amp, nn
from ortboost.core.errors import FileError
from ortboost.mindspore.boost import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
    GradientAccumulation,
    LessBN,
)
from ortboost.mindspore.core.network import load
from ortboost.mindspore.train.model import Model
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, model_path


def boosted(level="O1", **more):
    """A boosted model and the network that it was made with."""
    net = load(model_path("resnet_bottleneck"), threads=1)
    config = {"grad_freeze": {"param_groups": 4, "total_steps": 20}}
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    given = {"metrics": {"acc", "loss"}, "boost_level": level, "boost_config_dict": config}
    return Model(net, loss, optimizer, **{**given, **more}), net


def test_a_level_on_a_small_network_trains_with_a_warning():
    net = golden.network("mlp")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    with pytest.warns(UserWarning, match="nothing is frozen"):
        model = Model(net, loss, optimizer, boost_level="O1")
    model.train(2, list(golden.batches("mlp", 3)))


IMAGES = [
    (rng.standard_normal((4, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, 4))
    for rng in [np.random.default_rng(0)]
]


@pytest.mark.parametrize("manager", [None, amp.DynamicLossScaleManager(2**10)])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_boosted_model_trains_and_evaluates_with_its_head(level, manager):
    model, net = boosted(level, loss_scale_manager=manager)
    assert isinstance(model.predict_network, LessBN)
    assert isinstance(
        model.train_network, BoostTrainOneStepCell | BoostTrainOneStepWithLossScaleCell
    )
    before = model.eval(IMAGES)["loss"]
    model.train(8, IMAGES)
    assert model.eval(IMAGES)["loss"] < before
    assert model.train_network.optimizer.global_step == 8
    assert "fc.multiplier" in net.parameters_dict()
    x, _ = IMAGES[0]
    np.testing.assert_array_equal(net(x).asnumpy(), model.predict(x).asnumpy())


def test_an_evaluation_network_follows_to_the_boosted_network():
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model, net = boosted()
    given = Model(
        net,
        loss,
        nn.SGD(net.trainable_params()),
        eval_network=nn.WithEvalCell(net, loss),
        metrics={"acc"},
        boost_level="O1",
        boost_config_dict={"grad_freeze": {"param_groups": 2}},
    )
    assert given.eval_network.backbone_network is given.predict_network is net
    assert model.eval_network.backbone_network is model.predict_network


def test_a_boost_without_less_bn_trains_the_network_itself():
    """Also at the level O0, where MindSpore's Model does not read the dictionary."""
    config = {
        "boost": {"mode": "manual", "grad_accumulation": True},
        "grad_accumulation": {"grad_accumulation_step": 2},
    }
    model, net = boosted("O0", boost_config_dict=config)
    assert model.predict_network is net
    model.train(5, IMAGES)
    assert model.train_network.optimizer.global_step == 2
    assert model.train_network.flush()


def test_a_wrapped_optimizer_can_be_given():
    net = load(model_path("mlp"), threads=1)
    optimizer = GradientAccumulation(2, nn.SGD(net.trainable_params(), 0.1))
    model = Model(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean"), optimizer)
    model.train(1, list(golden.batches("mlp", 3)))
    assert optimizer.global_step == 1


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"boost_config_dict": {"boost": {"mode": "man"}}}, ValueError),
        ({"boost_config_dict": {"boost": {"mode": "enable_all"}}}, ValueError),
        ({"boost_config_dict": "missing.json"}, FileError),
        ({"boost_config_dict": 3}, ValueError),
        ({"optimizer": None}, ValueError),
    ],
)
def test_refusals(more, kind):
    if "optimizer" in more:
        net = golden.network("mlp")
        with pytest.raises(kind) as raised:
            Model(net, boost_level="O1")
    else:
        with pytest.raises(kind) as raised:
            boosted(**more)
    assert_three_lines(raised.value)


def test_with_all_boosts_dimension_reduction_takes_the_step(tmp_path):
    net = load(model_path("mlp"), threads=1)
    length = sum(p.size for p in net.trainable_params())
    np.save(tmp_path / "p.npy", np.eye(3, length, dtype=np.float32))
    config = {
        "boost": {"mode": "enable_all"},
        "dim_reduce": {"n_components": 3, "pca_mat_path": str(tmp_path / "p.npy")},
    }
    loss = nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    model = Model(net, loss, optimizer, boost_level="O1", boost_config_dict=config)
    model.train(1, list(golden.batches("mlp", 3)))
    assert model.train_network.enable_dim_reduce
    assert model.predict_network is net
