"""AutoBoost: by level, for training and evaluation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost import nn
from ortboost.core.errors import FileError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.mindspore.boost import (
    AutoBoost,
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
    FreezeOpt,
    GradientAccumulation,
    LessBN,
)
from ortboost.mindspore.core.arguments import ArgumentValueError
from ortboost.program.boost_config import resolve_boost
from ortboost.program.boosted import boosted
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.mindspore.boost.common import mixed_net, momentum, names, resnet, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, stepper

SMALL = {"grad_freeze": {"param_groups": 3, "total_steps": 50, "seed": 5}}


def only(name, **sections):
    return {"boost": {"mode": "manual", name: True}, **sections}


def images(count):
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((4, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, 4))
        for _ in range(count)
    ]


def test_each_instance_is_its_own():
    """MindSpore's is one for the process: the first configuration wins."""
    first = AutoBoost("O0")
    second = AutoBoost("O1", {"boost": {"mode": "manual", "less_bn": False}})
    third = AutoBoost("O1")
    assert not any(first.boost_config.values())
    assert (second.boost_config["less_bn"], third.boost_config["less_bn"]) == (False, True)
    second.boost_config["grad_freeze"] = False  # a copy
    assert second.boost_config["grad_freeze"]


def test_an_auto_boost_that_was_not_applied_is_told():
    """MindSpore's cells read a singleton; ported as it stands, nothing would be boosted."""
    net, boost = mixed_net(), AutoBoost("O1", SMALL)
    with pytest.warns(UserWarning, match=r"AutoBoost\('O1'\) was not applied"):
        BoostTrainOneStepCell(with_loss(net), momentum(net))
    with pytest.warns(UserWarning, match="BoostTrainOneStepWithLossScaleCell trains without"):
        BoostTrainOneStepWithLossScaleCell(
            with_loss(net), momentum(net), nn.FixedLossScaleUpdateCell(8.0)
        )
    network, optimizer = boost.network_auto_process_train(with_loss(net), momentum(net))
    BoostTrainOneStepCell(network, optimizer)
    AutoBoost("O0")
    BoostTrainOneStepCell(with_loss(net), momentum(net))  # a plain one, on purpose


def test_attributes():
    with pytest.warns(UserWarning, match="without effect.*split_groups.*device_number"):
        boost = AutoBoost("O1", {"common": {"gradient_split_groups": [2], "device_number": 4}})
    assert (boost.level, boost.gradient_groups, boost.device_number) == ("O1", [2], 4)
    assert (boost.grad_accumulation_step, AutoBoost().gradient_groups) == (1, None)


def test_a_file(tmp_path):
    path = tmp_path / "boost.json"
    path.write_text(json.dumps(only("grad_freeze", **SMALL)))
    assert AutoBoost("O0", str(path)).config.grad_freeze.param_groups == 3
    with pytest.raises(FileError):
        AutoBoost("O0", str(tmp_path / "none.json"))


def test_o0_gives_back_what_it_got():
    net = mixed_net()
    optimizer, boost = momentum(net), AutoBoost()
    assert boost.network_auto_process_train(net, optimizer) == (net, optimizer)
    assert boost.network_auto_process_eval(net) is net


def test_o1_is_less_bn_centralization_and_freeze():
    net = resnet()
    boost = AutoBoost("O1", SMALL)
    network, optimizer = boost.network_auto_process_train(with_loss(net), momentum(net))
    assert isinstance(network, nn.WithLossCell)
    less = network.backbone_network
    assert isinstance(less, LessBN)
    assert isinstance(optimizer, FreezeOpt)
    assert optimizer.groups_num == 3
    inner = optimizer.optimizer
    assert sorted(names(inner.parameters)) == sorted(names(less.trainable_params()))
    assert inner.centralized()
    assert "fc.weight" not in inner.centralized()  # the weight of the head
    assert [report.rewrite for report in boost.reports] == ["auto_boost", "less_bn", "full_norm"]
    assert [p.comm_fusion for p in less.trainable_params()][:: len(inner.parameters) - 1] == [1, 2]


def test_o2_is_o1_with_one_process():
    net = resnet()
    boost = AutoBoost("O2", SMALL)
    _, optimizer = boost.network_auto_process_train(with_loss(net), momentum(net))
    assert isinstance(optimizer, FreezeOpt)
    assert "one process" in boost.reports[0].kept["adasum"]


def test_accumulation_comes_last():
    net = resnet()
    source = only("grad_accumulation", grad_accumulation={"grad_accumulation_step": 3}, **SMALL)
    _, optimizer = AutoBoost("O1", source).network_auto_process_train(net, momentum(net))
    assert isinstance(optimizer, GradientAccumulation)
    assert isinstance(optimizer.optimizer, FreezeOpt)
    source["grad_accumulation"] = {}
    _, optimizer = AutoBoost("O1", source).network_auto_process_train(net, momentum(net))
    assert isinstance(optimizer, FreezeOpt)


def test_the_optimizer_trains_what_it_trained():
    """MindSpore's new optimizer trains all parameters, whatever the old one did."""
    net = resnet()
    own = net.parameters_dict()
    groups = [{"params": [own["fc.weight"], own["fc.bias"]], "lr": 0.5}]
    network, optimizer = AutoBoost("O1", only("less_bn")).network_auto_process_train(
        net, nn.Momentum(groups, 0.1, 0.9)
    )
    inner = optimizer.optimizer
    assert sorted(names(inner.parameters)) == ["fc.multiplier", "fc.weight"]
    assert {float(rate) for rate in inner.get_lr()} == {0.5}
    assert "fc.bias" not in network.parameters_dict()


def test_flags_of_less_bn():
    net = resnet()
    flags = {"fn_flag": False, "gc_flag": False}
    source = only("less_bn", less_bn=flags)
    network, optimizer = AutoBoost("O0", source).network_auto_process_train(net, momentum(net))
    assert "fc.bias" in network.parameters_dict()
    assert optimizer.centralized() == ()
    source["less_bn"] = {"gc_multiple_of": 1}
    _, optimizer = AutoBoost("O0", source).network_auto_process_train(net, momentum(net))
    assert optimizer.gc_multiple_of == 1


def test_the_face_and_the_program_end_at_the_same_weights():
    """Two ways to one graph: network and optimizer, and a configuration."""
    feeds = images(6)
    net = resnet()
    source = only("grad_accumulation", grad_accumulation={"grad_accumulation_step": 2}, **SMALL)
    network, optimizer = AutoBoost("O1", source).network_auto_process_train(
        with_loss(net), momentum(net, weight_decay=0.01)
    )
    step = BoostTrainOneStepCell(network, optimizer)
    losses = [float(step(x, labels)) for x, labels in feeds]
    base = ProgramConfig(loss_scale=NO_SCALE, check_finite=False, weight_decay=0.01)
    config, _ = boosted(base, resolve_boost("O1", source))
    training = stepper(build_program(resnet().to_model(), config))
    for (x, labels), loss in zip(feeds, losses, strict=True):
        result = training.step({"x": x, "labels": labels}, {"learning_rate": 0.05})
        assert result.loss == pytest.approx(loss, rel=1e-6)
    for parameter in network.backbone_network.get_parameters():
        np.testing.assert_allclose(parameter.asnumpy(), training.get(parameter.name), atol=1e-7)


def test_what_only_our_configuration_says_arrives():
    net = golden.network("mlp")
    all_names = names(net.trainable_params())
    freeze = {"groups": [all_names, all_names[2:]], "sequence": [1, 0], "separate_state": False}
    boost = AutoBoost("O0", only("grad_freeze", grad_freeze=freeze))
    _, optimizer = boost.network_auto_process_train(net, momentum(net))
    assert [names(group) for group in optimizer.train_parameter_groups] == freeze["groups"]
    assert (optimizer.train_strategy, optimizer.separate_state) == ([1, 0], False)
    freeze["groups"] = [all_names, ["fc3.weight"]]
    with pytest.raises(ValueError, match=r"fc3\.weight") as raised:
        AutoBoost("O0", only("grad_freeze", grad_freeze=freeze)).network_auto_process_train(
            net, momentum(net)
        )
    assert_three_lines(raised.value)


# ---- evaluation -------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_the_network_to_evaluate_with_is_the_one_that_is_trained(early, again):
    """Whatever the order of calls, and with other objects; MindSpore's has no head to train."""
    net = resnet()
    loss = with_loss(net)
    boost = AutoBoost("O1", only("less_bn"))
    if early:
        boost.network_auto_process_eval(net)
    network, optimizer = boost.network_auto_process_train(loss, momentum(net))
    if again:
        boost = AutoBoost("O1")
        boost.network_auto_process_train(loss, momentum(net))
    assert network is loss
    assert network.backbone_network is net
    assert isinstance(net, LessBN)
    assert boost.network_auto_process_eval(net) is net
    evaluated = boost.network_auto_process_eval(nn.WithEvalCell(net, loss.loss_fn, True))
    assert (evaluated.backbone_network, evaluated.add_cast_fp32) == (net, True)
    ((x, labels),) = images(1)
    before = evaluated(x, labels)[0]
    BoostTrainOneStepCell(network, optimizer)(x, labels)
    assert evaluated(x, labels)[0] != before


def test_the_head_can_be_added_later():
    net = resnet()
    boost = AutoBoost("O0", only("less_bn", less_bn={"fn_flag": False}))
    _, first = boost.network_auto_process_train(net, momentum(net))
    assert "fc.bias" in names(first.parameters)
    _, second = AutoBoost("O0", only("less_bn")).network_auto_process_train(net, first)
    assert "fc.multiplier" in names(second.parameters)
    assert "fc.bias" not in net.parameters_dict()


def test_a_network_of_its_own_gets_the_head_too():
    boost = AutoBoost("O1")
    assert "fc.multiplier" in boost.network_auto_process_eval(resnet()).parameters_dict()
    without = AutoBoost("O1", {"less_bn": {"fn_flag": False}})
    assert "fc.bias" in without.network_auto_process_eval(resnet()).parameters_dict()


# ---- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("O4",), "O0, O1, O2"),
        (("O1", {"boost": {"mode": "manua"}}), "manual"),
        (("O1", {"grad_freez": {}}), "grad_freeze"),
        (("O1", {"grad_freeze": {"freezep": 1}}), "freeze_p"),
        (("O1", {"grad_freeze": {"freeze_p": 7}}), "0 to 1"),
        (("O1", 5), "dictionary"),
    ],
)
def test_configurations_that_make_no_sense(arguments, nearest):
    with pytest.raises(ArgumentValueError) as raised:
        AutoBoost(*arguments)
    assert_three_lines(raised.value)
    assert nearest in raised.value.fix


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda b, n: b.network_auto_process_train(None, momentum(n)), TypeError),
        (lambda b, n: b.network_auto_process_train(n, None), TypeError),
        (lambda b, n: b.network_auto_process_train(n, FreezeOpt(momentum(n))), TypeError),
        (lambda b, n: b.network_auto_process_eval(nn.MSELoss()), TypeError),
    ],
)
def test_refusals(call, kind):
    with pytest.raises(kind) as raised:
        call(AutoBoost("O1"), mixed_net())
    assert_three_lines(raised.value)


def test_parameters_stay_the_same_objects_and_a_second_call_trains_the_head_too():
    net = resnet()
    net.note = "of its user"
    parameters, optimizer = net.parameters_dict(), momentum(net)
    only_less = {"boost": {"mode": "manual", "grad_freeze": False}}
    for _ in range(2):
        network, fresh = AutoBoost("O1", only_less).network_auto_process_train(
            with_loss(net), optimizer
        )
        assert names(fresh.parameters)[-1] == "fc.multiplier"
    BoostTrainOneStepCell(network, fresh)(*images(1)[0])
    left = [p for name, p in net.parameters_dict().items() if name in parameters]
    assert all(p is parameters[p.name] for p in left)
    assert net.note == "of its user"
    with pytest.raises(ValueError, match=r"bn1.* belongs to another network") as raised:
        nn.TrainOneStepCell(network, optimizer)
    assert_three_lines(raised.value)
