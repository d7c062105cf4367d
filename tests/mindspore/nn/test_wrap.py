from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.mindspore.core.network import load
from tests.mindspore.nn import golden
from tests.support import assert_three_lines, text_model


def test_with_loss_cell_gives_the_loss_and_its_parts():
    net, loss = golden.network("mlp"), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    cell = nn.WithLossCell(net, loss)
    x, labels = next(iter(golden.batches("mlp", 1)))
    assert cell.backbone_network is net
    assert [p.name for p in cell.trainable_params()] == [p.name for p in net.trainable_params()]
    assert float(cell(x, labels)) == float(loss(net(x), labels))
    assert cell.set_train() is cell
    assert net.training
    with pytest.raises(TypeError, match="2 arguments"):
        cell(x)


def test_with_eval_cell_gives_loss_outputs_labels():
    net, loss = golden.network("mlp"), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    x, labels = next(iter(golden.batches("mlp", 1)))
    value, outputs, seen = nn.WithEvalCell(net, loss)(x, labels)
    assert seen is labels
    np.testing.assert_array_equal(outputs, net(x))
    assert float(value) == float(loss(outputs, labels))
    assert nn.WithEvalCell(net, loss, True)(x, labels)[2].dtype == np.float32
    outputs, seen = nn.WithEvalCell(net, None)(x, labels)
    assert outputs.shape == (8, 10)


def test_a_network_with_two_inputs_takes_both_and_the_label():
    net = load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,3] a, float[N,3] b, float[3] w) => (float[N,3] y) {
              p = Mul(a, b)
              y = Mul(p, w)
            }""",
            w=np.ones(3, np.float32),
        )
    )
    a, b = np.full([2, 3], 2, np.float32), np.full([2, 3], 3, np.float32)
    cell = nn.WithLossCell(net, nn.L1Loss())
    assert float(cell(a, b, np.zeros([2, 3], np.float32))) == 6
    step = nn.TrainOneStepCell(cell, nn.SGD(net.trainable_params(), learning_rate=1.0))
    assert float(step(a, b, np.zeros([2, 3], np.float32))) == 6


def test_a_network_with_two_outputs_is_told_to_be_cut():
    net = load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,3] x, float[3] w) => (float[N,3] y, float[N,3] z) {
              y = Mul(x, w)
              z = Neg(y)
            }""",
            w=np.ones(3, np.float32),
        )
    )
    x = np.ones([1, 3], np.float32)
    assert [part.shape for part in net(x)] == [(1, 3), (1, 3)]
    with pytest.raises(TypeError, match="2 outputs"):
        nn.WithEvalCell(net, nn.MSELoss())(x, x)


class Doubled(nn.MSELoss):
    def construct(self, logits, labels):
        return super().construct(logits, labels) * 2


class Kept(nn.Momentum):
    def construct(self, gradients):
        return super().construct([gradient * 0 for gradient in gradients])


class Halved(nn.Momentum):
    def get_lr(self):
        return super().get_lr() / 2


class Never(nn.DynamicLossScaleUpdateCell):
    def construct(self, loss_scale, overflow):
        return super().construct(loss_scale, False)


class Abstract(nn.LossBase):
    def construct(self, logits, labels):
        return labels


@pytest.mark.parametrize("own", [Doubled, Kept, Halved, Never, Abstract])
def test_a_method_that_the_graph_would_ignore_is_refused(own):
    net = golden.network("mlp")
    loss = own() if issubclass(own, nn.LossBase) else nn.MSELoss()
    kind = own if issubclass(own, nn.Momentum) else nn.Momentum
    scale = own(1024.0, 2, 10) if own is Never else nn.FixedLossScaleUpdateCell(8.0)
    with pytest.raises(NotImplementedError, match=r"has its own (construct|get_lr)") as raised:
        nn.TrainOneStepWithLossScaleCell(
            nn.WithLossCell(net, loss), kind(net.trainable_params(), 0.1, 0.9), scale
        )
    assert_three_lines(raised.value)
    assert f"{own.__name__}.{'get_lr' if own is Halved else 'construct'}" in raised.value.where


def test_own_treatment_of_overflows_is_refused():
    class Step(nn.TrainOneStepWithLossScaleCell):
        def process_loss_scale(self, overflow):
            return overflow

    net = golden.network("mlp")
    loss, optimizer = nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params())
    with pytest.raises(NotImplementedError, match="has its own process_loss_scale"):
        Step(loss, optimizer, nn.FixedLossScaleUpdateCell(8.0))


def test_a_with_loss_cell_with_its_own_construct_is_traced():
    class Same(nn.WithLossCell):
        def construct(self, data, label):
            return self.loss_fn(self.backbone_network(data), label)

    class Double(nn.WithLossCell):
        def construct(self, data, label):
            return self.loss_fn(self.backbone_network(data), label) * 2

    net, loss = golden.network("mlp"), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    optimizer = nn.SGD(net.trainable_params())
    batch = next(iter(golden.batches("mlp", 1)))
    wanted = float(nn.WithLossCell(net, loss)(*batch))
    assert float(nn.TrainOneStepCell(Same(net, loss), optimizer)(*batch)) == pytest.approx(wanted)
    with pytest.raises(NotImplementedError, match="mul"):
        nn.TrainOneStepCell(Double(net, loss), optimizer)
