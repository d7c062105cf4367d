"""Event files for TensorBoard, read back record by record."""

from __future__ import annotations

import math
import struct
import sys

import pytest
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.errors import DependencyError, FileError
from ortboost.core.loss_scale import FixedScaleConfig
from ortboost.training import ArraySource, Callback, TrainConfig, Trainer
from ortboost.training.schedules import Constant
from ortboost.training.tensorboard import TensorBoard
from tests.support import assert_three_lines


def read_events(folder):
    """The events of all files (TFRecords) in the order of TensorBoard; checksums are ignored."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.iterdir()):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            (length,) = struct.unpack_from("<Q", raw, at)
            yield Event.FromString(raw[at + 12 : at + 12 + length])
            at += length + 16


def scalars(folder):
    found = {}
    for event in read_events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def fit(folder, *others, about=None, epochs=2):
    stepper = LinearStepper(FixedScaleConfig(4.0), overflow=lambda step: step == 2)
    rates = {"learning_rate": Constant(0.5), "learning_rate/bias": Constant(0.25)}
    config = TrainConfig(epochs, learning_rate=rates, metrics=(), loss_scale=FixedScaleConfig(4.0))
    board = TensorBoard(folder)
    trainer = Trainer(
        stepper, LinearEvaluator(stepper), config, callbacks=[board, *others], about=about
    )
    train = ArraySource(make_data(12), 4, inputs=stepper.inputs)
    return trainer.fit(train, ArraySource(make_data(4), 4, inputs=stepper.inputs))


def test_every_number_of_the_log_is_a_scalar(tmp_path):
    pytest.importorskip("tensorboardX")
    summary = fit(tmp_path / "run", about={"run": "mine", "batch_size": 4, "list": [1]})
    found = scalars(tmp_path / "run")
    names = ("loss", "learning_rate", "learning_rate/bias", "loss_scale", "skipped")
    assert {tag: [step for step, _ in points] for tag, points in found.items()} == {
        **{f"step/{name}": [1, 2, 3, 4, 5, 6] for name in names},
        "validation/loss": [3, 6],
        "epoch/loss": [3, 6],
    }
    assert [value for _, value in found["step/learning_rate/bias"]] == [0.25] * 6
    assert [value for _, value in found["step/skipped"]] == [0, 1, 1, 1, 1, 1]
    assert math.isclose(found["validation/loss"][1][1], summary.metrics["val_loss"], rel_tol=1e-6)
    assert math.isclose(found["epoch/loss"][1][1], summary.metrics["train_loss"], rel_tol=1e-6)


def test_hyper_parameters_are_those_of_the_run(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    fit(tmp_path, about={"run": "mine", "batch_size": 4, "list": [1]}, epochs=1)
    values = [value for event in read_events(tmp_path) for value in event.summary.value]
    (told,) = (value for value in values if value.tag == "_hparams_/session_start_info")
    content = HParamsPluginData.FromString(told.metadata.plugin_data.content)
    parameters = content.session_start_info.hparams
    assert set(parameters) == {"run", "batch_size"}
    assert parameters["run"].string_value == "mine"
    assert parameters["batch_size"].number_value == 4


def test_a_new_session_takes_back_the_steps_that_it_repeats(tmp_path):
    pytest.importorskip("tensorboardX")

    class Fault(Callback):
        def on_step_end(self, run, result):
            if run.step == 2:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(tmp_path, Fault())
    assert len(scalars(tmp_path)["step/loss"]) == 2  # written although the run broke off
    fit(tmp_path, epochs=1)
    begun = [e.step for e in read_events(tmp_path) if e.WhichOneof("what") == "session_log"]
    assert begun == [1, 1]  # each says: what came from step 1 on does not count


def test_a_missing_package_and_a_folder_that_is_none_are_named(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError) as caught:
        fit(tmp_path / "file" / "run")
    assert_three_lines(caught.value)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(DependencyError) as caught:
        TensorBoard(tmp_path)
    assert 'pip install "ortboost[tensorboard]"' in caught.value.fix
