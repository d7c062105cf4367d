"""GroupLossScaleManager: the sample, marks, what moves the scales, and what is refused.

The graph itself is tested in ``tests/boosts/test_group_loss_scale.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost import amp, nn
from ortboost.core.errors import OrtBoostError
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.mindspore.boost import (
    AutoBoost,
    BoostTrainOneStepWithLossScaleCell,
    FreezeOpt,
    GradientAccumulation,
    GroupLossScaleManager,
)
from ortboost.mindspore.core.network import Parameter, load
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.train.model import Model
from tests.mindspore.boost.common import momentum, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, grouped_update, model_path

FREE = GroupedScaleConfig(min_scale=None, max_scale=None)  # the law alone
GROWN = np.float32(2.0 ** (1 / 1000))


def halves(net):
    return [net.trainable_params()[:2], net.trainable_params()[2:]]


def cell(manager, net=None, optimizer=None):
    net = net or golden.network("mlp")
    if not manager.loss_scale_groups:
        manager.loss_scale_groups = halves(net)
    optimizer = momentum(net) if optimizer is None else optimizer(net)
    return net, BoostTrainOneStepWithLossScaleCell(with_loss(net), optimizer, manager)


def scales(manager):
    return np.array([float(scale) for scale in manager.dynamic_loss_scale[1:-1]], np.float32)


def spoilt(x):
    return np.full_like(x, np.nan)


# ---- the sample ----------------------------------------------------------------------------------


def test_the_sample_of_the_documentation():
    """As in MindSpore's docstring, but that the network is a file and needs no calls in it."""
    net = load(model_path("lenet5"), threads=1)
    loss_scale_manager = GroupLossScaleManager(4096, [])
    param_group1 = []
    param_group2 = []
    for param in net.trainable_params():
        if "conv" in param.name:
            param_group1.append(param)
        else:
            param_group2.append(param)
    loss_scale_manager.loss_scale_groups = [param_group1, param_group2]
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optim = nn.Momentum(params=net.trainable_params(), learning_rate=0.02, momentum=0.9)
    names = ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce")
    boost_config_dict = {
        "boost": {"mode": "manual", **dict.fromkeys(names, False), "loss_scale_group": True}
    }
    model = Model(
        net,
        loss_fn=loss,
        optimizer=optim,
        metrics={"loss"},
        loss_scale_manager=loss_scale_manager,
        boost_level="O1",
        boost_config_dict=boost_config_dict,
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 32, *net.inputs[0].shape[1:])).astype(np.float32)
    dataset = list(zip(x, rng.integers(0, 10, (2, 32)), strict=True))
    before = model.eval(dataset)["loss"]
    model.train(3, dataset)
    assert model.eval(dataset)["loss"] < before
    assert isinstance(model.train_network, BoostTrainOneStepWithLossScaleCell)
    expected = np.full(2, 4096, np.float32)
    for _ in range(6):
        expected = grouped_update(expected, np.zeros(2, bool), FREE)
    np.testing.assert_array_equal(scales(loss_scale_manager), expected)
    assert loss_scale_manager.get_loss_scale() == 4096  # the first one, as in MindSpore
    assert loss_scale_manager.get_update_cell() is loss_scale_manager


def test_it_answers_what_mindspore_answers():
    """Loss and scale of every step; weights except for unscaling by the new scale, 2^(1/1000)."""
    file = golden.read("boost")
    about = file["meta"]["groups"]
    rate = 0.05 * 2.0 ** (-1 / 1000)
    net, step = cell(
        GroupLossScaleManager(about["start"], []),
        optimizer=lambda net: nn.Momentum(net.trainable_params(), rate, 0.9),
    )
    for index, (x, labels) in enumerate(golden.batches("mlp", about["count"])):
        loss, overflow, scale = step(x, labels)
        assert not overflow
        assert float(loss) == pytest.approx(float(file["groups/loss"][index]), abs=2e-6)
        assert float(scale) == pytest.approx(float(file["groups/loss_scale"][index]), rel=1e-6)
    found = golden.errors(net, file["meta"]["layout"]["mlp"], file["groups/params"][0])
    assert max(found.values()) < 1e-6


def test_the_update_is_that_without_any_scale():
    """In MindSpore it is not: gradients are divided by the scale of the next step."""
    net, step = cell(GroupLossScaleManager([64.0, 1024.0], []))
    plain = golden.network("mlp")
    other = nn.TrainOneStepCell(with_loss(plain), momentum(plain))
    start = golden.values(net)
    for x, labels in golden.batches("mlp", 3):
        step(x, labels)
        other(x, labels)
    for name, value in golden.values(plain).items():
        moved = np.abs(value - start[name]).max()
        assert np.abs(golden.values(net)[name] - value).max() < 1e-5 * moved  # not 7e-4


def test_build_train_network_takes_it():
    net = golden.network("mlp")
    manager = GroupLossScaleManager(4096, 2)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    step = amp.build_train_network(net, momentum(net), loss, loss_scale_manager=manager)
    assert isinstance(step, BoostTrainOneStepWithLossScaleCell)
    (x, labels), *_ = golden.batches("mlp", 1)
    assert float(step(x, labels)[2]) == np.float32(4096) * GROWN


# ---- marks ---------------------------------------------------------------------------------------


def mark(manager, net):
    hidden = net.model.graph[-2].outputs[0].name
    assert manager(net, "x", 0, 1) is net
    manager(with_loss(net), hidden, 1, 2)
    manager(net, "logits", 2, 3)


def test_marks_give_the_same_bits_as_groups_alone():
    net, step = cell(GroupLossScaleManager([64.0, 1024.0], []))
    marked, manager = golden.network("mlp"), GroupLossScaleManager([64.0, 1024.0], [])
    mark(manager, marked)
    mark(manager, marked)  # a second time it is the same mark
    _, other = cell(manager, marked)
    for x, labels in golden.batches("mlp", 4):
        for have, want in zip(other(x, labels), step(x, labels), strict=True):
            assert have == want
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(golden.values(marked)[name], value)


def test_marks_that_leave_a_group_without_its_scale_are_refused():
    net, manager = golden.network("mlp"), GroupLossScaleManager(64, [])
    manager(net, "logits", 2, 3)
    _, step = cell(manager, net)
    (x, labels), *_ = golden.batches("mlp", 1)
    with pytest.raises(OrtBoostError, match="The marks give") as caught:
        step(x, labels)
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("net", "nowhere", 1, 2), ValueError, "no tensor 'nowhere'"),
        (("net", "x", 1, 2), ValueError, "is an input"),
        (("net", "logits", 0, 1), ValueError, "comes out of a layer"),
        (("net", "logits", -1, 1), ValueError, "layer1"),
        (("net", "logits", 1.0, 2), TypeError, "layer1"),
        (("net", "logits", 1, True), TypeError, "layer2"),
        (("net", 3, 1, 2), TypeError, "tensor"),
        (("nothing", "logits", 1, 2), TypeError, "network"),
    ],
)
def test_what_is_no_mark(arguments, kind, words):
    net = golden.network("mlp")
    given = [net if isinstance(a, str) and a == "net" else a for a in arguments]
    with pytest.raises(kind, match=words) as caught:
        GroupLossScaleManager(64, [])(*given)
    assert_three_lines(caught.value)


def test_a_manager_marks_one_network():
    manager, net = GroupLossScaleManager(64, []), golden.network("mlp")
    manager(net, "logits", 2, 3)
    with pytest.raises(ValueError, match="Another network"):
        manager(golden.network("mlp"), "logits", 2, 3)


# ---- what moves the scales -----------------------------------------------------------------------


@given(pattern=st.lists(st.booleans(), min_size=1, max_size=25))
@settings(max_examples=10, deadline=None)
def test_the_cell_follows_the_law_step_by_step(pattern):
    if not STEP:
        manager = GroupLossScaleManager([64.0, 1024.0], [], min_scale=32.0, max_scale=1030.0)
        STEP.update(zip(("net", "step"), cell(manager), strict=True), manager=manager)
    manager, step = STEP["manager"], STEP["step"]
    manager.set_loss_scale_status(2, [64.0, 1024.0])
    law = GroupedScaleConfig((64.0, 1024.0), 2, min_scale=32.0, max_scale=1030.0)
    expected = law.starts()
    (x, labels), *_ = golden.batches("mlp", 1)
    for overflow in pattern:
        _, seen, first = step(spoilt(x) if overflow else x, labels)
        # what is wrong with the data is wrong in the last group already
        expected = grouped_update(expected, np.array([False, overflow]), law)
        assert bool(seen) == overflow
        np.testing.assert_array_equal(scales(manager), expected)
        assert float(first) == expected[0]
        np.testing.assert_array_equal(step.scale_sense.asnumpy(), expected)


STEP: dict[str, object] = {}


def test_an_overflow_skips_the_whole_update():
    net, step = cell(GroupLossScaleManager(64, []))
    (x, labels), *_ = golden.batches("mlp", 1)
    step(x, labels)
    before = golden.values(net)
    for skipped in range(3):  # in MindSpore a clean step after these could be skipped too
        assert step(spoilt(x), labels)[1], skipped
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, before[name])
    assert not step(x, labels)[1]
    assert step.optimizer.global_step == 2


def test_the_host_can_move_a_scale_between_steps():
    manager = GroupLossScaleManager([64.0, 1024.0], [])
    _, step = cell(manager)
    (x, labels), (x2, labels2) = golden.batches("mlp", 2)
    step(x, labels)
    expected = grouped_update(np.float32([64, 1024]), np.zeros(2, bool), FREE)
    assert manager.update_loss_scale_status(1, 0.25) == expected[1] * np.float32(0.25)
    expected[1] *= np.float32(0.25)
    step(x2, labels2)
    expected = grouped_update(expected, np.zeros(2, bool), FREE)
    np.testing.assert_array_equal(scales(manager), expected)
    step.set_sense_scale(Tensor(np.float32([8, 16])))
    np.testing.assert_array_equal(scales(manager), np.float32([8, 16]))
    step.set_sense_scale(Tensor(32.0))
    np.testing.assert_array_equal(scales(manager), np.float32([32, 32]))
    step(x, labels)
    np.testing.assert_array_equal(scales(manager), np.float32([32, 32]) * GROWN)


@pytest.mark.parametrize(
    "sens", [Tensor(np.float32([1, 2, 3])), Tensor(np.float32([1, 0])), Tensor(-1.0)]
)
def test_what_is_no_scale_of_the_groups(sens):
    _, step = cell(GroupLossScaleManager(64, []))
    with pytest.raises(ValueError, match="sens") as caught:
        step.set_sense_scale(sens)
    assert_three_lines(caught.value)


def test_one_tensor_for_all_groups_is_not_shared():
    """In MindSpore the groups then move one storage, each of them."""
    manager = GroupLossScaleManager(Tensor(64.0), [])
    _, step = cell(manager)
    (x, labels), *_ = golden.batches("mlp", 1)
    step(spoilt(x), labels)
    expected = np.float32([64, 64]) * np.float32([2.0 ** (1 / 1000), 2.0**-0.5])
    np.testing.assert_array_equal(scales(manager), expected)


def test_status_without_a_training_cell():
    manager = GroupLossScaleManager(4096, [])
    assert manager.dynamic_loss_scale == (1, 1)
    with pytest.raises(RuntimeError, match="no scales yet"):
        manager.update_loss_scale_status(0, 2.0)
    manager.set_loss_scale_status(3, 4096)
    assert [float(s) for s in manager.dynamic_loss_scale] == [1, 4096, 4096, 4096, 1]
    assert manager.update_loss_scale_status(2, Tensor(0.5)) == 2048
    assert [float(s) for s in manager.dynamic_loss_scale] == [1, 4096, 4096, 2048, 1]
    for layer, kind in ((3, ValueError), (-1, ValueError), (0.5, TypeError)):
        with pytest.raises(kind, match="layer"):
            manager.update_loss_scale_status(layer, 0.5)
    with pytest.raises(ValueError, match="update_ratio"):
        manager.update_loss_scale_status(0, 0)
    with pytest.raises(ValueError, match="2 scales for 3"):
        manager.set_loss_scale_status(3, [1.0, 2.0])


def test_the_number_of_groups_is_that_of_the_training_cell():
    manager = GroupLossScaleManager(4096, [])
    cell(manager)
    assert manager.loss_scale_number == 2
    with pytest.raises(ValueError, match="has 2 groups"):
        manager.set_loss_scale_status(3, 1.0)
    manager.set_loss_scale_status(2, [1.0, 2.0])
    np.testing.assert_array_equal(scales(manager), np.float32([1, 2]))
    manager.loss_scale_groups = 1
    _, step = cell(manager)  # and then that of the next one
    assert manager.loss_scale_number == 1
    assert step.scale_sense.asnumpy().tolist() == [4096]


# ---- with other boosts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "around",
    [
        lambda opt, net: GradientAccumulation(2, opt),
        lambda opt, net: FreezeOpt(opt, [net.trainable_params(), net.trainable_params()[2:]]),
    ],
)
def test_with_accumulation_and_with_freeze(around):
    manager = GroupLossScaleManager([64.0, 1024.0], [])
    net, step = cell(manager, optimizer=lambda net: around(momentum(net), net))
    plain = golden.network("mlp")
    optimizer = around(momentum(plain), plain)
    other = BoostTrainOneStepWithLossScaleCell(with_loss(plain), optimizer, Tensor(1.0))
    for x, labels in golden.batches("mlp", 4):
        step(x, labels)
        other(x, labels)
    for name, value in golden.values(plain).items():
        np.testing.assert_allclose(golden.values(net)[name], value, atol=1e-6)
    assert (scales(manager) > [64, 1024]).all()


def test_frozen_parameters_leave_their_group():
    net = golden.network("mlp")
    manager = GroupLossScaleManager([64.0, 1024.0], halves(net))
    for parameter in halves(net)[0]:
        parameter.requires_grad = False
    optimizer = nn.Momentum(list(net.get_parameters()), 0.05, 0.9)
    step = BoostTrainOneStepWithLossScaleCell(with_loss(net), optimizer, manager)
    before = golden.values(net)
    for x, labels in golden.batches("mlp", 2):
        assert not step(x, labels)[1]
    for name, value in golden.values(net).items():
        assert np.array_equal(value, before[name]) == name.startswith("fc1")
    np.testing.assert_array_equal(scales(manager)[0], np.float32(64))  # nothing of it was trained


# ---- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups", [2, [["fc1.*"], ["fc2.*"]], [["fc1.weight", "*1.bias"], ["fc2*"]]]
)
def test_groups_by_number_and_by_pattern(groups):
    found = []
    for named in (groups, []):
        net, step = cell(GroupLossScaleManager([64.0, 1024.0], named))
        for x, labels in golden.batches("mlp", 2):
            step(x, labels)
        found.append(golden.values(net))
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


def of(number):
    return golden.network("mlp").trainable_params()[number]


@pytest.mark.parametrize(
    ("groups", "kind", "words"),
    [
        ([], ValueError, "4 of the optimizer's parameters are in no group"),
        (
            [["fc1*"]],
            ValueError,
            "2 of the optimizer's parameters are in no group, for example 'fc2",
        ),
        ([["fc*"], ["fc2.*"]], ValueError, "is in the groups 1 and 2"),
        ([["fc*"], []], ValueError, "group has no parameter"),
        ([["fc*", "conv*"]], ValueError, "'conv\\*' is not a parameter"),
        ([[Parameter(Tensor(1.0), name="w")]], ValueError, "'w' is not a parameter"),
        (["fc*"], TypeError, "group 1"),
        ([[3]], TypeError, "member of group 1"),
        ("fc*", TypeError, "loss_scale_groups"),
        (True, TypeError, "loss_scale_groups"),
        (0, ValueError, "groups"),
    ],
)
def test_groups_that_do_not_fit(groups, kind, words):
    net, manager = golden.network("mlp"), GroupLossScaleManager(64, groups)
    with pytest.raises(kind, match=words) as caught:
        BoostTrainOneStepWithLossScaleCell(with_loss(net), momentum(net), manager)
    assert_three_lines(caught.value)


def test_more_groups_than_layers():
    _, step = cell(GroupLossScaleManager(64, 3))
    (x, labels), *_ = golden.batches("mlp", 1)
    with pytest.raises(OrtBoostError, match="2 layers") as caught:
        step(x, labels)
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("init", "kind"),
    [
        (0, ValueError),
        (-1.0, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        ([], ValueError),
        ([64.0, 0.0], ValueError),
        ("64", TypeError),
        (True, TypeError),
        (None, TypeError),
        ([64.0, "1"], TypeError),
        (Tensor([1.0, 2.0]), TypeError),
    ],
)
def test_what_is_no_first_scale(init, kind):
    with pytest.raises(kind, match="init_loss_scale") as caught:
        GroupLossScaleManager(init, [])
    assert_three_lines(caught.value)


@pytest.mark.parametrize(
    ("init", "bounds", "words"),
    [
        ([64.0, 1024.0, 2.0], {}, "3 initial scales and 2 groups"),
        (64.0, {"min_scale": 65.0}, "outside"),
        (64.0, {"max_scale": 63.0}, "outside"),
    ],
)
def test_first_scales_that_do_not_fit_the_groups(init, bounds, words):
    with pytest.raises(ValueError, match=words) as caught:
        cell(GroupLossScaleManager(init, [], **bounds))
    assert_three_lines(caught.value)


def test_the_boost_needs_a_manager_with_groups():
    net = golden.network("mlp")
    config = {"boost": {"mode": "manual", "loss_scale_group": True}}
    for manager in (None, amp.DynamicLossScaleManager()):
        with pytest.raises(TypeError, match="must define groups"):
            Model(
                net,
                nn.SoftmaxCrossEntropyWithLogits(True, "mean"),
                momentum(net),
                boost_config_dict=config,
                loss_scale_manager=manager,
            )
    boost = AutoBoost("O0", config)
    network, optimizer = boost.network_auto_process_train(net, momentum(net))
    assert network is net
    assert isinstance(optimizer, nn.Momentum)
    assert "defines its own groups" in boost.reports[0].kept["loss_scale_group"]
