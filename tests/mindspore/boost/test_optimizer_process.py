"""OptimizerProcess and ParameterProcess."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.mindspore.boost import LessBN, OptimizerProcess, ParameterProcess
from ortboost.mindspore.core.tensor import Tensor
from tests.mindspore.boost.common import mixed_net, momentum, names, train, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines


def described(groups):
    """Names and keys of groups."""
    return [
        {k: names(v) if k in ("params", "order_params") else v for k, v in group.items()}
        for group in groups
    ]


# ---- centralization ---------------------------------------------------------------------------


def test_who_is_centralized_is_read_from_the_graph():
    net = mixed_net()
    reasons = OptimizerProcess.build_params_dict(net)
    by_name = {p.name: reasons[id(p)] for p in net.trainable_params()}
    assert [name for name, reason in by_name.items() if reason is None] == [
        "first.weight",
        "last.weight",
        "fc.weight",
    ]
    assert "grouped convolution" in by_name["deep.weight"]
    assert "norm_scale" in by_name["bn.gamma"]
    assert "bias" in by_name["fc.bias"]


def test_the_head_of_full_normalization_is_not():
    net = LessBN(golden.network("mlp"), fn_flag=True)
    reasons = OptimizerProcess.build_params_dict(with_loss(net))
    by_name = {p.name: reasons[id(p)] for p in net.trainable_params()}
    assert by_name["fc1.weight"] is None
    assert "full-normalization head" in by_name["fc2.weight"]
    assert by_name["fc2.multiplier"] is not None


def test_groups_are_split_and_the_centralized_part_comes_first():
    net = mixed_net()
    own = net.parameters_dict()
    groups = [
        {"params": [own["fc.bias"], own["fc.weight"]], "lr": 0.1},
        {"params": [own["bn.gamma"]], "weight_decay": 0.5},
        {"order_params": net.trainable_params()},
    ]
    split = OptimizerProcess.build_gc_params_group(OptimizerProcess.build_params_dict(net), groups)
    assert described(split) == [
        {"params": ["fc.weight"], "lr": 0.1, "grad_centralization": True},
        {"params": ["fc.bias"], "lr": 0.1},
        {"params": ["bn.gamma"], "weight_decay": 0.5},
        {"order_params": names(net.trainable_params())},
    ]
    assert "grad_centralization" not in groups[0]


def end_of(optimizer, net, count=3):
    train(nn.TrainOneStepCell(with_loss(net), optimizer), "mlp", count)
    return golden.values(net)


MAKERS = {
    "momentum": lambda net: momentum(net, weight_decay=0.01),
    "sgd": lambda net: nn.SGD(net.trainable_params(), 0.05, 0.9, weight_decay=0.01),
    "adam": lambda net: nn.Adam(net.trainable_params(), 1e-2, weight_decay=0.01),
    "adamw": lambda net: nn.AdamWeightDecay(net.trainable_params(), 1e-2, weight_decay=0.01),
    "lars": lambda net: nn.LARS(momentum(net, weight_decay=0.01), coefficient=0.02),
    "schedule": lambda net: nn.Momentum(
        net.trainable_params(), nn.CosineDecayLR(0.0, 0.1, 10), 0.9, loss_scale=2.0
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_optimizer_can_be_made_anew(kind):
    """MindSpore fails for the Adam family, with a KeyError."""
    ends = []
    for anew in (False, True):
        net = golden.network("mlp")
        optimizer = MAKERS[kind](net)
        if anew:
            train(nn.TrainOneStepCell(with_loss(net), optimizer), "mlp", 2)
            for name, value in golden.values(golden.network("mlp")).items():
                net.parameters_dict()[name].set_data(Tensor(value))
            optimizer = OptimizerProcess(optimizer).generate_new_optimizer()
            assert optimizer.global_step == 0
        ends.append(end_of(optimizer, net))
    for name in ends[0]:
        np.testing.assert_array_equal(ends[0][name], ends[1][name])


@pytest.mark.parametrize("kind", MAKERS)
def test_centralized_weights_keep_the_sums_of_their_rows(kind):
    """What an update takes off a row sums up to nothing but for the weight decay before it."""
    net = golden.network("mlp")
    process = OptimizerProcess(MAKERS[kind](net))
    process.add_grad_centralization(net)
    optimizer = process.generate_new_optimizer()
    assert optimizer.centralized() == ("fc1.weight", "fc2.weight")
    before, after = golden.values(golden.network("mlp")), end_of(optimizer, net, 1)
    drift = np.abs((after["fc1.weight"] - before["fc1.weight"]).sum(1)).max()
    if kind in ("momentum", "sgd", "schedule"):
        assert drift < 1e-5
    plain = golden.network("mlp")
    other = end_of(MAKERS[kind](plain), plain, 1)["fc1.weight"]
    assert np.abs((other - before["fc1.weight"]).sum(1)).max() > 10 * 1e-5
    assert np.abs(after["fc1.weight"] - other).max() > 1e-5


def test_a_plain_list_becomes_groups_and_spares_what_it_spared():
    """MindSpore only warns for a plain list, and its groups begin to decay gamma and beta."""
    net = mixed_net()
    process = OptimizerProcess(momentum(net, weight_decay=0.01))
    process.add_grad_centralization(net)
    optimizer = process.generate_new_optimizer()
    decays = dict(zip(names(optimizer.parameters), optimizer.get_weight_decay(), strict=True))
    assert decays == {
        **dict.fromkeys(("first.weight", "last.weight", "fc.weight"), 0.01),
        **dict.fromkeys(("deep.weight", "fc.bias"), 0.01),
        **dict.fromkeys(("bn.gamma", "bn.beta"), 0.0),
    }


def test_groups_keep_their_rates_and_their_order():
    net = mixed_net()
    own = net.trainable_params()
    groups = [{"params": own[:3], "lr": 0.5}, {"params": own[3:]}, {"order_params": own}]
    process = OptimizerProcess(nn.Momentum(groups, 0.1, 0.9))
    process.add_grad_centralization(net)
    optimizer = process.generate_new_optimizer()
    assert names(optimizer.parameters) == names(own)
    rates = dict(zip(names(optimizer.parameters), optimizer.get_lr(), strict=True))
    assert rates["first.weight"] == rates["bn.beta"] == 0.5
    assert rates["fc.weight"] == 0.1


def test_the_multiple_can_be_chosen():
    def report_of(**more):
        net = mixed_net()
        process = OptimizerProcess(momentum(net))
        process.add_grad_centralization(net, **more)
        step = nn.TrainOneStepCell(with_loss(net), process.generate_new_optimizer())
        step(np.zeros((2, 3, 6, 6), np.float32), np.array([0, 1], np.int32))
        (stepper, _), *_ = step._steps._built.values()
        return next(r for r in stepper.program.reports if r.rewrite == "grad_centralization")

    assert list(report_of().changed) == ["last.weight"]
    assert "multiple of 16" in report_of().kept["fc.weight"]
    assert list(report_of(multiple_of=1).changed) == ["first.weight", "last.weight", "fc.weight"]


def test_what_is_frozen_later_is_left_out():
    net = golden.network("mlp")
    process = OptimizerProcess(momentum(net))
    process.add_grad_centralization(net)
    optimizer = process.generate_new_optimizer()
    net.parameters_dict()["fc1.weight"].requires_grad = False
    end = end_of(optimizer, net, 1)
    assert np.array_equal(end["fc1.weight"], golden.values(golden.network("mlp"))["fc1.weight"])


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda net: OptimizerProcess(net), TypeError),
        (lambda net: OptimizerProcess(None), TypeError),
        (lambda net: OptimizerProcess.build_params_dict(momentum(net)), TypeError),
        (lambda net: OptimizerProcess(momentum(net)).add_grad_centralization(None), TypeError),
        (lambda net: OptimizerProcess(momentum(net)).add_grad_centralization(net, 0), ValueError),
        (lambda n: OptimizerProcess(momentum(n)).add_grad_centralization(mixed_net()), ValueError),
        (lambda net: OptimizerProcess(momentum(net)).add_grad_centralization(net, 2.0), TypeError),
        (lambda net: replaced(net, []), ValueError),
        (lambda net: replaced(net, None), ValueError),
        (lambda net: replaced(net, [1]), TypeError),
        (lambda net: replaced(net, 5), TypeError),
        (lambda net: replaced(net, [*net.trainable_params(), {"params": []}]), TypeError),
    ],
)
def test_refusals(change, kind):
    with pytest.raises(kind) as raised:
        change(golden.network("mlp"))
    assert_three_lines(raised.value)


def replaced(net, parameters):
    process = OptimizerProcess(momentum(net))
    process.origin_params = parameters
    process.add_grad_centralization(net)


# ---- groups of parameters ---------------------------------------------------------------------


def test_a_plain_list_is_one_group():
    net = mixed_net()
    new = net.trainable_params()[:2]
    groups = ParameterProcess.generate_group_params(new, net.trainable_params())
    assert described(groups) == [{"params": names(new)}]


def test_groups_are_found_by_name():
    """Of another network of the same names, as LessBN makes it."""
    old, new = mixed_net(), mixed_net()
    own, fresh = old.parameters_dict(), new.parameters_dict()
    origin = [
        {"params": [own["fc.weight"], own["fc.bias"]], "lr": 0.5, "weight_decay": 0.1},
        {"params": [own["bn.gamma"]], "weight_decay": 0.0},
        {"params": [own["deep.weight"]]},
        {"order_params": old.trainable_params()},
    ]
    parameters = [fresh[n] for n in ("first.weight", "bn.gamma", "fc.bias", "fc.weight")]
    groups = ParameterProcess.generate_group_params(parameters, origin)
    assert described(groups) == [
        {"params": ["fc.weight", "fc.bias"], "lr": 0.5, "weight_decay": 0.1},
        {"params": ["bn.gamma"], "weight_decay": 0.0},
        {"order_params": names(parameters)},
        {"params": ["first.weight"], "lr": 0.5, "weight_decay": 0.1},
    ]
    assert all(p in parameters for group in groups for p in group.get("params", []))
    assert nn.Momentum(groups, 0.1, 0.9).parameters == parameters


@pytest.mark.parametrize(
    ("origin", "kind"), [([], ValueError), (None, ValueError), (["fc.weight"], TypeError)]
)
def test_origins_that_are_none(origin, kind):
    with pytest.raises(kind) as raised:
        ParameterProcess.generate_group_params(mixed_net().trainable_params(), origin)
    assert_three_lines(raised.value)


def test_fusion_numbers_go_on_with_the_next_call():
    parameters = mixed_net().trainable_params()
    process = ParameterProcess()
    assert process.assign_parameter_group(parameters) is parameters
    assert [p.comm_fusion for p in parameters] == [1, 1, 1, 2, 2, 2, 2]
    process.assign_parameter_group(parameters[:3], [0, 2])
    assert [p.comm_fusion for p in parameters[:3]] == [3, 3, 4]
    assert process.assign_parameter_group([]) == []
    assert process.assign_parameter_group(None) is None
    with pytest.raises(TypeError):
        process.assign_parameter_group(parameters, [1.5])
    with pytest.raises(TypeError):
        process.assign_parameter_group(parameters, "12")


def test_a_list_of_parameters_is_one_group():
    """MindSpore's page says that a list of parameters is taken; its code fails on one."""
    net = mixed_net()
    reasons = OptimizerProcess.build_params_dict(net)
    params = net.trainable_params()
    flat = OptimizerProcess.build_gc_params_group(reasons, params)
    assert flat == OptimizerProcess.build_gc_params_group(reasons, [{"params": params}])
    assert [group.get("grad_centralization") for group in flat] == [True, None]
    for empty, kind in (([], ValueError), ([3], TypeError)):
        with pytest.raises(kind) as info:
            OptimizerProcess.build_gc_params_group(reasons, empty)
        assert_three_lines(info.value)
