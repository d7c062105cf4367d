"""What a log amounts to, and the CSV file of it."""

from __future__ import annotations

import csv
import math

import pytest

from ortboost.training.callbacks import Goal
from ortboost.training.history import RunHistory, write_csv
from ortboost.training.logs import EventLog


def write_log(path, name="first"):
    with EventLog(path) as log:
        log.write("start", 0, epochs=2, steps_per_epoch=2, steps=None, about={"run": name})
        rates = {"learning_rate": 0.1, "learning_rate/head": 0.2}
        for step, loss in ((1, 0.1 + 0.2), (2, math.nan)):
            fields = {"loss": loss, "overflow": step == 2, "total_skips": step - 1}
            log.write("step", step, epoch=0, learning_rate=rates, metrics={"accuracy": 1}, **fields)
        log.write("validation", 2, epoch=0, val_loss=0.5, val_accuracy=0.25)
        log.write("epoch", 2, epoch=0, train_loss=0.3)
        log.write("warning", 2, text="careful")
    return path


def test_curves_and_how_the_run_stands(tmp_path):
    run = RunHistory.read(write_log(tmp_path / "log.jsonl"))
    assert (run.name, run.epochs, run.total, run.step, run.epoch) == ("first", 2, 4, 2, 1)
    assert (run.skipped, run.skips, run.warnings, run.reason) == ([2], 1, ["careful"], None)
    assert run.curves["learning_rate/head"].y.tolist() == [0.2, 0.2]
    assert run.curves["loss"].x.tolist() == [1, 2]
    assert math.isnan(run.latest["loss"])
    assert run.monitored == "val_accuracy"
    assert run.best() == (2, 0.25)
    assert run.best("nothing") is None
    run.add({"event": "end", "step": 2, "reason": "interrupted", "seconds": 3.5})
    assert (run.reason, run.seconds, run.sessions) == ("interrupted", 3.5, 1)
    run.add({"event": "end", "step": 2, "reason": "stopped"})
    assert run.seconds is None
    run.add({"event": "start", "step": 2, "epochs": 5, "steps": 9})
    assert (run.reason, run.seconds, run.sessions, run.epochs) == (None, None, 2, 5)
    assert run.total == 9


def test_the_duration_is_that_of_all_sessions():
    run = RunHistory()
    run.add({"event": "start", "step": 0, "seconds": 0.0})
    run.add({"event": "end", "step": 8, "reason": "interrupted", "seconds": 3.5})
    run.add({"event": "start", "step": 8, "seconds": 3.25})  # at its checkpoint
    assert run.seconds is None
    run.add({"event": "end", "step": 9, "reason": "interrupted", "seconds": 1.0})
    assert run.seconds == 4.25
    run.add({"event": "start", "step": 9})  # by an older version
    run.add({"event": "end", "step": 9, "reason": "all epochs done", "seconds": 2.0})
    assert (run.seconds, run.sessions) == (6.25, 3)


def test_a_run_without_a_name_has_that_of_its_folder(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("step", 3, loss=1.0)
    run = RunHistory.read(tmp_path / "log.jsonl")
    assert (run.name, run.monitored, run.best()) == (tmp_path.name, "loss", (3, 1.0))


def test_the_best_value_is_by_what_is_better():
    run = RunHistory()
    for step, value in ((1, 0.5), (2, None), (3, 0.2), (4, 0.4)):
        run.add({"event": "validation", "step": step, "val_loss": value, "val_accuracy": value})
    assert run.best("val_loss") == (3, 0.2)
    assert run.best("val_accuracy") == (1, 0.5)
    assert run.curves["val_loss"].best(Goal("val_loss", "max")) == (1, 0.5)


def test_the_log_says_what_is_better_for_a_metric_of_ones_own():
    for rising, best in ((True, (1, 0.5)), (False, (2, 0.2))):
        run = RunHistory()
        run.add({"event": "start", "step": 0, "rising": {"val_own": rising}})
        for step, value in ((1, 0.5), (2, 0.2)):
            run.add({"event": "validation", "step": step, "val_own": value})
        assert run.best("val_own") == best


@pytest.mark.parametrize("junk", ["text", [1], {}, True, None, -1, 10**400, 1e308], ids=str)
def test_damaged_lines_are_numbers_or_nan(junk):
    run = RunHistory()
    keys = ("loss", "learning_rate", "loss_scales", "metrics", "epoch", "overflow", "total_skips")
    run.add(
        {
            "event": "start",
            "step": 0,
            **dict.fromkeys(("epochs", "steps", "about", "seconds"), junk),
        }
    )
    run.add({"event": "step", "step": 1, **dict.fromkeys(keys, junk)})
    run.add({"event": "epoch", "step": 1, "epoch": junk, "val_loss": junk})
    run.add({"event": "end", "step": 1, "reason": junk, "seconds": junk})
    assert isinstance(run.epoch, int)
    assert isinstance(run.skips, int)
    assert all(isinstance(value, float) for value in run.latest.values())


def test_the_csv_file_has_every_number_to_the_bit(tmp_path):
    runs = [
        RunHistory.read(write_log(tmp_path / f"{name}.jsonl", name)) for name in ("a", "b,\n'c'")
    ]
    with EventLog(tmp_path / "more.jsonl") as log:
        log.write("step", 7, loss=1.0, more=2)
    write_csv([*runs, RunHistory.read(tmp_path / "more.jsonl")], tmp_path / "runs.csv")
    with open(tmp_path / "runs.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["run"], row["step"]) for row in rows] == [
        *(("a", "1"), ("a", "2"), ("b,\n'c'", "1"), ("b,\n'c'", "2")),
        (tmp_path.name, "7"),
    ]
    first, second, last = rows[0], rows[1], rows[-1]
    assert float(first["loss"]) == 0.1 + 0.2
    assert (first["overflow"], first["val_accuracy"], first["more"]) == ("0", "", "")
    assert (second["loss"], second["val_accuracy"], second["train_loss"]) == ("nan", "0.25", "0.3")
    assert (last["loss"], last["more"], last["learning_rate"]) == ("1", "2", "")
