"""Learning rates against MindSpore 2.10."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost import nn
from ortboost.mindspore.core.tensor import Tensor
from tests.mindspore.nn import golden

SCHEDULES = golden.read("schedules")
CALLS = SCHEDULES["meta"]["calls"]


@pytest.mark.parametrize("case", [case for case in CALLS if CALLS[case]["name"].islower()])
def test_list_functions(case):
    rates = getattr(nn, CALLS[case]["name"])(**CALLS[case]["arguments"])
    assert isinstance(rates, list)
    np.testing.assert_allclose(rates, SCHEDULES[case], rtol=1e-12)


@pytest.mark.parametrize("case", [case for case in CALLS if not CALLS[case]["name"].islower()])
def test_schedule_cells(case):
    schedule = getattr(nn, CALLS[case]["name"])(**CALLS[case]["arguments"])
    rates = [schedule(Tensor(step, dtype=np.int32)) for step in range(12)]
    assert {rate.dtype for rate in rates} == {np.dtype("float32")}
    np.testing.assert_allclose(rates, SCHEDULES[case], rtol=2e-6, atol=1e-8)


def test_users_can_write_their_own():
    class Halving(nn.LearningRateSchedule):
        def construct(self, global_step):
            return 0.5**global_step

    net = golden.network("mlp")
    optimizer = nn.SGD(net.trainable_params(), learning_rate=Halving())
    step = nn.TrainOneStepCell(
        nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(True, "mean")), optimizer
    )
    seen = []
    for x, labels in golden.batches("mlp", 3):
        seen.append(optimizer.get_lr())
        step(x, labels)
    assert seen == [1.0, 0.5, 0.25]


def test_lists_accept_the_limits_that_mindspore_accepts():
    assert nn.piecewise_constant_lr([2, 2, 3], [0.1, 0.2, 0.3]) == [0.1, 0.1, 0.3]
    assert nn.warmup_lr(0.0, 2, 1, 1) == [0.0, 0.0]
    with pytest.raises(ValueError, match="milestone 1"):
        nn.piecewise_constant_lr([2, 1], [0.1, 0.2])


def test_rates_and_counts_are_tensors():
    """A callback of MindSpore reads opt.get_lr().asnumpy()."""
    optimizer = nn.SGD(golden.network("mlp").trainable_params(), learning_rate=[0.1, 0.2])
    for value, dtype, wanted in (
        (optimizer.get_lr(), np.float32, 0.1),
        (optimizer.global_step, np.int32, 0),
    ):
        assert (value.asnumpy().dtype, value.shape) == (dtype, ())
        assert float(value) == pytest.approx(wanted)
