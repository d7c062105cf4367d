"""Comparing and following runs: folders with a manifest and a log, as training leaves them."""

from __future__ import annotations

import json
import os
import socket

import pytest

from ortboost.api import follow, runs
from ortboost.core.errors import FileError, UsageError
from ortboost.training.logs import EventLog
from tests.support import assert_three_lines

DYNAMIC = {"kind": "dynamic", "init": 65536.0, "window": 2000}


def make_run(folder, *, accuracy=(), overflows=1, reason="all epochs done", **config):
    folder.mkdir(parents=True)
    settings = {"less_bn": False, "grad_freeze": None, "loss_scale": DYNAMIC, **config}
    manifest = {"config": settings, "engine": "portable", "source": "net.onnx"}
    (folder / "program.json").write_text(json.dumps(manifest))
    if accuracy:
        with EventLog(folder / "log.jsonl") as log:
            begin(log, epochs=len(accuracy))
            for epoch, value in enumerate(accuracy):
                log.write("step", epoch + 1, epoch=epoch, loss=0.5, overflow=epoch < overflows)
                log.write("validation", epoch + 1, val_accuracy=value, val_loss=1 - value)
                log.write("epoch", epoch + 1, epoch=epoch, train_loss=0.25)
            if reason:
                log.write("end", len(accuracy), reason=reason, seconds=2.5)
    return folder


def begin(log, epochs=1):
    about = {"run": "x", "batch_size": 8}
    log.write("start", 0, epochs=epochs, steps_per_epoch=1, steps=epochs, about=about)


def lock(folder, pid):
    (folder / "train.lock").write_text(json.dumps({"pid": pid, "host": socket.gethostname()}))


def test_the_best_run_comes_first_with_what_is_its_own(tmp_path):
    make_run(tmp_path / "a" / "one", accuracy=[0.5, 0.75], less_bn=True)
    make_run(tmp_path / "two", accuracy=[0.8, 0.7], reason="early stop: no better")
    make_run(tmp_path / "new")
    make_run(tmp_path / "killed", accuracy=[0.1], reason=None)
    make_run(tmp_path / ".." / tmp_path.name / "two" / "inner", accuracy=[0.2])
    found = {run.name: run for run in runs(tmp_path)}
    assert list(found) == ["two", "a/one", "two/inner", "killed", "new"]
    two = found["two"]
    assert (two.metric, two.best, two.best_step, two.seconds) == ("val_accuracy", 0.8, 1, 2.5)
    assert (two.epochs, two.planned, two.steps, two.skipped) == (2, 2, 2, 1)
    assert {name: run.status for name, run in found.items()} == {
        "two": "early stop: no better",
        "a/one": "all epochs done",
        "two/inner": "all epochs done",
        "killed": "stopped",
        "new": "not trained",
    }
    assert found["a/one"].differs == {"less_bn": True, "batch_size": 8}  # `new` was not trained
    assert (two.differs, found["new"].differs) == ({"batch_size": 8}, {})
    assert [run.name for run in runs(tmp_path, metric="val_loss")][:2] == ["two", "a/one"]
    json.dumps([run.to_dict() for run in found.values()])
    assert repr(two) == (
        "<RunInfo: name two; of net.onnx; status early stop: no better; "
        "val_accuracy 0.8 at step 1; epochs 2 of 2; steps 2; skipped 1>"
    )


def test_the_log_says_which_run_is_the_better_one(tmp_path):
    for name, value in (("low", 0.1), ("high", 0.9)):
        with EventLog(make_run(tmp_path / name) / "log.jsonl") as log:
            log.write("start", 0, epochs=1, steps=1, about={}, rising={"val_own": True})
            log.write("validation", 1, val_own=value)
    assert [run.name for run in runs(tmp_path, metric="val_own")] == ["high", "low"]


def test_trained_runs_without_the_metric_come_before_untrained_ones(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", accuracy=[0.5])
    with EventLog(make_run(tmp_path / "c") / "log.jsonl") as log:
        begin(log)
        log.write("step", 1, epoch=0, loss=0.5, overflow=False)
    assert [run.name for run in runs(tmp_path, metric="val_accuracy")] == ["b", "c", "a"]


def test_settings_of_one_kind_differ_in_what_differs(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", loss_scale={**DYNAMIC, "window": 10})
    make_run(tmp_path / "c", loss_scale={"kind": "fixed", "scale": 8.0}, grad_freeze={"p": 0.5})
    a, b, c = (run.differs for run in runs(tmp_path))
    assert a == {"loss_scale": {"kind": "dynamic", "window": 2000}}
    assert b == {"loss_scale": {"kind": "dynamic", "window": 10}}
    assert c == {"loss_scale": {"kind": "fixed"}, "grad_freeze": True}


def test_empty_settings_are_not_listed(tmp_path):
    make_run(tmp_path / "a", inputs={"dims": {}, "batch_axes": {}})
    make_run(tmp_path / "b", inputs={"dims": {}, "batch_axes": {"x": 1}})
    make_run(tmp_path / "c", inputs={"dims": {"n": 2}, "batch_axes": {}})
    a, b, c = (run.differs for run in runs(tmp_path))
    assert a == {}
    assert b == {"inputs": {"batch_axes": {"x": 1}}}
    assert c == {"inputs": {"dims": {"n": 2}}}


def test_a_run_that_goes_on_is_said_to(tmp_path):
    run = make_run(tmp_path / "run", accuracy=[0.5], reason=None)
    lock(run, os.getpid())
    assert [one.status for one in runs(run)] == ["running"]
    lock(run, "none")
    assert [one.status for one in runs(run)] == ["stopped"]


@pytest.mark.parametrize("pid", [[], {}, None, "1", -1, 0, True, 10**30, 1.5], ids=str)
def test_a_damaged_lock_names_nobody(pid, tmp_path):
    run = make_run(tmp_path / "run", accuracy=[0.5], reason=None)
    lock(run, pid)
    assert [one.status for one in runs(run)] == ["stopped"]


def test_folders_of_one_name_are_told_apart(tmp_path):
    one, two = (make_run(tmp_path / side / "run", accuracy=[0.5]) for side in "ab")
    assert [run.name for run in runs([one, two])] == [str(two), "run"]


def test_numbers_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    make_run(tmp_path / "a", accuracy=[0.5])
    make_run(tmp_path / "b", accuracy=[0.25])
    runs(tmp_path, plot=tmp_path / "runs.png", csv=tmp_path / "runs.csv")
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["a", "1"], ["b", "1"]]
    assert (tmp_path / "runs.png").stat().st_size > 1000


def test_what_cannot_be_compared_is_refused(tmp_path):
    make_run(tmp_path / "run", accuracy=[0.5])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "program.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    refused = [
        (FileError, "No runs found", tmp_path / "empty", {}),
        (FileError, "damaged", [tmp_path / "bad"], {}),
        (UsageError, "has a metric 'val_acuracy'", tmp_path / "run", {"metric": "val_acuracy"}),
    ]
    for kind, match, sources, options in refused:
        with pytest.raises(kind, match=match) as caught:
            runs(sources, **options)
        assert_three_lines(caught.value)


def test_a_damaged_manifest_does_not_hide_the_other_runs(tmp_path):
    make_run(tmp_path / "good", accuracy=[0.5])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "program.json").write_text('{"config"')
    found = runs(tmp_path, csv=tmp_path / "runs.csv")
    assert [(run.name, run.status) for run in found] == [
        ("good", "all epochs done"),
        ("bad", "damaged program.json"),
    ]


# ---- following ----------------------------------------------------------------------------------


def test_following_waits_sees_everything_and_ends_with_the_run(tmp_path):
    folder = tmp_path / "run"
    log = EventLog(folder / "log.jsonl")

    def first():
        folder.mkdir()
        lock(folder, os.getpid())

    def noise():
        with open(folder / "log.jsonl", "a") as stream:
            stream.write("noise\n")

    def cut():
        log.rewind(2)
        log.write("start", 1, epochs=3, steps=3)

    acts = iter(
        [
            first,
            lambda: begin(log),
            lambda: log.write("step", 1, loss=0.5),
            noise,
            lambda: log.write("step", 2, loss=0.25),
            cut,  # a resumed run
            lambda: log.write("end", 1, reason="interrupted"),
        ]
    )
    seen = [
        (history.step, history.sessions, history.reason, [event["event"] for event in events])
        for history, events in follow(folder, wait=lambda seconds: next(acts)())
    ]
    assert seen == [
        (0, 0, None, []),
        (0, 1, None, ["start"]),
        (1, 1, None, ["step"]),
        (2, 1, None, ["step"]),
        (1, 2, None, ["start", "step", "start"]),
        (1, 2, "interrupted", ["end"]),
    ]
    log.close()


def never(seconds):
    raise AssertionError("there is nothing to wait for")


def test_a_run_that_is_over_is_shown_at_once(tmp_path):
    run = make_run(tmp_path / "run", accuracy=[0.5])
    ((history, events),) = follow(run, wait=never)
    assert (history.reason, len(events)) == ("all epochs done", 5)


def test_a_run_whose_process_is_gone_has_stopped(tmp_path):
    run = make_run(tmp_path / "run", accuracy=[0.5], reason=None)
    lock(run, "none")
    *_, (history, events) = follow(run, wait=never)
    assert history.reason.startswith("stopped")
    assert events[0]["event"] == "end"


def test_a_log_without_an_event_ends_the_waiting(tmp_path):
    run = make_run(tmp_path / "run", accuracy=[0.5])
    (run / "log.jsonl").write_bytes(b'{"event": "')
    waits = []
    with pytest.raises(FileError, match="no event that can be read"):
        list(follow(run, wait=waits.append))
    assert len(waits) == 1  # it may have been the first line of a process that starts


def test_what_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be read"):
        next(follow(tmp_path / "file"))
