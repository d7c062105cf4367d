"""The callbacks of docs/watching.md work, with fakes of wandb and mlflow."""

from __future__ import annotations

import contextlib
import re
import sys
import types

import pytest
from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.loss_scale import NO_SCALE
from ortboost.training import ArraySource, Callback, TrainConfig, Trainer
from tests.support import ROOT

PAGE = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ABOUT = {"run": "mine", "batch_size": 4}


class Service(types.ModuleType):
    """Records calls; ``init`` returns the module itself, which also acts as a run of wandb."""

    # The arguments are those of wandb 0.31.0 and mlflow 3.17.2; other ones are errors.
    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def init(self, *, project, name, config):
        self.calls.append(("init", name, config))
        return self

    def log(self, data, step=None):
        self.calls.append(("log", data, step))

    def finish(self, exit_code=None):
        self.calls.append(("finish", exit_code))

    def start_run(self, *, run_name):
        self.calls.append(("start_run", run_name))

    def log_params(self, params):
        self.calls.append(("log_params", dict(params)))

    def log_metrics(self, metrics, step=None):
        self.calls.append(("log_metrics", metrics, step))

    def end_run(self, status="FINISHED"):
        self.calls.append(("end_run", status))


class Fault(Callback):
    def on_step_end(self, run, result):
        if run.step == 11:
            raise RuntimeError


def watched(service, name, monkeypatch, *others):
    found = Service(service)
    monkeypatch.setitem(sys.modules, service, found)
    (block,) = (block for block in BLOCKS if f"import {service}" in block)
    names = {}
    exec(block, names)
    stepper = LinearStepper()
    config = TrainConfig(epochs=2, metrics=(), loss_scale=NO_SCALE)
    callbacks = [names[name](), *others]
    evaluator = LinearEvaluator(stepper)
    trainer = Trainer(stepper, evaluator, config, callbacks=callbacks, about=ABOUT)
    data = ArraySource(make_data(24), 4, inputs=stepper.inputs)
    with pytest.raises(RuntimeError) if others else contextlib.nullcontext():
        trainer.fit(data, ArraySource(make_data(4), 4, inputs=stepper.inputs))
    return found.calls


def test_weights_and_biases(monkeypatch):
    calls = watched("wandb", "WandB", monkeypatch)
    assert calls[0] == ("init", "mine", ABOUT)
    assert calls[-1] == ("finish", 0)
    logged = {}
    for _, data, step in calls[1:-1]:
        logged.setdefault(step, {}).update(data)
    assert list(logged) == list(range(1, 13))
    usual = {"loss", "loss_scale", "skipped", "learning_rate", "learning_rate/bias"}
    assert [set(data) - usual for data in logged.values()].count({"val_loss"}) == 2
    assert all(usual <= set(data) for data in logged.values())
    assert watched("wandb", "WandB", monkeypatch, Fault())[-1] == ("finish", 1)


def test_mlflow(monkeypatch):
    calls = watched("mlflow", "MLflow", monkeypatch)
    assert calls[:2] == [("start_run", "mine"), ("log_params", ABOUT)]
    assert [(step, "val_loss" in data) for _, data, step in calls[2:-1]] == [
        (6, True),
        (10, False),
        (12, True),
    ]
    assert calls[-1] == ("end_run", "FINISHED")
    assert watched("mlflow", "MLflow", monkeypatch, Fault())[-1] == ("end_run", "FAILED")


def test_the_page_names_commands_and_options_that_there_are():
    from ortboost.cli.app import app

    known = {command.name for command in app.registered_commands}
    assert set(re.findall(r"^ortboost (\w+)", PAGE, re.MULTILINE)) <= known
    assert len(BLOCKS) == 2
