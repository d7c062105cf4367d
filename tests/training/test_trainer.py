"""The training loop on a stepper in numpy."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading

import numpy as np
import pytest
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.errors import ConfigError, DivergedError, UsageError
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig
from ortboost.training import trainer as trainer_module
from ortboost.training.callbacks import BestModel, Callback, EarlyStopping, Goal
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.config import TrainConfig
from ortboost.training.data import ArraySource, IterableSource
from ortboost.training.logs import EventLog, read_log
from ortboost.training.run_state import step_seed
from ortboost.training.schedules import Constant, PerStep
from ortboost.training.signals import Interrupted, Terminated
from ortboost.training.trainer import Trainer


def train_source(stepper, length=24, batch=4, **options):
    return ArraySource(make_data(length), batch, shuffle=True, inputs=stepper.inputs, **options)


def trainer_for(
    stepper, *, callbacks=(), store=None, log=None, progress=None, about=None, **options
):
    config = TrainConfig(**{"epochs": 2, "learning_rate": Constant(0.05), "metrics": (), **options})
    return Trainer(
        stepper,
        LinearEvaluator(stepper),
        config,
        callbacks=callbacks,
        store=store,
        log=log,
        progress=progress,
        about=about,
    )


class Screen:
    """Collects what a run shows."""

    def __init__(self):
        self.lines, self.infos, self.calls = [], [], []

    def start(self, total, done):
        self.calls.append(("start", total, done))

    def step(self, info):
        self.infos.append(info)

    def result(self, text):
        self.message(text)

    def message(self, text):
        self.lines.append(text)

    def close(self):
        self.calls.append("close")


def test_it_learns_and_says_so():
    stepper, screen = LinearStepper(), Screen()
    trainer = trainer_for(stepper, epochs=40, learning_rate=Constant(0.02), progress=screen)
    validation = ArraySource(make_data(20, seed=8), 7, inputs=stepper.inputs)
    summary = trainer.fit(train_source(stepper), validation)
    np.testing.assert_allclose(stepper.w, [1.0, -2.0, 0.5], atol=0.03)
    assert (summary.reason, summary.epochs, summary.steps) == ("all epochs done", 40, 240)
    assert summary.applied_steps == summary.session_steps == 240
    assert summary.metrics["val_loss"] < 1e-3
    assert summary.healthy
    assert summary.steps_per_second > 0
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["checkpoint"] is None
    assert screen.calls == [("start", 240, 0), "close"]
    assert [info.step for info in screen.infos] == list(range(1, 241))
    assert sum(line.startswith("epoch ") for line in screen.lines) == 40
    assert not [t for t in threading.enumerate() if t.name == "ortboost-prefetch"]


@pytest.mark.parametrize("how", [{"prefetch": 0}, {"prefetch": 1}, {"prefetch": 3}, {"workers": 3}])
def test_reading_ahead_changes_nothing(how):
    stepper = LinearStepper()
    trainer_for(stepper, **how).fit(train_source(stepper))
    expected = LinearStepper()
    source = train_source(expected)
    for epoch in range(2):
        for batch in source.epoch(epoch):
            step = len(expected.rates)
            hyper = {"learning_rate": 0.05, "learning_rate/bias": 0.05}
            expected.step(batch, hyper, seed=step_seed(0, step))
    assert stepper.state()["w"].tobytes() == expected.state()["w"].tobytes()
    assert stepper.seen == expected.seen


def test_the_share_of_time_that_steps_wait_is_measured(monkeypatch, tmp_path):
    clock = [0.0]
    monkeypatch.setattr(trainer_module.time, "perf_counter", lambda: clock[0])

    class Slow(LinearStepper):
        def step(self, *arguments, **more):
            clock[0] += 1
            return super().step(*arguments, **more)

    class Late:
        steps_per_epoch = 6

        def __init__(self, source):
            self.fingerprint, self._source = source.fingerprint, source

        def epoch(self, epoch, start=0):
            for batch in self._source.epoch(epoch, start):
                clock[0] += 3
                yield batch

    stepper = Slow()
    log = EventLog(tmp_path / "log.jsonl")
    trainer = trainer_for(stepper, log=log, prefetch=0, epochs=2)
    assert trainer.fit(Late(train_source(stepper))).data_wait == 0.75
    assert read_log(log.path)[-1]["data_wait"] == 0.75


def test_the_learning_rate_counts_applied_updates_only():
    overflow = {2, 3, 7}
    stepper = LinearStepper(FixedScaleConfig(2.0), overflow=lambda step: step in overflow)
    values = tuple(0.01 * (i + 1) for i in range(12))
    trainer_for(stepper, learning_rate=PerStep(values), loss_scale=FixedScaleConfig(2.0)).fit(
        train_source(stepper)
    )
    indices = [0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8]
    assert stepper.rates == [values[i] for i in indices]


def test_groups_follow_their_own_schedule():
    class Seen(LinearStepper):
        def step(self, feeds, hyper, *, seed):
            self.hyper = hyper
            return super().step(feeds, hyper, seed=seed)

    stepper = Seen()
    rates = {"learning_rate": Constant(0.1), "learning_rate/bias": Constant(0.2)}
    trainer_for(stepper, learning_rate=rates).fit(train_source(stepper))
    assert stepper.hyper == {"learning_rate": 0.1, "learning_rate/bias": 0.2}
    trainer_for(stepper, learning_rate={"learning_rate": Constant(0.3)}).fit(train_source(stepper))
    assert stepper.hyper == {"learning_rate": 0.3, "learning_rate/bias": 0.3}
    with pytest.raises(ConfigError, match="did you mean 'learning_rate/bias'"):
        trainer_for(stepper, learning_rate={"learning_rate/bais": Constant(0.1)})
    with pytest.raises(ConfigError, match="'learning_rate' has no schedule"):
        trainer_for(stepper, learning_rate={"learning_rate/bias": Constant(0.1)})


def test_each_step_has_its_own_seed_made_of_run_seed_and_step():
    seeds = []
    for run_seed in (0, 1):
        stepper = LinearStepper()
        trainer_for(stepper, seed=run_seed).fit(train_source(stepper))
        seeds += stepper.seeds
    assert len(set(seeds)) == 24
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds[3] == step_seed(0, 3)


def test_the_log_tells_everything(tmp_path):
    stepper = LinearStepper(FixedScaleConfig(4.0), overflow=lambda step: step == 2)
    trainer = trainer_for(
        stepper,
        log=EventLog(tmp_path / "log.jsonl"),
        store=CheckpointStore(tmp_path / "c"),
        loss_scale=FixedScaleConfig(4.0),
        log_every=4,
        about={"run": "mine", "seed": 0},
    )
    trainer.fit(train_source(stepper), ArraySource(make_data(8), 8))
    events = read_log(tmp_path / "log.jsonl")
    assert events[0]["about"] == {"run": "mine", "seed": 0}
    assert events[0]["steps"] == 12
    kinds = [event["event"] for event in events if event["event"] != "step"]
    each = ["validation", "epoch", "checkpoint"]
    assert kinds == ["start", *each, *each, "end"]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["step"] for event in steps] == [2, 4, 8, 12]  # the skipped one always
    assert steps[0]["overflow"]
    assert steps[0]["loss_scale"] == 4.0
    assert steps[-1]["learning_rate"] == {"learning_rate": 0.05, "learning_rate/bias": 0.05}
    assert (steps[-1]["applied_steps"], steps[-1]["total_skips"]) == (11, 1)
    assert events[-1]["reason"] == "all epochs done"


def test_the_training_loss_is_the_mean_over_samples_of_finite_losses():
    class Told(LinearStepper):
        losses = iter([1.0, math.inf, 3.0])

        def step(self, feeds, hyper, *, seed):
            from dataclasses import replace

            return replace(super().step(feeds, hyper, seed=seed), loss=next(self.losses))

    stepper = Told()
    summary = trainer_for(stepper, epochs=1).fit(train_source(stepper, length=10))  # 4 + 4 + 2
    assert summary.metrics["train_loss"] == pytest.approx((4 * 1.0 + 2 * 3.0) / 6)


def test_callbacks_are_called_in_order_and_can_stop():
    calls = []

    class Spy(Callback):
        def on_train_begin(self, run):
            calls.append("begin")

        def on_step_end(self, run, result):
            calls.append(run.step)
            if run.step == 8:
                run.stop("enough")

        def on_validation_end(self, run, metrics):
            calls.append(sorted(metrics))

        def on_epoch_end(self, run, metrics):
            calls.append((run.epoch, sorted(metrics)))

        def on_train_end(self, run):
            calls.append("end")

    stepper = LinearStepper()
    trainer = trainer_for(stepper, callbacks=[Spy()])
    summary = trainer.fit(train_source(stepper), ArraySource(make_data(8), 8))
    assert calls == [
        "begin",
        1,
        2,
        3,
        4,
        5,
        6,
        ["val_loss"],
        (1, ["train_loss"]),
        7,
        8,
        ["val_loss"],
        "end",
    ]
    assert summary.reason == "enough"


def test_two_callbacks_of_one_name_are_refused():
    with pytest.raises(UsageError, match="same name"):
        trainer_for(LinearStepper(), callbacks=[BestModel(), BestModel()])


def test_early_stop_and_best_model(tmp_path):
    # The rate is far too high after the third epoch, so the model gets worse again.
    rates = PerStep((0.03,) * 18 + (1.5,))
    stepper, store = LinearStepper(), CheckpointStore(tmp_path, keep=1)
    callbacks = [BestModel(), EarlyStopping(patience=2)]
    trainer = trainer_for(stepper, epochs=50, learning_rate=rates, callbacks=callbacks, store=store)
    summary = trainer.fit(train_source(stepper), ArraySource(make_data(20, seed=8), 20))
    assert summary.reason.startswith("early stop: no better val_loss")
    assert summary.epochs == 5
    assert summary.best["val_loss"]["step"] == 18
    assert store.steps() == [18, 30]
    assert summary.best_checkpoint == store.path(18)
    best = LinearStepper()
    best.load_state(store.best().state)
    data = make_data(20, seed=8)
    loss = float(LinearEvaluator(best).evaluate(data)["loss"])
    assert loss == pytest.approx(summary.best["val_loss"]["value"])


def test_max_steps():
    stepper = LinearStepper()
    summary = trainer_for(stepper, max_steps=7).fit(train_source(stepper))
    assert (summary.reason, summary.steps, summary.epochs) == ("max_steps reached", 7, 1)


def test_a_run_left_inside_an_epoch_validates_and_pins_without_touching_its_checkpoint(tmp_path):
    stepper, store = LinearStepper(), CheckpointStore(tmp_path)
    trainer = trainer_for(stepper, max_steps=3, store=store, callbacks=[BestModel()])
    summary = trainer.fit(train_source(stepper), ArraySource(make_data(8), 8))
    assert summary.best["val_loss"]["step"] == 3
    assert store.best_step() == 3
    progress = store.best().progress
    assert progress["validated_step"] == -1
    none = {"monitor": "val_loss", "best": None, "best_step": 0, "waited": 0}
    assert progress["callbacks"] == {"BestModel": none}


def test_validation_every_n_steps(tmp_path):
    stepper = LinearStepper()
    trainer = trainer_for(stepper, validate_every=4, log=EventLog(tmp_path / "log.jsonl"))
    trainer.fit(train_source(stepper), ArraySource(make_data(8), 8))
    found = [e["step"] for e in read_log(tmp_path / "log.jsonl") if e["event"] == "validation"]
    assert found == [4, 6, 8, 12]  # the end of the second epoch is step 12: once, not twice


def test_an_iterable_of_unknown_length():
    stepper = LinearStepper()
    data = make_data(12)
    batches = [(data["x"][i : i + 4], data["labels"][i : i + 4]) for i in (0, 4, 8)]
    summary = trainer_for(stepper).fit(IterableSource(lambda: iter(batches), stepper.inputs))
    assert (summary.steps, summary.epochs) == (6, 2)
    with pytest.raises(UsageError, match="no batches"):
        trainer_for(stepper).fit(IterableSource(list, stepper.inputs))


def test_a_fixed_batch_axis_is_kept_in_validation_too():
    stepper = LinearStepper(batch=4)
    trainer = trainer_for(stepper)
    source = train_source(stepper, length=10, drop_last=True)
    trainer.fit(source, ArraySource(make_data(6), 4, inputs=stepper.inputs))
    assert set(trainer.evaluator.sizes) == {4}


def poisoned(length=24):
    data = make_data(length)
    data["x"][:] = np.inf
    return data


def test_it_stops_names_the_tensors_and_saves_when_nothing_helps(tmp_path):
    scale = DynamicScaleConfig(init_scale=4.0, scale_window=3)
    stepper, store = LinearStepper(scale), CheckpointStore(tmp_path / "c")
    log = EventLog(tmp_path / "log.jsonl")
    trainer = trainer_for(
        stepper, epochs=99, loss_scale=scale, max_skips_at_min=5, store=store, log=log
    )
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(DivergedError, match="5 steps in a row") as caught,
    ):
        trainer.fit(ArraySource(poisoned(), 4, inputs=stepper.inputs))
    # 4 -> 2 -> 1, and from the step on that ends at the minimum five are counted.
    assert caught.value.where == "step 6; not finite, or too large: error, loss"
    assert caught.value.exit_status == 6
    assert store.latest().checkpoint.step == 6
    assert read_log(tmp_path / "log.jsonl")[-1]["nonfinite"] == ["error", "loss"]


def test_a_scale_that_grew_to_infinity_stops_the_run(tmp_path):
    scale = DynamicScaleConfig(init_scale=2.0**127, scale_window=1, max_scale=None)
    stepper = LinearStepper(scale, overflow=lambda step: step >= 2)
    log = EventLog(tmp_path / "log.jsonl")
    trainer = trainer_for(stepper, epochs=99, loss_scale=scale, max_skips_at_min=5, log=log)
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match="to infinity") as caught:
        trainer.fit(train_source(stepper))
    assert "max_scale" in caught.value.fix
    assert read_log(tmp_path / "log.jsonl")[-1]["reason"] == "diverged"


def test_hopeless_steps_are_counted_across_a_restart(tmp_path):
    scale, store = (
        DynamicScaleConfig(init_scale=4.0, scale_window=3),
        CheckpointStore(tmp_path / "c"),
    )
    options = {"epochs": 99, "loss_scale": scale, "max_skips_at_min": 5, "store": store}
    stepper = LinearStepper(scale)
    source = ArraySource(poisoned(), 4, inputs=stepper.inputs)
    with np.errstate(invalid="ignore"):
        trainer_for(stepper, max_steps=4, **options).fit(source)
        with pytest.raises(DivergedError) as caught:
            trainer_for(LinearStepper(scale), **options).fit(source, resume=True)
    assert caught.value.where.startswith("step 6;")


@pytest.mark.parametrize("validated", [True, False])
def test_a_loss_that_is_nan_at_the_end_is_no_good_end(tmp_path, validated):
    """Before, the scale was found 'healthy' and the exit status was 0."""
    scale, store = FixedScaleConfig(1.0), CheckpointStore(tmp_path / "c")
    stepper, log = LinearStepper(scale), EventLog(tmp_path / "log.jsonl")
    trainer = trainer_for(stepper, loss_scale=scale, store=store, log=log)
    held_out = ArraySource(poisoned(), 4, inputs=stepper.inputs) if validated else None
    source = train_source(stepper)
    if not validated:
        source = ArraySource(poisoned(), 4, inputs=stepper.inputs)
    with np.errstate(invalid="ignore"), pytest.raises(DivergedError, match="is nan") as caught:
        trainer.fit(source, held_out)
    assert ("val_loss" if validated else "train_loss") in caught.value.what
    assert caught.value.exit_status == 6
    assert store.latest().checkpoint.step == 12
    ends = [event for event in read_log(tmp_path / "log.jsonl") if event["event"] == "end"]
    assert [event["reason"] for event in ends] == ["diverged"]


class Faulty:
    """Validation data whose second batch cannot be read."""

    steps_per_epoch = 2

    def __init__(self, stepper, good=False):
        self.good, self._source = good, ArraySource(make_data(8), 4, inputs=stepper.inputs)

    def epoch(self, epoch, start=0):
        first, second = self._source.epoch(epoch, start)
        yield first
        if not self.good:
            raise UsageError("A label is no class.", where="batch 1", fix="Mend it.")
        yield second

    def fingerprint(self):
        return {}


def test_a_fault_of_the_validation_data_does_not_lose_the_epoch(tmp_path):
    one, other = LinearStepper(), LinearStepper()
    store = CheckpointStore(tmp_path / "c")
    with pytest.raises(UsageError, match="no class") as caught:
        trainer_for(one, store=store).fit(train_source(one), Faulty(one))
    assert caught.value.fix == "Mend it. The training is saved at step 6: continue with --resume."
    resumed = LinearStepper()
    trainer_for(resumed, store=store).fit(train_source(resumed), Faulty(one, True), resume=True)
    trainer_for(other).fit(train_source(other), Faulty(other, True))
    np.testing.assert_array_equal(resumed.w, other.w)
    assert resumed.seeds == other.seeds[6:]


@pytest.mark.parametrize(("launch", "saved"), [({}, [4]), ({"id": "x"}, [])])
def test_a_batch_that_cannot_be_read_does_not_lose_the_steps_before(tmp_path, launch, saved):
    stepper, store = LinearStepper(), CheckpointStore(tmp_path)
    trainer = Trainer(stepper, None, TrainConfig(metrics=()), store=store, launch=launch)
    batches = [make_data(4, seed=i) for i in range(4)]
    with pytest.raises(UsageError, match="no array for the input 'labels'") as caught:
        trainer.fit(IterableSource([*batches, {"x": 1}], stepper.inputs))
    assert store.steps() == saved
    assert caught.value.fix.endswith("The training is saved at step 4.") == bool(saved)


def test_nor_does_an_exception_of_the_users_own_data(tmp_path):
    stepper, store = LinearStepper(), CheckpointStore(tmp_path)

    def batches():
        yield from (make_data(4, seed=i) for i in range(4))
        raise ValueError("the server is gone")

    trainer = Trainer(stepper, None, TrainConfig(metrics=()), store=store)
    with pytest.raises(ValueError, match="the server is gone"):
        trainer.fit(IterableSource(batches, stepper.inputs))
    assert store.steps() == [4]


@pytest.mark.parametrize(
    ("event", "step"),
    [("on_step_begin", 3), ("on_step_end", 3), ("on_validation_end", 4), ("on_epoch_end", 4)],
)
def test_nor_does_a_callback_that_raises(tmp_path, event, step):
    class Fails(Callback):
        name = "fails"

    def fail(self, run, *arguments):
        if run.step == step:
            raise RuntimeError("the server is gone")

    setattr(Fails, event, fail)

    def trainer(stepper, callbacks, store=None):
        config = TrainConfig(metrics=(), epochs=2)
        evaluator = LinearEvaluator(stepper)
        return Trainer(stepper, evaluator, config, callbacks=callbacks, store=store)

    stepper, other = LinearStepper(), LinearStepper()
    store, best = CheckpointStore(tmp_path), BestModel(Goal("val_loss"))
    data = make_data(16)
    source = ArraySource(data, 4, inputs=stepper.inputs)
    with pytest.raises(RuntimeError, match="the server is gone"):
        trainer(stepper, [best, Fails()], store).fit(source, source)
    assert store.steps() == [step]
    assert store.best_step() == (step if event != "on_step_begin" and step == 4 else None)
    resumed = LinearStepper()
    source = ArraySource(data, 4, inputs=resumed.inputs)
    found = trainer(resumed, [BestModel(Goal("val_loss"))], store).fit(source, source, resume=True)
    wanted = trainer(other, []).fit(source, source)
    np.testing.assert_array_equal(resumed.w, other.w)
    assert found.metrics == wanted.metrics


def test_a_stream_for_validation_is_looked_at_before_the_first_step(tmp_path):
    stepper = LinearStepper()
    bad = [{"x": np.full((2, 3), np.nan, np.float32), "labels": np.zeros(2, np.float32)}]
    with pytest.raises(UsageError, match="NaN"):
        trainer_for(stepper).fit(train_source(stepper), IterableSource(bad, stepper.inputs))
    assert stepper.seeds == []


def test_an_early_warning_is_shown_and_logged(tmp_path):
    scale, screen = DynamicScaleConfig(init_scale=2.0**20, scale_window=50), Screen()
    stepper = LinearStepper(scale, overflow=lambda step: 3 <= step < 9)
    trainer = trainer_for(
        stepper, loss_scale=scale, warn_halvings=4, progress=screen, log=EventLog(tmp_path / "l")
    )
    summary = trainer.fit(train_source(stepper))
    assert [line for line in screen.lines if "shrank 4 times" in line]
    assert [e for e in read_log(tmp_path / "l") if e["event"] == "warning"]
    assert summary.skipped_steps == 6


class SignalInStep(LinearStepper):
    def __init__(self, number, at):
        super().__init__()
        self.number, self.at = number, at

    def step(self, feeds, hyper, *, seed):
        if self.scale.cur_iter == self.at:
            os.kill(os.getpid(), self.number)
        return super().step(feeds, hyper, seed=seed)


@pytest.mark.parametrize(
    ("number", "kind", "status"),
    [(signal.SIGINT, Interrupted, 130), (signal.SIGTERM, Terminated, 143)],
)
def test_a_signal_finishes_the_step_saves_and_restores_the_handlers(tmp_path, number, kind, status):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    stepper, store = SignalInStep(number, 5), CheckpointStore(tmp_path)
    with pytest.raises(kind) as caught:
        trainer_for(stepper, store=store).fit(train_source(stepper))
    assert caught.value.exit_status == status
    assert stepper.applied == 5
    assert store.latest().checkpoint.step == 5
    assert caught.value.where == str(store.path(5))
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_in_a_validation_ends_it_and_the_run_goes_on_from_there(tmp_path):
    class SignalInValidation(LinearEvaluator):
        def evaluate(self, feeds):
            if len(self.sizes) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().evaluate(feeds)

    stepper, store = LinearStepper(), CheckpointStore(tmp_path)
    trainer = trainer_for(stepper, store=store)
    trainer.evaluator = SignalInValidation(stepper)
    validation = ArraySource(make_data(40), 4)
    with pytest.raises(Interrupted):
        trainer.fit(train_source(stepper), validation)
    assert len(trainer.evaluator.sizes) == 2
    progress = store.latest().checkpoint.progress
    assert (progress["step"], progress["epoch"], progress["batch"]) == (6, 0, 6)
    assert progress["validated_step"] == -1
    again = LinearStepper()
    summary = trainer_for(again, store=store).fit(train_source(again), validation, resume=True)
    assert summary.steps == 12
    whole = LinearStepper()
    trainer_for(whole).fit(train_source(whole), validation)
    assert again.w.tobytes() == whole.w.tobytes()


def test_without_a_store_an_interruption_says_that_nothing_was_saved():
    stepper = SignalInStep(signal.SIGINT, 2)
    with pytest.raises(Interrupted, match="after step 2") as caught:
        trainer_for(stepper).fit(train_source(stepper))
    assert "nothing was saved" in caught.value.where


def test_it_runs_outside_the_main_thread_without_handlers():
    results = []
    stepper = LinearStepper()
    source = train_source(stepper)
    thread = threading.Thread(target=lambda: results.append(trainer_for(stepper).fit(source)))
    thread.start()
    thread.join()
    assert results[0].steps == 12


def test_a_failing_step_leaves_no_thread_and_no_handler():
    class Failing(LinearStepper):
        def step(self, feeds, hyper, *, seed):
            raise RuntimeError("kernel")

    before = signal.getsignal(signal.SIGINT)
    stepper, screen = Failing(), Screen()
    with pytest.raises(RuntimeError, match="kernel"):
        trainer_for(stepper, progress=screen).fit(train_source(stepper))
    assert signal.getsignal(signal.SIGINT) is before
    assert screen.calls[-1] == "close"
    assert not [t for t in threading.enumerate() if t.name == "ortboost-prefetch"]


@pytest.mark.usefixtures("runs_are_drawn")
def test_a_missing_matplotlib_does_not_spoil_a_finished_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    stepper, screen = LinearStepper(), Screen()
    trainer = trainer_for(stepper, progress=screen, log=EventLog(tmp_path / "log.jsonl"))
    trainer.plot = tmp_path / "curves.png"
    assert trainer.fit(train_source(stepper)).plot is None
    assert any("ortboost[plot]" in line for line in screen.lines)


@pytest.mark.usefixtures("runs_are_drawn")
def test_a_plot_is_drawn_at_the_end(tmp_path):
    pytest.importorskip("matplotlib")
    stepper = LinearStepper()
    trainer = trainer_for(stepper, log=EventLog(tmp_path / "log.jsonl"))
    trainer.plot = tmp_path / "curves.png"
    assert trainer.fit(train_source(stepper)).plot == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "change",
    [{"epochs": 0}, {"seed": -1}, {"max_steps": 0}, {"log_every": 0}, {"max_skips_at_min": 0}],
)
def test_bad_settings_are_refused(change):
    with pytest.raises(ConfigError, match=f"'{next(iter(change))}'"):
        TrainConfig(**change)


def test_unknown_metrics_and_goals_are_refused():
    with pytest.raises(UsageError, match="did you mean 'accuracy'"):
        trainer_for(LinearStepper(), metrics=("acuracy",))
    stepper = LinearStepper()
    trainer = trainer_for(stepper, callbacks=[BestModel(Goal("val_lost"))])
    with pytest.raises(UsageError, match="Unknown metric 'val_lost'"):
        trainer.fit(train_source(stepper), ArraySource(make_data(8), 8))


class Witness(Callback):
    """Notes what it sees when a session ends."""

    def __init__(self):
        self.closed, self.rates = [], []

    def on_step_end(self, run, result):
        self.rates.append(dict(run.learning_rates))
        if run.step == 3 and self.name in run.about.get("faulty", ()):
            raise RuntimeError

    def on_close(self, run):
        self.closed.append(run.step)


@pytest.mark.parametrize("faulty", [(), ("Witness",)])
def test_callbacks_see_rates_and_what_the_run_is_and_are_closed_whatever_comes(faulty):
    stepper, witness = LinearStepper(), Witness()
    trainer = trainer_for(stepper, callbacks=[witness], epochs=1, about={"faulty": faulty})
    with pytest.raises(RuntimeError) if faulty else contextlib.nullcontext():
        trainer.fit(train_source(stepper))
    assert witness.closed == [3 if faulty else 6]
    assert witness.rates[-1] == {"learning_rate": 0.05, "learning_rate/bias": 0.05}


@pytest.mark.usefixtures("runs_are_drawn")
def test_a_run_that_diverged_is_drawn_too(tmp_path):
    pytest.importorskip("matplotlib")
    stepper = LinearStepper(FixedScaleConfig(1.0), overflow=lambda step: step > 1)
    config = TrainConfig(loss_scale=FixedScaleConfig(1.0), max_skips_at_min=3, metrics=())
    log, curves = EventLog(tmp_path / "log.jsonl"), tmp_path / "curves.png"
    with pytest.raises(DivergedError):
        Trainer(stepper, None, config, log=log, plot=curves).fit(train_source(stepper))
    assert read_log(log.path)[-1]["reason"] == "diverged"
    assert read_log(log.path)[-1]["seconds"] > 0
    assert curves.stat().st_size > 10_000
