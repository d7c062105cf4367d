"""The two boost cells: answers, methods, errors. Numbers: test_mindspore_parity.py."""

from __future__ import annotations

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
from tests.mindspore.boost.common import momentum, train, with_loss
from tests.mindspore.nn import golden
from tests.support import assert_three_lines


def plain(optimizer=None, **more):
    net = golden.network("mlp")
    optimizer = momentum(net) if optimizer is None else optimizer(net)
    return net, BoostTrainOneStepCell(with_loss(net), optimizer, **more)


def scaled(sense=None):
    net = golden.network("mlp")
    sense = nn.DynamicLossScaleUpdateCell(2**12, 2, 1000) if sense is None else sense
    return net, BoostTrainOneStepWithLossScaleCell(with_loss(net), momentum(net), sense)


def batch():
    return next(iter(golden.batches("mlp", 1)))


def test_without_a_boost_it_is_the_plain_cell_to_the_bit():
    net, step = plain()
    other = golden.network("mlp")
    train(step, "mlp", 4)
    train(nn.TrainOneStepCell(with_loss(other), momentum(other)), "mlp", 4)
    for name, value in golden.values(other).items():
        np.testing.assert_array_equal(golden.values(net)[name], value)


@pytest.mark.parametrize("sens", [None, 1.0, 64.0])
def test_the_loss_is_answered_with_and_without_sens(sens):
    """MindSpore answers nothing without."""
    net, step = plain(sens=sens)
    x, labels = batch()
    expected = with_loss(net)(x, labels)
    loss = step(x, labels)
    assert isinstance(loss, Tensor)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_the_scaled_cell_answers_three_things():
    net, step = scaled()
    x, labels = batch()
    expected = with_loss(net)(x, labels)
    loss, overflow, scale = step(x, labels)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert (overflow.dtype, bool(overflow)) == (np.bool_, False)
    assert (scale.dtype, float(scale)) == (np.float32, 4096.0)
    assert float(step.scale_sense.asnumpy()) == 4096


def test_the_scale_may_be_an_array():
    _, step = scaled(Tensor([64.0]))
    assert float(step(*batch())[2]) == 64
    step.set_sense_scale(Tensor(8.0))
    assert float(step(*batch())[2]) == 8


def test_what_is_on():
    _, step = plain()
    assert (step.freeze, step.use_grad_accumulation, step.max_accumulation_step) == (
        False,
        False,
        1,
    )
    assert step.train_strategy is None
    assert not (step.check_adasum_enable())
    assert not (step.check_dim_reduce_enable())
    assert not (step.enable_adasum)
    assert not (step.enable_dim_reduce)
    _, step = plain(lambda net: GradientAccumulation(3, FreezeOpt(momentum(net))))
    assert (step.freeze, step.use_grad_accumulation, step.max_accumulation_step) == (True, True, 3)
    assert step.train_strategy is None


def test_the_processes_are_the_step_itself():
    for make, name, first in (
        (lambda net: FreezeOpt(momentum(net)), "gradient_freeze_process", ()),
        (
            lambda net: GradientAccumulation(2, momentum(net)),
            "gradient_accumulation_process",
            (Tensor(2.3), None, 1.0),  # loss, gradients, sens
        ),
    ):
        _, one = plain(make)
        _, other = plain(make)
        np.testing.assert_array_equal(getattr(one, name)(*first, *batch()), other(*batch()))


def test_another_sens_is_refused():
    _, step = plain(lambda net: GradientAccumulation(2, momentum(net)))
    with pytest.raises(NotImplementedError, match=r"sens is 2\.0") as raised:
        step.gradient_accumulation_process(None, None, 2.0, *batch())
    assert_three_lines(raised.value)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda c: c.gradient_freeze_process(*batch()), ValueError),
        (lambda c: c.gradient_accumulation_process(None, None, None, *batch()), ValueError),
        (lambda c: c.adasum_process(1.0, ()), NotImplementedError),
        (lambda c: c(batch()[0]), TypeError),
        (lambda c: type(c)(c.network, None, 1.0), TypeError),
        (lambda c: type(c)(None, c.optimizer, Tensor(1.0)), TypeError),
    ],
)
@pytest.mark.parametrize("make", [plain, scaled])
def test_refusals(make, call, kind):
    _, step = make()
    with pytest.raises(kind) as raised:
        call(step)
    assert_three_lines(raised.value)


@pytest.mark.parametrize(("sens", "kind"), [(0, ValueError), (-1.0, ValueError), ("x", TypeError)])
def test_sens_is_checked_when_the_cell_is_made(sens, kind):
    """MindSpore documents a TypeError for what is no number, and raises none."""
    with pytest.raises(kind) as raised:
        plain(sens=sens)
    assert_three_lines(raised.value)


@pytest.mark.parametrize(
    ("sense", "kind"), [("x", TypeError), (3, TypeError), (Tensor([1.0, 2.0]), ValueError)]
)
def test_scale_sense_is_checked(sense, kind):
    with pytest.raises(kind) as raised:
        scaled(sense)
    assert_three_lines(raised.value)


def test_parameters_of_another_network_are_refused_through_a_wrapper():
    net, other = golden.network("mlp"), golden.network("mlp")
    with pytest.raises(ValueError, match="another network") as raised:
        BoostTrainOneStepCell(with_loss(net), FreezeOpt(momentum(other)))
    assert_three_lines(raised.value)
