"""GradientAccumulation: windows of steps."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ortboost import nn
from ortboost.mindspore.boost import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
    FreezeOpt,
    GradientAccumulation,
)
from ortboost.mindspore.core.tensor import Tensor
from tests.mindspore.boost.common import momentum, names, train, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines


def accumulating(steps, scale=None, **more):
    net = golden.network("mlp")
    optimizer = GradientAccumulation(steps, momentum(net, **more))
    if scale is None:
        return net, optimizer, BoostTrainOneStepCell(with_loss(net), optimizer)
    cell = BoostTrainOneStepWithLossScaleCell(with_loss(net), optimizer, scale)
    return net, optimizer, cell


def test_a_window_is_one_update_with_the_whole_batch():
    """The loss is a mean, so the mean of the gradients of parts is the gradient of the whole."""
    x, labels = next(iter(golden.batches("mlp", 1)))
    net, optimizer, step = accumulating(4)
    losses = []
    for part in range(4):
        assert optimizer.global_step == 0
        losses.append(step(x[2 * part : 2 * part + 2], labels[2 * part : 2 * part + 2]))
    assert optimizer.global_step == 1
    whole = golden.network("mlp")
    loss = nn.TrainOneStepCell(with_loss(whole), momentum(whole))(x, labels)
    np.testing.assert_allclose(np.mean(losses), loss, rtol=1e-6)
    for name, value in golden.values(whole).items():
        np.testing.assert_allclose(golden.values(net)[name], value, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_window_of_one_is_a_plain_step(steps):
    net, optimizer, step = accumulating(1)
    train(step, "mlp", steps)
    other = golden.network("mlp")
    train(nn.TrainOneStepCell(with_loss(other), momentum(other)), "mlp", steps)
    for name, value in golden.values(other).items():
        np.testing.assert_array_equal(golden.values(net)[name], value)
    assert optimizer.global_step == steps


def test_an_overflow_in_a_window_is_not_counted():
    net, optimizer, step = accumulating(2, nn.DynamicLossScaleUpdateCell(2**10, 2, 100))
    (x, labels), (x2, labels2) = golden.batches("mlp", 2)
    step(x, labels)
    _, overflow, scale = step(np.full_like(x, np.nan), labels)
    assert (bool(overflow), float(scale), optimizer.global_step) == (True, 512.0, 0)
    step(x2, labels2)
    assert optimizer.global_step == 1
    clean, _, again = accumulating(2, nn.DynamicLossScaleUpdateCell(2**10, 2, 100))
    train(again, "mlp", 2)
    for name, value in golden.values(clean).items():
        np.testing.assert_allclose(golden.values(net)[name], value, atol=1e-7)


def test_what_is_left_of_a_window_can_be_applied():
    """MindSpore never applies it."""
    net, optimizer, step = accumulating(4)
    assert step.flush() is False  # nothing yet
    train(step, "mlp", 6)
    before = golden.values(net)
    assert step.flush() is True
    assert optimizer.global_step == 2
    assert not np.array_equal(before["fc1.weight"], golden.values(net)["fc1.weight"])
    assert step.flush() is False
    twice, _, both = accumulating(2)
    train(both, "mlp", 2)
    once, _, left = accumulating(3)
    train(left, "mlp", 2)
    left.flush()
    for name, value in golden.values(twice).items():
        np.testing.assert_allclose(golden.values(once)[name], value, atol=1e-7)


def test_the_learning_rate_is_per_update():
    net = golden.network("mlp")
    inner = nn.SGD(net.trainable_params(), [0.1, 0.2])
    step = BoostTrainOneStepCell(with_loss(net), GradientAccumulation(2, inner))
    rates = []
    for x, labels in golden.batches("mlp", 3):
        rates.append(inner.get_lr())
        step(x, labels)
    assert rates == [0.1, 0.1, 0.2]


def test_the_window_follows_to_another_cell():
    """It belongs to the optimizer, as its moments."""
    net = golden.network("mlp")
    optimizer = GradientAccumulation(2, momentum(net))
    first = BoostTrainOneStepCell(with_loss(net), optimizer)
    second = BoostTrainOneStepCell(with_loss(net), optimizer)
    (x, labels), (x2, labels2) = golden.batches("mlp", 2)
    first(x, labels)
    second(x2, labels2)
    assert optimizer.global_step == 1
    other, _, step = accumulating(2)
    train(step, "mlp", 2)
    for name, value in golden.values(other).items():
        np.testing.assert_array_equal(golden.values(net)[name], value)


def test_freeze_inside_a_window():
    """All steps of a window train the same group. (MindSpore's cells cannot be built so.)"""
    net = golden.network("mlp")
    own = net.trainable_params()
    freeze = FreezeOpt(momentum(net), [own, own[2:]], [1, 0])
    optimizer = GradientAccumulation(2, freeze)
    assert names(optimizer.parameters) == names(own)
    step = BoostTrainOneStepCell(with_loss(net), optimizer)
    assert (step.freeze, step.use_grad_accumulation, step.max_accumulation_step) == (True, True, 2)
    assert step.train_strategy == [1, 0]
    start = golden.values(net)
    train(step, "mlp", 2)
    middle = golden.values(net)
    assert np.array_equal(start["fc1.weight"], middle["fc1.weight"])
    assert not np.array_equal(start["fc2.weight"], middle["fc2.weight"])
    train(step, "mlp", 2)
    assert not np.array_equal(middle["fc1.weight"], golden.values(net)["fc1.weight"])
    assert optimizer.global_step == 2


def gradients(net, x, labels):
    """Those of a batch, from a step of gradient descent with the rate 1."""
    other = golden.network("mlp")
    for name, value in golden.values(net).items():
        other.parameters_dict()[name].set_data(Tensor(value))
    before = golden.values(other)
    sgd = nn.SGD(other.trainable_params(), 1.0)
    loss = nn.TrainOneStepCell(with_loss(other), sgd)(x, labels)
    after = golden.values(other)
    return loss, tuple(before[p.name] - after[p.name] for p in sgd.parameters)


@pytest.mark.parametrize("scale", [None, 512.0])
@pytest.mark.parametrize("loss_scale", [1.0, 8.0])
def test_given_gradients_and_those_of_the_graph_share_a_window(scale, loss_scale):
    """Given ones are neither divided by the loss scale of the cell, nor move it."""
    sense = None if scale is None else nn.DynamicLossScaleUpdateCell(scale, 2, 3)
    net, optimizer, step = accumulating(4, sense, loss_scale=loss_scale, weight_decay=0.01)
    one, two, three, four = golden.batches("mlp", 4)
    step(*one)
    for batch in (two, four):
        loss, given = gradients(net, *batch)
        answer = step.gradient_accumulation_process(loss, given, None)
        np.testing.assert_array_equal(answer, loss)
    assert optimizer.global_step == 0
    step(*three)
    assert optimizer.global_step == 1
    clean, _, again = accumulating(4, loss_scale=loss_scale, weight_decay=0.01)
    train(again, "mlp", 4)
    for name, value in golden.values(clean).items():
        np.testing.assert_allclose(golden.values(net)[name], value, atol=1e-6)
    if scale is not None:
        assert float(step.scale_sense.asnumpy()) == scale
        assert int(step._steps.scale_state.read("ortboost/good_steps")) == 2


def test_what_is_left_of_a_window_of_given_gradients_can_be_applied():
    net, optimizer, step = accumulating(3)
    (x, labels), _ = golden.batches("mlp", 2)
    step.gradient_accumulation_process(*gradients(net, x, labels), None)
    assert step.flush() is True
    assert (optimizer.global_step, step.flush()) == (1, False)
    clean, _, again = accumulating(1)
    again(x, labels)
    for name, value in golden.values(clean).items():
        np.testing.assert_allclose(golden.values(net)[name], value, atol=1e-6)


def test_frozen_parameters_stay_and_their_gradients_are_not_read():
    net, _, step = accumulating(2)
    step.optimizer.parameters[0].requires_grad = False
    before = golden.values(net)
    for x, labels in golden.batches("mlp", 2):
        step.gradient_accumulation_process(*gradients(net, x, labels), None)
    after = golden.values(net)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {"fc1.bias", "fc2.weight", "fc2.bias"}


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        (lambda g: g[:3], TypeError, "tuple, 3 given for 4 parameters"),
        (lambda g: g[0], TypeError, "'grads' is ndarray, given for 4"),
        (lambda g: (g[1], g[0], *g[2:]), ValueError, r"has the shape \(32,\), its parameter"),
        (lambda g: (g[0], g[1] * np.nan, *g[2:]), ValueError, "not finite"),
        (lambda g: (np.full_like(g[0], 1e19), *g[1:]), ValueError, "too large"),
        (lambda g: ("x", *g[1:]), TypeError, "'grads' is str"),
    ],
)
def test_gradients_that_fit_nothing_are_refused_and_change_nothing(change, kind, what):
    net, _, step = accumulating(2)
    loss, given = gradients(net, *next(iter(golden.batches("mlp", 1))))
    with pytest.raises(kind, match=what) as raised:
        step.gradient_accumulation_process(loss, change(given), None)
    assert_three_lines(raised.value)
    assert step.flush() is False


def test_gradients_cannot_be_given_where_they_are_not_all_that_a_step_needs():
    net = golden.network("mlp")
    own = net.trainable_params()
    frozen = GradientAccumulation(2, FreezeOpt(momentum(net), [own, own[2:]], [1, 0]))
    given = tuple(np.zeros(p.shape, np.float32) for p in own)
    step = BoostTrainOneStepCell(with_loss(net), frozen)
    with pytest.raises(NotImplementedError, match="cannot be given") as raised:
        step.gradient_accumulation_process(1.0, given, None)
    assert_three_lines(raised.value)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda net: GradientAccumulation(0, momentum(net)), ValueError),
        (lambda net: GradientAccumulation(2.0, momentum(net)), TypeError),
        (lambda net: GradientAccumulation(True, momentum(net)), TypeError),
        (lambda net: GradientAccumulation(2, net), TypeError),
        (lambda net: GradientAccumulation(2, None), TypeError),
        (lambda net: GradientAccumulation(2, GradientAccumulation(2, momentum(net))), ValueError),
        (lambda net: GradientAccumulation(2, momentum(net))(1.0, ()), NotImplementedError),
    ],
)
def test_refusals(make, kind):
    with pytest.raises(kind) as raised:
        make(golden.network("mlp"))
    assert_three_lines(raised.value)


def test_a_copy_continues_a_window_but_does_not_flush_it_unseen():
    _, optimizer, step = accumulating(2)
    batches = list(golden.batches("mlp", 4))
    step(*batches[0])
    other = copy.deepcopy(step)
    with pytest.raises(RuntimeError, match="cannot flush before its first step") as raised:
        other.flush()
    assert_three_lines(raised.value)
    assert [float(other(*b)) for b in batches[1:]] == [float(step(*b)) for b in batches[1:]]
    assert other.optimizer.global_step == optimizer.global_step == 2
    assert not copy.deepcopy(accumulating(2)[2]).flush()  # nothing was accumulated
