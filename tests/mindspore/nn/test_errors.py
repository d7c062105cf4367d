"""The errors of MindSpore 2.10 (tests/golden/mindspore/errors.json), and our differences."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ortboost import amp, nn
from ortboost.core.errors import OrtBoostError
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.train import callbacks
from ortboost.mindspore.train.model import Model
from tests.mindspore.nn import golden
from tests.support import assert_three_lines

ENTRIES = json.loads((golden.FOLDER / "errors.json").read_text())

# MindSpore fails by accident, or accepts what cannot work and fails later or never: we say so at
# once. Call -> what we raise ("" = we accept it).
DIFFERENT = {
    # accidents: str or AttributeError from somewhere inside
    "nn.SGD(params, learning_rate='0.1')": "TypeError",
    "nn.Adam(params, learning_rate='0.1')": "TypeError",
    "nn.LARS(params)": "TypeError",
    "nn.TrainOneStepWithLossScaleCell(with_loss, None, scale_sense=Tensor(1.0))": "TypeError",
    "nn.TrainOneStepCell(with_loss, None)": "TypeError",
    "nn.TrainOneStepCell(None, nn.SGD(params))": "TypeError",
    "nn.WithLossCell(1, loss)(images, labels)": "TypeError",
    "train.Model(net, 1, nn.SGD(params))": "TypeError",
    "model.train(1, None)": "TypeError",
    "model.train(1, [1, 2])": "TypeError",
    "measured.eval([1])": "TypeError",
    "measured.fit(1, dataset, other, valid_frequency=0)": "ValueError",
    # accepted, and nonsense
    "nn.SGD(params, learning_rate=True)": "TypeError",
    "nn.SGD(params, learning_rate=[])": "ValueError",
    "nn.SGD(params, learning_rate=[0.1, -0.1])": "ValueError",
    "amp.FixedLossScaleManager(drop_overflow_update=1)": "TypeError",
    "nn.DynamicLossScaleUpdateCell('x', 2, 10)": "TypeError",
    "nn.DynamicLossScaleUpdateCell(2.0, 0, 0)": "ValueError",
    "nn.DynamicLossScaleUpdateCell(2.0, 2, 1.5)": "TypeError",
    "nn.FixedLossScaleUpdateCell(-1)": "ValueError",
    "scaled.set_sense_scale(Tensor([1.0, 2.0]))": "ValueError",
    "nn.TrainOneStepCell(with_loss, nn.SGD(params), sens=-1.0)": "ValueError",
    "nn.TrainOneStepCell(with_loss, nn.SGD(params), sens='x')": "TypeError",
    "nn.WithLossCell(1, loss)": "TypeError",
    "nn.WithLossCell(net, 1)": "TypeError",
    "nn.WithLossCell(None, loss)": "TypeError",
    "nn.WithEvalCell(1, loss)": "TypeError",
    "nn.BCEWithLogitsLoss(reduction='avg')": "ValueError",
    "nn.BCEWithLogitsLoss(weight=1.0)": "TypeError",
    "train.TimeMonitor(-1)": "ValueError",
    # MindSpore has no CPU kernel for these two
    "train.Model(net, loss, nn.SGD(params), loss_scale_manager=amp.DynamicLossScaleManager())": "",
    "train.Model(net, loss, nn.SGD(params), loss_scale_manager=amp.FixedLossScaleManager())": "",
}
# Things that are not here at all.
ABSENT = ("ReduceLROnPlateau", "LearningRateScheduler")


@pytest.fixture
def names(tmp_path, monkeypatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    net = golden.network("mlp")
    params, loss = net.trainable_params(), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    with_loss = nn.WithLossCell(net, loss)
    images, labels = next(iter(golden.batches("mlp", 1)))
    train = SimpleNamespace(
        Model=Model,
        get_metric_fn=nn.get_metric_fn,
        Accuracy=nn.Accuracy,
        Loss=nn.Loss,
        **{name: getattr(callbacks, name) for name in callbacks.__all__},
    )
    return {
        "nn": nn,
        "amp": amp,
        "train": train,
        "Tensor": Tensor,
        "net": net,
        "params": params,
        "loss": loss,
        "with_loss": with_loss,
        "images": images,
        "labels": labels,
        "logits": Tensor(np.zeros([2, 3], np.float32)),
        "dataset": list(golden.batches("mlp", 2)),
        "other": list(golden.batches("mlp", 2)),
        "scaled": nn.TrainOneStepWithLossScaleCell(with_loss, nn.SGD(params), Tensor(1.0)),
        "model": Model(net, loss, nn.SGD(params)),
        "measured": Model(net, loss, nn.SGD(params), metrics={"acc"}),
    }


CALLS = [e for e in ENTRIES if not any(name in e["call"] for name in ABSENT)]


@pytest.mark.filterwarnings("ignore:the loss is multiplied by 1024")
@pytest.mark.parametrize("entry", CALLS, ids=lambda e: e["call"])
def test_the_documented_type_is_raised(entry, names, capsys):
    wanted = DIFFERENT.get(entry["call"], entry["type"])
    if not wanted:
        eval(entry["call"], names)  # our own golden file
        return
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the type is what is asked for
        eval(entry["call"], names)
    kinds = {kind.__name__ for kind in type(raised.value).__mro__}
    assert wanted in kinds
    if "missing" not in str(raised.value):  # Python's own message about its signature
        assert isinstance(raised.value, OrtBoostError)
        assert raised.value.where
        assert raised.value.fix


def test_the_list_of_differences_is_up_to_date():
    known = {entry["call"]: entry["type"] for entry in ENTRIES}
    assert set(DIFFERENT) <= set(known)
    assert all(known[call] != kind for call, kind in DIFFERENT.items())


@pytest.mark.parametrize(
    ("loss", "shape", "words"),
    [
        (nn.BCEWithLogitsLoss(weight=np.ones(5)), (4, 3), "does not broadcast"),
        (nn.MSELoss(), (0, 3), "no predictions"),  # the mean of nothing
    ],
)
def test_a_loss_that_is_called_refuses_by_name(loss, shape, words):
    with pytest.raises(ValueError, match=words) as info:
        loss(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    assert isinstance(info.value, OrtBoostError)


def test_a_rate_of_lists_or_parameters_is_not_numeric(names):
    """``nn.Optimizer`` takes the rate first, the other optimizers the parameters."""
    for rate in ([[1, 2], [3]], names["params"]):
        with pytest.raises(TypeError, match="'learning_rate' is not numeric") as caught:
            nn.Optimizer(rate, names["params"])
        assert_three_lines(caught.value)
