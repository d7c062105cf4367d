"""``ortboost watch`` on the command line."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import signal
import subprocess
import sys

import pytest

from ortboost.cli import main
from ortboost.cli.watch import sparkline
from tests.api.test_list_runs import begin, lock, make_run
from tests.cli.test_supervise import HEARD
from tests.support import ROOT


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", accuracy=[0.5, 0.75], less_bn=True)


def test_plain_lines_into_a_pipe(run, capsys):
    assert main(["watch", str(run)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "step 1  epoch 1/2  val_accuracy 0.5  val_loss 0.5  train_loss 0.25",
        "step 2  epoch 2/2  val_accuracy 0.75  val_loss 0.25  train_loss 0.25",
        "ended at step 2: all epochs done",
    ]


def test_a_damaged_log_is_watched_as_far_as_it_is_whole(run, capsys):
    lines = (run / "log.jsonl").read_text().splitlines()
    junk = [json.dumps({"event": kind, "step": 2}) for kind in ("step", "epoch", "warning", "end")]
    odd = json.dumps({"event": "epoch", "step": 2, "epoch": "x", "loss": {}, "val_loss": [1]})
    (run / "log.jsonl").write_text(
        "\n".join([*lines[:5], lines[5][:9], "[" * 999, odd, *junk, "{"])
    )
    assert main(["watch", str(run)]) == 0
    assert main(["watch", str(run), "--json"]) == 0
    assert main(["runs", str(run)]) == 0
    assert "ended at step 2: None" in capsys.readouterr().out


def test_one_object_for_machines(run, capsys):
    assert main(["watch", str(run), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["reason"], data["steps"], data["skipped"]) == ("all epochs done", 2, 1)
    assert data["best"] == {"metric": "val_accuracy", "step": 2, "value": 0.75}


def test_the_screen_of_a_terminal(run, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["watch", str(run)]) == 0
    text = screen.getvalue()
    for part in ("x", "all epochs done", "step 2/2", "val accuracy", "best 0.75 at step 2", "▁█"):
        assert part in text
    assert "1 of 2, the last at step 1" in text


def test_ctrl_c_leaves_quietly_while_the_training_goes_on(tmp_path):
    run = make_run(tmp_path / "run")
    lock(run, os.getpid())
    control, terminal = pty.openpty()
    words = [sys.executable, "-c", f"{HEARD}from ortboost.__main__ import command; command()"]
    words += ["watch", str(run)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    while b"waiting for training" not in seen:
        seen += os.read(control, 1000)
    from ortboost.training.logs import EventLog

    with EventLog(run / "log.jsonl") as log:
        begin(log)
    while b"running" not in seen:
        seen += os.read(control, 1000)
    process.send_signal(signal.SIGINT)
    while True:  # before waiting: the process cannot end while its terminal is full
        try:
            more = os.read(control, 1000)
        except OSError:  # the terminal is closed
            break
        seen += more
    assert process.wait(timeout=60) == 0
    os.close(control)
    assert b"error" not in seen
    assert b"Traceback" not in seen


def test_a_line_of_bars():
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([math.nan] * 3) == "   "
    assert sparkline(list(range(80)), 8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline([1.0, math.inf] * 500)) == 30
