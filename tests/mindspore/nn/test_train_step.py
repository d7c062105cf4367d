from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.core.errors import OrtBoostError
from ortboost.mindspore.core.dtype import float32
from ortboost.mindspore.core.network import load
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from tests.mindspore.nn import golden
from tests.support import text_model

IN, OUT = 16, 10


def mat_mul_net():
    return load(
        text_model(
            f"""<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,{IN}] x, float[{IN},{OUT}] weight) => (float[N,{OUT}] y)
            {{ y = MatMul(x, weight) }}""",
            weight=np.ones([IN, OUT], np.float32),
        )
    )


def entropy(net, reduction="mean"):
    return nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction=reduction))


def test_the_sample_with_a_dynamic_scale_runs():
    net = mat_mul_net()
    loss = nn.MSELoss()
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    net_with_loss = nn.WithLossCell(net, loss)
    manager = nn.DynamicLossScaleUpdateCell(
        loss_scale_value=2**12, scale_factor=2, scale_window=1000
    )
    train_network = nn.TrainOneStepWithLossScaleCell(net_with_loss, optimizer, scale_sense=manager)
    input = Tensor(np.ones([OUT, IN]), float32)
    labels = Tensor(np.ones([OUT]), float32)  # broadcasts against [10, 10]
    loss_value, overflow, scale = train_network(input, labels)
    assert float(loss_value) == 15.0**2
    assert (bool(overflow), float(scale)) == (False, 4096.0)
    # d mean((y - 1)^2) / dw = 2 * 15 * 10 / 100 for every entry
    np.testing.assert_allclose(net.trainable_params()[0].asnumpy(), 1 - 0.1 * 3.0, rtol=1e-6)


def test_the_sample_with_a_tensor_scale_runs():
    net = mat_mul_net()
    train_network = nn.TrainOneStepWithLossScaleCell(
        nn.WithLossCell(net, nn.MSELoss()),
        nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9),
        scale_sense=Tensor(1024, dtype=float32),
    )
    input, labels = Tensor(np.ones([OUT, IN]), float32), Tensor(np.ones([OUT]), float32)
    assert float(train_network(input, labels)[2]) == 1024
    train_network.set_sense_scale(Tensor(np.full((1,), 2.0**7), dtype=float32))
    loss, overflow, scale = train_network(input, labels)
    assert (bool(overflow), float(scale)) == (False, 128.0)
    assert float(loss) == pytest.approx((0.7 * 16 - 1) ** 2, rel=1e-5)


def test_the_tutorial_loop_learns():
    net = golden.network("mlp")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    opt = nn.SGD(net.trainable_params(), learning_rate=0.1, momentum=0.9, weight_decay=1e-4)
    manager = nn.DynamicLossScaleUpdateCell(
        loss_scale_value=2**12, scale_factor=2, scale_window=1000
    )
    step = nn.TrainOneStepWithLossScaleCell(nn.WithLossCell(net, loss), opt, scale_sense=manager)
    step.set_train()
    data = list(golden.batches("mlp", 10))
    first = [float(step(x, y)[0]) for x, y in data]
    for _ in range(9):
        last = [float(step(x, y)[0]) for x, y in data]
    assert np.mean(last) < 0.2 * np.mean(first)
    evaluate = nn.WithEvalCell(net, loss)
    metric = nn.Accuracy()
    for x, y in data:
        value, outputs, labels = evaluate(x, y)
        metric.update(outputs, labels)
        assert value < 1
    assert metric.eval() > 0.95


@pytest.mark.parametrize("sense", ["plain", "scaled"])
def test_reduction_none_gives_all_losses_and_trains_their_sum(sense):
    ends, losses = [], []
    for reduction in ("none", "sum"):
        net = golden.network("mlp")
        opt = nn.SGD(net.trainable_params(), learning_rate=0.01)
        x, labels = next(iter(golden.batches("mlp", 1)))
        if sense == "plain":
            loss = nn.TrainOneStepCell(entropy(net, reduction), opt)(x, labels)
        else:
            cell = nn.TrainOneStepWithLossScaleCell(entropy(net, reduction), opt, Tensor(64.0))
            loss = cell(x, labels)[0]
        losses.append(loss)
        ends.append(golden.values(net))
    assert losses[0].shape == (8,)
    np.testing.assert_allclose(losses[0].sum(), losses[1], rtol=1e-6)
    for name in ends[0]:
        np.testing.assert_allclose(ends[0][name], ends[1][name], atol=1e-7)


def test_steps_of_one_network_share_its_weights():
    """Two optimizers in turn do what one program per step would: weights follow, moments stay."""
    net = golden.network("mlp")
    weight = net.parameters_dict()["fc2.bias"]
    one = nn.TrainOneStepCell(entropy(net), nn.SGD(net.trainable_params(), 0.1))
    two = nn.TrainOneStepWithLossScaleCell(
        entropy(net), nn.Adam(net.trainable_params(), 0.01), nn.FixedLossScaleUpdateCell(8)
    )
    reference = golden.network("mlp")
    x, labels = next(iter(golden.batches("mlp", 1)))
    for cell in (one, two, one, two):
        before = weight.asnumpy()
        np.testing.assert_array_equal(net(x), copy_of(net, reference)(x))
        loss = entropy(net)(x, labels)
        shown = cell(x, labels)
        shown = shown[0] if isinstance(shown, tuple) else shown
        np.testing.assert_allclose(shown, loss, rtol=1e-6)
        assert not np.array_equal(before, weight.asnumpy())
    assert one.optimizer.global_step == two.optimizer.global_step == 2


def copy_of(net, other):
    for name, parameter in other.parameters_dict().items():
        parameter.set_data(net.parameters_dict()[name].asnumpy())
    return other


def test_an_optimizer_keeps_its_moments_when_the_step_is_built_again():
    """Labels of another form need another graph; the run goes on as if nothing had happened."""

    def train(shapes):
        net = mat_mul_net()
        opt = nn.Adam(net.trainable_params(), learning_rate=0.1)
        step = nn.TrainOneStepWithLossScaleCell(
            nn.WithLossCell(net, nn.MSELoss()), opt, nn.DynamicLossScaleUpdateCell(8.0, 2, 2)
        )
        x = np.linspace(-1, 1, 4 * IN, dtype=np.float32).reshape(4, IN)
        scales = [float(step(x, np.ones(shape, np.float32))[2]) for shape in shapes]
        return net.trainable_params()[0].asnumpy(), scales, opt.global_step

    whole = train([(4, OUT)] * 4)
    mixed = train([(4, OUT), (OUT,), (4, OUT), (1, OUT)])
    np.testing.assert_array_equal(whole[0], mixed[0])
    assert whole[1:] == mixed[1:] == ([8.0, 16.0, 16.0, 32.0], 4)


def test_frozen_parameters_keep_their_bits_even_when_frozen_later():
    net = golden.network("mlp")
    step = nn.TrainOneStepCell(
        entropy(net), nn.Momentum(net.trainable_params(), 0.1, 0.9, weight_decay=0.1)
    )
    x, labels = next(iter(golden.batches("mlp", 1)))
    step(x, labels)
    frozen = net.parameters_dict()["fc1.weight"]
    frozen.requires_grad = False
    before = golden.values(net)
    step(x, labels)
    after = golden.values(net)
    assert [n for n in before if np.array_equal(before[n], after[n])] == ["fc1.weight"]
    frozen.requires_grad = True
    step(x, labels)
    assert not np.array_equal(frozen.asnumpy(), before["fc1.weight"])


def test_nothing_left_to_train_is_said():
    net = mat_mul_net()
    opt = nn.SGD(net.trainable_params())
    net.trainable_params()[0].requires_grad = False
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), opt)
    with pytest.raises(ValueError, match="frozen"):
        step(np.ones([2, IN], np.float32), np.ones([2, OUT], np.float32))


def test_set_data_reaches_the_running_step():
    net = mat_mul_net()
    weight = net.trainable_params()[0]
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD([weight], learning_rate=0.1)
    )
    x, labels = np.ones([2, IN], np.float32), np.full([2, OUT], 16.0, np.float32)
    assert float(step(x, labels)) == 0
    weight.set_data(np.zeros([IN, OUT], np.float32))
    assert float(step(x, labels)) == 16**2
    assert float(weight.asnumpy()[0, 0]) == pytest.approx(0.1 * 2 * 16 / OUT)


def test_parameters_of_another_network_are_refused():
    with pytest.raises(ValueError, match="another network"):
        nn.TrainOneStepCell(
            nn.WithLossCell(mat_mul_net(), nn.MSELoss()), nn.SGD(mat_mul_net().trainable_params())
        )


def test_a_list_of_rates_that_ends_is_a_runtime_error_before_anything_moves():
    net = mat_mul_net()
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), learning_rate=[0.1])
    )
    x, labels = np.ones([2, IN], np.float32), np.ones([2, OUT], np.float32)
    step(x, labels)
    before = net.trainable_params()[0].asnumpy()
    with pytest.raises(RuntimeError, match="ends after 1"):
        step(x, labels)
    np.testing.assert_array_equal(net.trainable_params()[0].asnumpy(), before)


def test_a_network_that_computes_its_loss_needs_no_loss_cell():
    net = load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[N,2] x, float[2] w) => (float l) {
              d = Sub(x, w)
              s = Mul(d, d)
              l = ReduceMean<keepdims = 0>(s)
            }""",
            w=np.array([1, 2], np.float32),
        )
    )
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), learning_rate=0.5))
    assert float(step(np.zeros([3, 2], np.float32))) == 2.5
    np.testing.assert_allclose(net.trainable_params()[0].asnumpy(), [0.5, 1.0])


def test_what_the_arrays_must_be():
    net = mat_mul_net()
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), learning_rate=0.1)
    )
    x, labels = np.ones([2, IN], np.float32), np.ones([2, OUT], np.float32)
    for wrong, kind in (
        ((x,), TypeError),
        ((x, labels, labels), TypeError),
        ((x, "labels"), TypeError),
        ((x, 1.0), TypeError),
        ((None, labels), TypeError),
        ((x[:, 1:], labels), ValueError),
        ((x[0], labels), ValueError),
        ((x, labels[:, 1:]), OrtBoostError),
    ):
        with pytest.raises(kind):
            step(*wrong)
    step(x.astype(np.float64), labels.astype(np.int64))  # numbers are converted


def test_labels_that_do_not_broadcast_are_refused():
    net = golden.network("mlp")
    opt = nn.SGD(net.trainable_params(), 0.1)
    x, _ = next(golden.batches("mlp", 1))
    with pytest.raises(ValueError, match=r"Predictions \[batch, 10\] and labels \[8\] do not fit"):
        nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), opt)(x, np.zeros(8, np.float32))


@pytest.mark.parametrize("shape", [(10,), (8, 1), (1,), (), (1, 8, 10), (1, 10)])
@pytest.mark.parametrize("loss", [nn.SoftmaxCrossEntropyWithLogits(), nn.BCEWithLogitsLoss()])
def test_only_losses_that_broadcast_take_labels_of_another_shape(loss, shape):
    net = golden.network("mlp")
    before = golden.values(net)
    opt = nn.SGD(net.trainable_params(), 0.1)
    (x, _), labels = next(golden.batches("mlp", 1)), np.zeros(shape, np.float32)
    with pytest.raises(ValueError, match=r"do not fit|The dimension"):
        nn.TrainOneStepCell(nn.WithLossCell(net, loss), opt)(x, labels)
    with pytest.raises(ValueError, match="do not fit"):
        loss(net(x), labels)
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, before[name])
    assert nn.MSELoss()(net(x), np.zeros([8, 1], np.float32)).shape == ()


def test_return_grad_is_refused_clearly():
    net = mat_mul_net()
    with pytest.raises(OrtBoostError, match="return_grad"):
        nn.TrainOneStepCell(
            nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params()), return_grad=True
        )


def test_running_statistics_move_in_training_and_not_on_a_skipped_step():
    net = golden.network("convbn")
    mean = net.parameters_dict()["bn1.running_mean"]
    step = nn.TrainOneStepWithLossScaleCell(
        entropy(net), nn.SGD(net.trainable_params(), 0.1), nn.DynamicLossScaleUpdateCell(8, 2, 100)
    )
    x, labels = next(iter(golden.batches("convbn", 1)))
    before = mean.asnumpy()
    step(x, labels)
    moved = mean.asnumpy()
    assert not np.array_equal(before, moved)
    assert bool(step(np.full_like(x, np.inf), labels)[1])
    np.testing.assert_array_equal(mean.asnumpy(), moved)
    net(x)
    entropy(net)(x, labels)
    np.testing.assert_array_equal(mean.asnumpy(), moved)  # a forward call never trains


def test_dropout_draws_by_the_seed_of_the_network():
    def train(seed):
        net = load(
            text_model(
                """<ir_version: 10, opset_import: ["" : 18]>
                net (float[N,64] x, float[64] w, float ratio, bool training) => (float[N,64] y) {
                  d = Dropout(x, ratio, training)
                  y = Mul(d, w)
                }""",
                w=np.ones(64, np.float32),
                ratio=np.float32(0.5),
                training=np.bool_(True),
            ),
            seed=seed,
        )
        step = nn.TrainOneStepCell(
            nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1)
        )
        x = np.ones([2, 64], np.float32)
        np.testing.assert_array_equal(net(x), x)  # no dropout outside of training
        losses = [float(step(x, 0 * x)) for _ in range(3)]
        return losses, net.trainable_params()[0].asnumpy()

    first, again, other = train(1), train(1), train(2)
    assert first[0] == again[0] != other[0]
    assert first[0][0] != first[0][1]
    np.testing.assert_array_equal(first[1], again[1])


def test_one_optimizer_in_two_training_cells_keeps_its_moments_and_steps():
    ends = []
    for split in (False, True):
        net = golden.network("mlp")
        opt = nn.Adam(net.trainable_params(), learning_rate=0.01)
        plain = nn.TrainOneStepCell(entropy(net), opt)
        scaled = nn.TrainOneStepWithLossScaleCell(entropy(net), opt, Tensor(64.0))
        for index, (x, labels) in enumerate(golden.batches("mlp", 4)):
            (scaled if split and index % 2 else plain)(x, labels)
        assert opt.global_step == 4
        ends.append(golden.values(net))
    for name in ends[0]:
        np.testing.assert_allclose(ends[0][name], ends[1][name], atol=2e-7)


def test_the_scale_can_be_read_and_set_before_the_first_step():
    net = mat_mul_net()
    step = nn.TrainOneStepWithLossScaleCell(
        nn.WithLossCell(net, nn.MSELoss()),
        nn.SGD(net.trainable_params()),
        nn.DynamicLossScaleUpdateCell(4096, 2, 1000),
    )
    assert float(step.scale_sense.asnumpy()) == 4096
    step.set_sense_scale(Tensor([32.0]))
    x, labels = np.ones([2, IN], np.float32), np.ones([2, OUT], np.float32)
    assert float(step(x, labels)[2]) == 32
    step.scale_sense.set_data(np.float32(8) * np.ones(()))
    assert float(step(x, labels)[2]) == 8


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_loss_of_a_step_stays_what_it_was(reduction):
    net = golden.network("mlp")
    step = nn.TrainOneStepCell(entropy(net, reduction), nn.SGD(net.trainable_params(), 0.05))
    losses, copies = [], []
    for x, labels in golden.batches("mlp", 5):
        losses.append(step(x, labels))
        copies.append(np.array(losses[-1]))
    np.testing.assert_array_equal(losses, copies)
    assert len({float(np.mean(loss)) for loss in losses}) == 5


def test_the_factor_of_the_loss_cannot_be_changed():
    net = mat_mul_net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    cell = nn.TrainOneStepCell(entropy(net), optimizer, sens=8.0)
    assert cell.sens == 8
    with pytest.raises(OrtBoostError, match="cannot be changed"):
        cell.sens = 4.0


def test_settings_changed_after_the_first_step_take_effect():
    net, batches = golden.network("mlp"), list(golden.batches("mlp", 3))
    optimizer, loss = nn.Momentum(net.trainable_params(), 1e-4, 0.9), nn.MSELoss("sum")
    labels = np.ones_like(net(batches[0][0]))
    step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)
    total = float(step(batches[0][0], labels))
    before = golden.values(net)
    optimizer.momentum, optimizer.learning_rate, loss.reduction = 0.0, 0.0, "mean"
    wanted = np.mean((np.array(net(batches[0][0])) - labels) ** 2)
    assert float(step(batches[0][0], labels)) == pytest.approx(wanted, rel=1e-5)
    assert total > wanted
    optimizer.weight_decay, optimizer.learning_rate = 1.0, 1.0  # w - (g + w)
    for name, value in golden.values(net).items():
        np.testing.assert_array_equal(value, before[name])
    step(batches[1][0], labels)
    after = golden.values(net)
    assert np.abs(after["fc1.weight"]).mean() < 0.5 * np.abs(before["fc1.weight"]).mean()


@pytest.mark.parametrize("value", [32.0, [32.0]])
def test_a_parameter_is_a_scale_too(value):
    net = golden.network("mlp")
    scale = Parameter(Tensor(np.array(value, np.float32)), name="scale")
    optimizer = nn.SGD(net.trainable_params())
    step = nn.TrainOneStepWithLossScaleCell(entropy(net), optimizer, scale)
    batch = next(iter(golden.batches("mlp", 1)))
    assert float(step(*batch)[2]) == 32
    step.set_sense_scale(Parameter(Tensor(8.0), name="scale"))
    assert float(step(*batch)[2]) == 8


def test_a_subclass_that_computes_gradients_itself_is_told_that_they_are_in_the_graph():
    class Clipping(nn.TrainOneStepCell):
        def construct(self, *inputs):
            loss = self.network(*inputs)
            self.optimizer(self.grad(self.network, self.weights)(*inputs, loss))
            return loss

        @property
        def broken(self):
            return None.inner

    class Logging(nn.TrainOneStepCell):
        def construct(self, *inputs):
            self.last = super().construct(*inputs)
            return self.last

    net = mat_mul_net()
    with_loss = nn.WithLossCell(net, nn.MSELoss())
    opt = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    data, labels = np.ones([OUT, IN], np.float32), np.ones([OUT], np.float32)
    with pytest.raises(
        NotImplementedError, match=r"(?s)'Clipping' has no 'grad' here.*Clip\("
    ) as caught:
        Clipping(with_loss, opt)(data, labels)
    assert str(caught.value).count("\n") == 2
    assert not hasattr(Clipping(with_loss, opt), "weights")
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = Clipping(with_loss, opt).other
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'inner'"):
        _ = Clipping(with_loss, opt).broken
    step = Logging(with_loss, opt)
    assert float(step(data, labels)) == float(step.last) == 15.0**2
