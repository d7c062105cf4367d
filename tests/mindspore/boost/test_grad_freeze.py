"""GradientFreeze, FreezeOpt and freeze_cell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost import nn
from ortboost.core.errors import OrtBoostError
from ortboost.mindspore.boost import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
    FreezeOpt,
    GradientFreeze,
    freeze_cell,
)
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import load
from ortboost.mindspore.core.parameter import Parameter
from tests.mindspore.boost.common import mixed_net, momentum, names, train, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, model_path


class Named(Cell):
    """A cell that is no graph: only its parameters and their names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._own = [Parameter(np.zeros(1, np.float32), name) for name in names]

    def get_parameters(self, expand: bool = True):
        return iter(self._own)


# ---- groups -----------------------------------------------------------------------------------


def test_groups_follow_the_layers_of_the_graph():
    groups = GradientFreeze(4, 1, 0.7, 100).split_parameters_groups(mixed_net(), 4)
    assert [names(group) for group in groups] == [
        [
            "first.weight",
            "bn.gamma",
            "bn.beta",
            "deep.weight",
            "last.weight",
            "fc.weight",
            "fc.bias",
        ],
        ["deep.weight", "last.weight", "fc.weight", "fc.bias"],
        ["last.weight", "fc.weight", "fc.bias"],
        ["fc.weight", "fc.bias"],
    ]


def test_by_cost_the_first_layers_are_left_out_last():
    """They have the most to compute: by number half of the layers, by cost fewer."""
    net = load(model_path("resnet20"))
    by_number = GradientFreeze(4, 1, 0.7, 100).split_parameters_groups(net, 4)
    by_cost = GradientFreeze(4, 2, 0.7, 100).split_parameters_groups(net, 4)
    assert len(by_cost[2]) != len(by_number[2])
    for groups in (by_number, by_cost):
        for larger, smaller in itertools.pairwise(groups):
            assert names(larger)[-len(smaller) :] == names(smaller)
            assert len(smaller) < len(larger)


def test_a_network_with_its_loss_has_the_same_groups():
    net, freeze = mixed_net(), GradientFreeze(2, 1, 0.7, 100)
    bare = freeze.split_parameters_groups(net, 2)
    assert freeze.split_parameters_groups(with_loss(net), 2) == bare


def test_what_is_frozen_by_hand_is_in_no_group():
    net = mixed_net()
    net.parameters_dict()["fc.bias"].requires_grad = False
    groups = GradientFreeze(2, 1, 0.7, 100).split_parameters_groups(net, 2)
    assert all("fc.bias" not in names(group) for group in groups)


def test_names_are_the_fallback():
    """MindSpore's rule: three per part; names with 'bn' or 'bias' belong to the one before."""
    cell = Named("a", "a.bias", "bn.gamma", "b", "b.bias", "c", "d", "bn2.gamma", "e")
    groups = GradientFreeze(3, 1, 0.7, 100).split_parameters_groups(cell, 3)
    assert [names(group) for group in groups] == [
        ["a", "a.bias", "bn.gamma", "b", "b.bias", "c", "d", "bn2.gamma", "e"],
        ["b", "b.bias", "c", "d", "bn2.gamma", "e"],
        ["d", "bn2.gamma", "e"],
    ]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (golden.network("mlp"), 0),
        (Named(), 1),
        (nn.MSELoss(), 1),
        ("net", 1),
    ],
)
def test_groups_that_cannot_be(cell, number):
    with pytest.raises(OrtBoostError) as raised:
        GradientFreeze(2, 1, 0.7, 100).split_parameters_groups(cell, number)
    assert_three_lines(raised.value)
    assert isinstance(raised.value, ValueError | TypeError)


@pytest.mark.parametrize("cell", [golden.network("mlp"), Named("a", "b")])
def test_with_few_layers_each_group_is_everything(cell):
    groups = GradientFreeze(5, 1, 0.7, 100).split_parameters_groups(cell, 5)
    assert [names(group) for group in groups] == [names(cell.trainable_params())] * 5


def test_with_few_layers_nothing_is_frozen_and_a_warning_says_so():
    net = golden.network("mlp")
    with pytest.warns(UserWarning, match="nothing is frozen: 10 groups are requested"):
        _, opt = GradientFreeze(10, 1, 0.0, 100).freeze_generate(with_loss(net), momentum(net))
    plain, other = golden.network("mlp"), BoostTrainOneStepCell(with_loss(net), opt)
    train(other, "mlp", 4)
    train(BoostTrainOneStepCell(with_loss(plain), momentum(plain)), "mlp", 4)
    for name, parameter in plain.parameters_dict().items():
        np.testing.assert_array_equal(parameter.asnumpy(), net.parameters_dict()[name].asnumpy())


def test_the_sequence_is_that_of_the_schedule():
    freeze = GradientFreeze(4, 1, 0.5, 50, seed=3)
    sequence = freeze.generate_freeze_index_sequence(4, 1, 0.5, 50)
    assert sequence == GradientFreeze(9, 0, 0, 1, seed=3).generate_freeze_index_sequence(
        4, 1, 0.5, 50
    )
    assert sequence != GradientFreeze(4, 1, 0.5, 50, 4).generate_freeze_index_sequence(
        4, 1, 0.5, 50
    )
    assert all(type(index) is int for index in sequence)
    assert len(sequence) == 50


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 0.7, 9), (2, 9, 0.7, 9), (2, 1, 1.7, 9), (2, 1, 0.7, 0), (2, 1, 0.7, 9, -1)],
)
def test_out_of_range(arguments):
    with pytest.raises(ValueError, match=r"is needed|Unknown freeze_type") as raised:
        GradientFreeze(*arguments)
    assert_three_lines(raised.value)
    with pytest.raises(ValueError, match=r"is needed|Unknown freeze_type"):
        GradientFreeze(2, 1, 0.7, 9).generate_freeze_index_sequence(2, 9, 0.7, 9)


# ---- FreezeOpt --------------------------------------------------------------------------------


def test_freeze_generate_makes_a_freeze_opt():
    net = mixed_net()
    network, optimizer = GradientFreeze(3, 1, 0.5, 40).freeze_generate(
        with_loss(net), momentum(net)
    )
    assert isinstance(network, nn.WithLossCell)
    assert isinstance(optimizer, FreezeOpt)
    assert optimizer.groups_num == 3
    assert len(optimizer.train_strategy) == 40
    assert names(optimizer.train_parameter_groups[0]) == names(net.trainable_params())


def test_freeze_generate_takes_only_what_the_optimizer_has():
    net = mixed_net()
    own = [p for p in net.trainable_params() if p.name != "deep.weight"]
    _, optimizer = GradientFreeze(2, 1, 0.5, 40).freeze_generate(net, nn.SGD(own))
    assert "deep.weight" not in names(optimizer.train_parameter_groups[0])


def test_without_groups_there_is_one():
    net = mixed_net()
    optimizer = FreezeOpt(momentum(net))
    assert optimizer.train_parameter_groups == (tuple(net.trainable_params()),)
    assert (optimizer.groups_num, optimizer.train_strategy) == (1, None)


def test_it_answers_like_the_optimizer_inside():
    net = mixed_net()
    optimizer = FreezeOpt(momentum(net))
    assert (optimizer.learning_rate, optimizer.get_lr(), optimizer.global_step) == (0.05, 0.05, 0)
    assert [opt.learning_rate for opt in optimizer.opts] == [0.05] * optimizer.groups_num
    optimizer.learning_rate = 0.25
    assert optimizer.optimizer.learning_rate == 0.25
    assert [opt.learning_rate for opt in optimizer.opts] == [0.25] * optimizer.groups_num
    optimizer.learning_rate.set_data(np.float32(0.5))
    assert [opt.get_lr() for opt in optimizer.opts] == [0.5] * optimizer.groups_num
    assert optimizer.parameters == net.trainable_params()


def test_groups_may_be_dicts_and_the_strategy_an_array():
    net = mixed_net()
    own = net.trainable_params()
    groups = ([{"params": own}, {"order_params": own}], [{"params": own[-2:]}])
    optimizer = FreezeOpt(momentum(net), groups, np.array([0, 1, 1], np.int32))
    assert [names(g) for g in optimizer.train_parameter_groups] == [names(own), names(own[-2:])]
    assert optimizer.train_strategy == [0, 1, 1]


def test_a_dict_may_repeat_the_settings_of_the_optimizer():
    own = mixed_net().trainable_params()
    opt = nn.SGD([{"params": own[:2], "lr": [0.1, 0.2]}, {"params": own[2:]}], 0.05)
    same = [{"params": own[:2], "lr": [0.1, 0.2]}, {"params": own[2:], "weight_decay": 0.0}]
    assert FreezeOpt(opt, [same]).groups_num == 1
    for other in ({"lr": [0.1, 0.3]}, {"weight_decay": 0.1}, {"grad_centralization": True}):
        with pytest.raises(ValueError, match=f"its own {next(iter(other))}") as raised:
            FreezeOpt(opt, [[{"params": own[:2], **other}, {"params": own[2:]}]])
        assert_three_lines(raised.value)


def own_groups():
    net = mixed_net()
    own = net.trainable_params()
    return net, own, [own, own[-2:]]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda n, o, g: FreezeOpt(n), TypeError),
        (lambda n, o, g: FreezeOpt(None), TypeError),
        (lambda n, o, g: FreezeOpt(momentum(n), None, [0]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), {0: o}), TypeError),
        (lambda n, o, g: FreezeOpt(momentum(n), [o[0]]), TypeError),
        (lambda n, o, g: FreezeOpt(momentum(n), [["first.weight"]]), TypeError),
        (lambda n, o, g: FreezeOpt(momentum(n), []), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), [o, []]), ValueError),
        (lambda n, o, g: FreezeOpt(nn.SGD(o[:2]), g), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), [[{"params": o, "lr": 0.1}]]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), [[{"lr": 0.05}]]), KeyError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, "01"), TypeError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, [0, 0.5]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, [0, True]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, [False, 1]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, []), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, [0, 2]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, [0, -1]), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, np.zeros((2, 2), np.int32)), ValueError),
        (lambda n, o, g: FreezeOpt(momentum(n), g, np.zeros(2, np.float32)), ValueError),
        (lambda n, o, g: GradientFreeze(2, 1, 0.5, 9).freeze_generate(n, 3), TypeError),
        (lambda n, o, g: GradientFreeze(2, 1, 0.5, 9).freeze_generate(3, momentum(n)), TypeError),
    ],
)
def test_refusals(make, kind):
    with pytest.raises(kind) as raised:
        make(*own_groups())
    assert_three_lines(raised.value)


# ---- training ---------------------------------------------------------------------------------


def frozen_mlp(strategy, **more):
    net = golden.network("mlp")
    own = net.trainable_params()
    return net, FreezeOpt(momentum(net, **more), [own, own[2:]], strategy)


def test_a_frozen_update_leaves_the_front_alone():
    net, optimizer = frozen_mlp([1, 0])
    step = BoostTrainOneStepCell(with_loss(net), optimizer)
    before = golden.values(net)
    train(step, "mlp", 1)
    after = golden.values(net)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {"fc2.weight", "fc2.bias"}
    train(step, "mlp", 1)
    moved = {name for name in after if not np.array_equal(after[name], golden.values(net)[name])}
    assert moved == set(before)
    assert optimizer.global_step == 2


def test_a_shared_state_is_the_momentum_of_all_updates():
    """With one state for all groups the last layer trains as if nothing were frozen."""
    ends = {}
    for strategy in ([0], [0, 1]):
        for separate in (True, False):
            net, optimizer = frozen_mlp(strategy)
            optimizer.separate_state = separate
            step = BoostTrainOneStepCell(with_loss(net), optimizer)
            batch = next(iter(golden.batches("mlp", 1)))
            for _ in range(2):
                step(*batch)
            ends[len(strategy), separate] = golden.values(net)["fc2.bias"]
    np.testing.assert_array_equal(ends[1, True], ends[1, False])
    assert np.abs(ends[2, True] - ends[1, True]).max() > 1e-3
    assert np.abs(ends[2, False] - ends[2, True]).max() > 1e-3


def test_an_overflow_tries_the_same_group_again():
    """MindSpore's cell with a loss scale cannot take a FreezeOpt at all."""
    net, optimizer = frozen_mlp([1, 0])
    scale = nn.DynamicLossScaleUpdateCell(2**10, 2, 100)
    step = BoostTrainOneStepWithLossScaleCell(with_loss(net), optimizer, scale)
    x, labels = next(iter(golden.batches("mlp", 1)))
    start = golden.values(net)
    _, overflow, value = step(np.full_like(x, np.inf), labels)
    assert (bool(overflow), float(value), optimizer.global_step) == (True, 512.0, 0)
    step(x, labels)
    end = golden.values(net)
    assert np.array_equal(start["fc1.weight"], end["fc1.weight"])
    assert not np.array_equal(start["fc2.weight"], end["fc2.weight"])


def test_the_cells_of_freeze_cell_in_turns_do_what_the_boost_cell_does():
    """Each has an optimizer of its own; the rates are still those of the count of all updates."""
    rates = [0.1, 0.08, 0.06, 0.05, 0.04, 0.03]
    strategy = [0, 1, 1, 0]
    ends = []
    for single in (True, False):
        net = golden.network("mlp")
        own = net.trainable_params()
        groups = [{"params": own[:2], "lr": 0.02}, {"params": own[2:], "weight_decay": 0.01}]
        optimizer = FreezeOpt(nn.Momentum(groups, rates, 0.9), [own, own[2:]], strategy)
        loss = with_loss(net)
        if single:
            train(BoostTrainOneStepCell(loss, optimizer), "mlp", 6)
        else:
            cells = freeze_cell(False, loss, optimizer, 1.0, None, False)
            assert len(cells) == 2
            for index, (x, labels) in enumerate(golden.batches("mlp", 6)):
                cells[strategy[index % 4]](x, labels)
            assert [opt.global_step for opt in optimizer.opts] == [3, 3]
        ends.append(golden.values(net))
    for name in ends[0]:
        np.testing.assert_allclose(ends[0][name], ends[1][name], atol=1e-6)


def test_freeze_cell_can_accumulate():
    net, optimizer = frozen_mlp([0, 1])
    first, _ = freeze_cell(False, with_loss(net), optimizer, 1.0, None, True, None, None, 2)
    train(first, "mlp", 3)
    assert optimizer.opts[0].global_step == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"reducer_flag": True}, NotImplementedError),
        ({"reducer_flag": 1}, TypeError),
        ({"use_grad_accumulation": None}, TypeError),
        ({"optimizer": None}, TypeError),
        ({"use_grad_accumulation": True, "max_accumulation_step": 0}, ValueError),
        ({"network": None}, TypeError),
    ],
)
def test_refusals_of_freeze_cell(arguments, kind):
    net, optimizer = frozen_mlp([0, 1])
    given = {
        "reducer_flag": False,
        "network": with_loss(net),
        "optimizer": optimizer,
        "sens": 1.0,
        "grad": None,
        "use_grad_accumulation": False,
    }
    with pytest.raises(kind) as raised:
        freeze_cell(**{**given, **arguments})
    optimizer.separate_state = False
    with pytest.raises(ValueError, match="share their state"):
        freeze_cell(**given)
    assert_three_lines(raised.value)


def test_a_parameter_can_be_frozen_between_two_steps():
    net, optimizer = frozen_mlp([0, 1])
    step = BoostTrainOneStepCell(with_loss(net), optimizer)
    train(step, "mlp", 2)
    net.parameters_dict()["fc1.bias"].requires_grad = False
    before = golden.values(net)
    train(step, "mlp", 1)
    after = golden.values(net)
    assert np.array_equal(before["fc1.bias"], after["fc1.bias"])
    assert not np.array_equal(before["fc1.weight"], after["fc1.weight"])
    assert optimizer.global_step == 3


def test_groups_can_be_given_as_lists_of_parameters():
    """As MindSpore's page says of ``param_groups``; its code takes a number only."""
    net, other = golden.network("mlp"), golden.network("mlp")
    params = net.trainable_params()
    _, optimizer = GradientFreeze([params, params[3:]], 1, 0.5, 8, seed=3).freeze_generate(
        with_loss(net), momentum(net)
    )
    sequence = GradientFreeze(2, 1, 0.5, 8, seed=3).generate_freeze_index_sequence(2, 1, 0.5, 8)
    assert optimizer.train_strategy == sequence
    given = other.trainable_params()
    expected = FreezeOpt(momentum(other), [given, given[3:]], sequence)
    train(BoostTrainOneStepCell(with_loss(net), optimizer), "mlp", 6)
    train(BoostTrainOneStepCell(with_loss(other), expected), "mlp", 6)
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, golden.values(other)[name])
    for wrong in ([3], [["fc1.weight"]], params):
        with pytest.raises(TypeError, match="param_groups") as info:
            GradientFreeze(wrong, 1, 0.5, 8)
        assert_three_lines(info.value)


def test_the_seed_of_numpy_has_no_part_in_the_draws():
    drawn = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002  it is what is tested
        drawn.append(
            GradientFreeze(4, 1, 0.5, 50, seed=5).generate_freeze_index_sequence(4, 1, 0.5, 50)
        )
    assert drawn[0] == drawn[1]
    other = GradientFreeze(4, 1, 0.5, 50, seed=6).generate_freeze_index_sequence(4, 1, 0.5, 50)
    assert other != drawn[0]


def test_a_group_whose_parameters_are_all_frozen_is_named():
    net = golden.network("mlp")
    own = net.trainable_params()
    optimizer = FreezeOpt(momentum(net), [own, own[-2:]], [0, 1])
    step = BoostTrainOneStepCell(with_loss(net), optimizer)
    optimizer.train_strategy = [1, 1]
    assert step.train_strategy == [0, 1]  # the cell keeps what it was made with
    for parameter in own[-2:]:
        parameter.requires_grad = False
    with pytest.raises(ValueError, match="All parameters of a group are frozen") as raised:
        train(step, "mlp", 1)
    assert "group 1" in raised.value.where
    assert_three_lines(raised.value)


def test_an_optimizer_serves_one_division_into_groups():
    """The states of other groups, and the count of updates, would be taken for its own."""
    net = golden.network("mlp")
    own, optimizer = net.trainable_params(), momentum(net)
    groups = [own, own[-2:]]
    train(BoostTrainOneStepCell(with_loss(net), FreezeOpt(optimizer, groups)), "mlp", 1)
    train(BoostTrainOneStepCell(with_loss(net), FreezeOpt(optimizer, groups)), "mlp", 1)
    for other in (optimizer, FreezeOpt(optimizer, [own, own[1:]])):
        with pytest.raises(ValueError, match="into other groups") as raised:
            train(BoostTrainOneStepCell(with_loss(net), other), "mlp", 1)
        assert_three_lines(raised.value)
