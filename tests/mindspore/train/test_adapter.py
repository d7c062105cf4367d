"""MindSpore's callbacks in the trainer: called as by Model, or refused before the first step."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ortboost as ob
from ortboost import training
from ortboost.core.errors import ArgumentTypeError, UsageError
from ortboost.core.loss_scale import NoScaleConfig
from ortboost.mindspore.core.arguments import ArgumentValueError
from tests.support import assert_three_lines, small_mlp

CPU = {"device": "cpu", "threads": 1}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    config = ob.ProgramConfig(engine="portable", learning_rate="0.1")
    ob.convert(small_mlp(), folder, config)
    return folder


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    x = random.standard_normal((12, 4)).astype(np.float32)
    return {"x": x, "labels": np.abs(x[:, :3]).argmax(axis=1)}


def refused(kind, run, data, callbacks):
    with pytest.raises(kind) as caught:
        ob.train(run, data, batch_size=4, callbacks=callbacks, **CPU)
    assert_three_lines(caught.value)
    assert not list((run / "checkpoints").glob("*"))
    return caught.value


def losses(run) -> list[float]:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def test_loss_monitor_prints_each_step(run, data, capsys):
    ob.train(run, data, batch_size=4, epochs=2, callbacks=[ob.LossMonitor()], **CPU)
    lines = capsys.readouterr().out.splitlines()
    heads = [f"epoch: {epoch} step: {step}" for epoch in (1, 2) for step in (1, 2, 3)]
    assert [line.split(",")[0] for line in lines] == heads
    printed = [float(line.split("is ")[1]) for line in lines]
    assert printed == pytest.approx(losses(run))


def test_loss_monitor_counts_its_own_steps(run, data, capsys):
    ob.train(run, data, batch_size=4, epochs=2, callbacks=[ob.LossMonitor(2)], **CPU)
    heads = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert heads == ["epoch: 1 step: 2", "epoch: 2 step: 1", "epoch: 2 step: 3"]


def test_loss_monitor_stops_at_a_loss_that_is_no_number(run, data):
    config = ob.ProgramConfig(
        engine="portable", check_finite=False, loss_scale=NoScaleConfig(), learning_rate="1e30"
    )
    ob.build_program(small_mlp(), config).save(run)
    error = refused(ArgumentValueError, run, data, [ob.LossMonitor()])
    assert error.what in ("The loss is nan.", "The loss is inf.")
    assert error.where == "epoch 1, step 2"


def test_time_monitor_prints_each_epoch(run, data, capsys):
    ob.train(run, data, batch_size=4, epochs=2, callbacks=[ob.TimeMonitor()], **CPU)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Train epoch time: ") for line in lines)
    total, each = (float(part.split()[0]) for part in lines[0].split("time: ")[1:])
    assert total == pytest.approx(3 * each, rel=0.01, abs=0.01)


class Recorder(ob.Callback):
    """Writes down what it is told."""

    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def _note(self, method, context):
        args = context.original_args()
        self.seen.append((method, args.cur_epoch_num, args.cur_step_num, args.cur_step_in_epoch))
        if method == "step_end" and args.cur_step_num == self.stop_at:
            context.request_stop()

    def begin(self, run_context):
        args = run_context.original_args()
        assert (args.mode, args.epoch_num, args.batch_num) == ("train", 2, 3)
        self._note("begin", run_context)

    def epoch_begin(self, run_context):
        self._note("epoch_begin", run_context)

    def step_begin(self, run_context):
        self._note("step_begin", run_context)

    def step_end(self, run_context):
        self._note("step_end", run_context)

    def epoch_end(self, run_context):
        self._note("epoch_end", run_context)

    def end(self, run_context):
        self._note("end", run_context)


def as_model_calls_it(network, data, **kwargs):
    """What the same callback is told by Model."""
    recorder = Recorder(**kwargs)
    loss = ob.nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = ob.Model(network, loss, ob.nn.SGD(network.trainable_params(), 0.1))
    batches = [(data["x"][i : i + 4], data["labels"][i : i + 4]) for i in (0, 4, 8)]
    model.train(2, batches, callbacks=recorder)
    return recorder.seen


@pytest.mark.parametrize("stop_at", [None, 2])
def test_the_methods_are_called_as_by_model(run, data, stop_at):
    recorder = Recorder(stop_at)
    ob.train(run, data, batch_size=4, epochs=2, callbacks=[recorder], **CPU)
    expected = as_model_calls_it(ob.load(small_mlp(), device="cpu"), data, stop_at=stop_at)
    if stop_at:  # the trainer leaves an epoch that was stopped without ending it
        expected = [event for event in expected if event[0] != "epoch_end"]
    assert recorder.seen == expected
    assert recorder.seen[-1][0] == "end"


def test_a_stop_is_told(run, data):
    summary = ob.train(run, data, batch_size=4, epochs=2, callbacks=[Recorder(4)], **CPU)
    assert summary.steps == 4
    assert summary.reason == "stopped by Recorder"


class Validated(ob.Callback):
    def __init__(self):
        self.results = []

    def on_eval_end(self, run_context):
        self.results.append(run_context.original_args().eval_results)


def test_results_of_a_validation(run, data):
    callback = Validated()
    summary = ob.train(run, data, data, batch_size=4, epochs=2, callbacks=[callback], **CPU)
    assert len(callback.results) == 2
    assert set(callback.results[1]) == {"loss", "accuracy"}
    assert callback.results[1]["loss"] == summary.metrics["val_loss"]


class Curious(ob.Callback):
    def step_end(self, run_context):
        run_context.original_args().network.trainable_params()


def test_what_only_model_has_is_refused(run, data):
    with pytest.raises(UsageError, match="no 'network'") as caught:
        ob.train(run, data, batch_size=4, callbacks=[Curious()], **CPU)
    assert_three_lines(caught.value)
    assert isinstance(caught.value, AttributeError)
    assert "ortboost.Model" in caught.value.fix


class Eager(ob.Callback):
    def on_eval_step_end(self, run_context):
        pass


def test_a_method_that_is_never_called_is_refused(run, data):
    error = refused(ArgumentValueError, run, data, [Eager()])
    assert "'on_eval_step_end'" in error.what


def test_a_context_manager_is_refused(run, data):
    class Resource(ob.Callback):
        def __enter__(self):
            return self

    assert "'__enter__'" in refused(ArgumentValueError, run, data, [Resource()]).what


def test_model_checkpoint_is_refused(run, data):
    assert "keep=3" in refused(ArgumentValueError, run, data, [ob.ModelCheckpoint()]).fix


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([ob.LossMonitor], "class LossMonitor"),
        ([1], "'callbacks' is [1]"),
        (1, "'callbacks' is 1"),
    ],
)
def test_what_is_no_callback_is_refused(run, data, bad, said):
    assert said in refused(ArgumentTypeError, run, data, bad).what


# ---- early stopping ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "trained", "rising"),
    [
        ("eval_loss", "val_loss", False),
        ("acc", "val_accuracy", True),
        ("accuracy", "val_accuracy", True),
        ("loss", "train_loss", False),
        ("top5", "val_top5", True),
    ],
)
def test_early_stopping_becomes_that_of_the_trainer(monitor, trained, rising):
    callback = ob.EarlyStopping(monitor, min_delta=-0.25, patience=3, baseline=0.5).to_trainer()
    assert isinstance(callback, training.EarlyStopping)
    assert callback.goal == training.Goal(trained, "max" if rising else "min", 0.25)
    assert (callback.patience, callback.best) == (3, 0.5)


def test_early_stopping_stops_a_run_and_its_resumption(run, data):
    def stop():  # no loss is ever below 0
        return ob.EarlyStopping("eval_loss", patience=2, baseline=0.0)

    again = {"batch_size": 4, "epochs": 9, **CPU}
    summary = ob.train(run, data, data, callbacks=[stop()], **again)
    assert (summary.epochs, summary.reason.split(":")[0]) == (2, "early stop")
    resumed = ob.train(run, data, data, callbacks=[stop()], resume=True, **again)
    assert (resumed.epochs, resumed.steps) == (2, 6)
    assert resumed.reason == summary.reason


def test_early_stopping_that_restores_weights_is_refused(run, data):
    error = refused(ArgumentValueError, run, data, [ob.EarlyStopping(restore_best_weights=True)])
    assert "checkpoint 'best'" in error.fix
