"""A user's cell as on MindSpore's pages: what is trained, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost import amp, boost, nn
from ortboost.mindspore.core.traced import Traced
from tests.mindspore.boost.common import momentum
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, model_path, text_model


def cross_entropy():
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


class NetWithLoss(nn.Cell):
    """As in MindSpore's tutorials."""

    def __init__(self, net, loss):
        super().__init__(auto_prefix=False)
        self.net, self.loss = net, loss

    def construct(self, data, label):
        return self.loss(self.net(data), label)


class Scaled(nn.Cell):
    """As on the page of GroupLossScaleManager."""

    def __init__(self, net, enhanced_amp):
        super().__init__()
        self.net, self.enhanced_amp = net, enhanced_amp

    def construct(self, x):
        return self.enhanced_amp(self.net(self.enhanced_amp(x, 0, 1)), 2, 3)


def trained(make_step, count=4):
    net = golden.network("mlp")
    step = make_step(net)
    for batch in golden.batches("mlp", count):
        step(*batch)
    return golden.values(net)


def assert_same(one, other):
    assert all(np.array_equal(one[name], other[name]) for name in one)


def plain(net):
    return nn.TrainOneStepCell(nn.WithLossCell(net, cross_entropy()), momentum(net))


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda net: NetWithLoss(net, cross_entropy()),
        lambda net: NetWithLoss(NetWithLoss(net, cross_entropy()).net, cross_entropy()),
        lambda net: nn.WithLossCell(net, cross_entropy()),
    ],
)
def test_a_users_cell_trains_as_network_and_loss(wrapped):
    expected = trained(plain)
    assert_same(expected, trained(lambda net: nn.TrainOneStepCell(wrapped(net), momentum(net))))

    def by_model(net):
        model = ob.Model(wrapped(net), None, momentum(net), metrics={"accuracy"})
        model.train(1, list(golden.batches("mlp", 4)))
        assert 0 <= model.eval(list(golden.batches("mlp", 2)))["accuracy"] <= 1
        return lambda *batch: None

    assert_same(expected, trained(by_model))


def test_a_cell_within_a_cell_and_keywords():
    class Outer(nn.Cell):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def construct(self, a, b, unused=3):
            return self.inner(data=a, label=b)

    assert_same(
        trained(plain),
        trained(
            lambda net: nn.TrainOneStepCell(Outer(NetWithLoss(net, cross_entropy())), momentum(net))
        ),
    )


def test_it_can_be_boosted_and_scaled():
    net = golden.network("mlp")
    auto = boost.AutoBoost("O1", {"grad_freeze": {"param_groups": 2}})
    cell, optimizer = auto.network_auto_process_train(
        NetWithLoss(net, cross_entropy()), momentum(net)
    )
    assert isinstance(cell, NetWithLoss)
    step = boost.BoostTrainOneStepCell(cell, optimizer)
    for batch in golden.batches("mlp", 2):
        assert np.isfinite(step(*batch))
    half = amp.auto_mixed_precision(NetWithLoss(net, cross_entropy()), "O2")
    assert isinstance(half, NetWithLoss)
    assert net.precision.compute == "fp16"


def test_the_manager_may_be_called_in_construct():
    manager = boost.GroupLossScaleManager(64.0, [])
    x = np.ones((2, 64), np.float32)
    np.testing.assert_array_equal(manager(x, 0, 1), x)

    def made(call):
        def step(net):
            own = boost.GroupLossScaleManager(64.0, [["fc1*"], ["fc2*"]])
            loss = nn.WithLossCell(net, cross_entropy())
            if call:
                loss = NetWithLoss(Scaled(net, own), cross_entropy())
            return boost.BoostTrainOneStepWithLossScaleCell(loss, momentum(net), own)

        return step

    assert_same(trained(made(call=False)), trained(made(call=True)))
    with pytest.raises(TypeError, match="'layer1'"):
        manager(x, "first", 1)
    with pytest.raises(TypeError, match="'x' is int"):
        manager(3, 0, 1)


class Odd(nn.Cell):
    def __init__(self, net, construct, **attributes):
        super().__init__()
        self.net, self.loss, self.construct = net, cross_entropy(), construct.__get__(self)
        vars(self).update(attributes)


def two_outputs():
    return ob.load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            two (float[N,3] x, float[3] w) => (float[N,3] a, float[N,3] b)
            { a = Mul(x, w) b = Add(a, w) }""",
            w=np.ones(3, np.float32),
        )
    )


@pytest.mark.parametrize(
    ("construct", "what"),
    [
        (lambda self, x, y: self.loss(self.net(x) * 2, y), "'__mul__' of a tensor"),
        (lambda self, x, y: self.loss(self.net(x), y) + 1, "'__add__' of a tensor"),
        (lambda self, x, y: self.loss(self.net(x)[0], y), "'__getitem__' of a tensor"),
        (lambda self, x, y: self.loss(self.net(x.astype(int)), y), "'.astype' of a tensor"),
        (lambda self, x, y: self.loss(np.tanh(self.net(x)), y), "of a tensor"),
        (lambda self, x, y: self.loss(self.net(x), y) if x > 0 else None, "'__gt__' of a tensor"),
        (lambda self, x, y: self.loss(y, self.net(x)), "not of the network's output"),
        (lambda self, x, y: self.loss(self.net(self.net(x)), y), "it calls several in a chain"),
        (lambda self, x, y: self.loss(self.net(y), x), "data, then label, in that order"),
        (lambda self, x, y, z: self.loss(self.net(x), y), "data, then label, in that order"),
        (lambda self, *batch: self.loss(self.net(batch[0]), batch[1]), "have no names"),
        (lambda self, x, y: 3.0, "it returns int|it returns float"),
    ],
)
def test_anything_else_is_refused(construct, what):
    net = golden.network("mlp")
    with pytest.raises(NotImplementedError, match=what) as info:
        nn.TrainOneStepCell(Odd(net, construct), momentum(net))
    assert_three_lines(info.value)
    assert "Odd" in str(info.value)


def test_own_parameters_and_several_outputs_are_refused():
    net = golden.network("mlp")
    cell = NetWithLoss(net, cross_entropy())
    cell.scale = ob.Parameter(np.ones(1, np.float32), name="scale")
    with pytest.raises(NotImplementedError, match="it has the parameter 'scale'"):
        nn.TrainOneStepCell(cell, momentum(net))
    two = two_outputs()
    with pytest.raises(NotImplementedError, match="has 2 outputs"):
        nn.TrainOneStepCell(NetWithLoss(two, cross_entropy()), momentum(two))
    with pytest.raises(TypeError):
        nn.TrainOneStepCell(cross_entropy(), momentum(net))


def test_a_stand_in_can_be_kept_and_shown():
    value = Traced("Net")
    assert value in {value}
    assert "Traced" in repr(value)


def test_a_users_cell_runs_on_arrays():
    net = golden.network("mlp")
    x, labels = next(golden.batches("mlp", 1))
    cell = NetWithLoss(net, cross_entropy())
    assert float(cell(x, labels)) == float(nn.WithLossCell(net, cross_entropy())(x, labels))


@pytest.mark.parametrize("engine", ["auto", "portable"])
def test_the_engine_of_the_steps_is_chosen_with_the_network(engine):
    net = ob.load(model_path("mlp"), engine=engine)
    step = plain(net)
    step(*next(golden.batches("mlp", 1)))
    assert step._steps.stepper(np.zeros(8, np.int64)).program.config.engine == engine
    assert boost.LessBN(net).engine == engine
    with pytest.raises(ValueError, match="'engine' is 'nativ'"):
        ob.load(model_path("mlp"), engine="nativ")
