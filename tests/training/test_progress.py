"""What a run shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ortboost.core.errors import UsageError
from ortboost.training.progress import (
    BarProgress,
    PlainProgress,
    QuietProgress,
    StepInfo,
    make_progress,
)

INFO = StepInfo(7, 0, 3, 0.5, 0.01, 1024.0, 2)


def test_info_shows_scale_and_skips_only_where_there_are_any():
    assert str(INFO) == "epoch 1/3  loss 0.5000  lr 0.01  scale 1024  skipped 2"
    assert str(StepInfo(7, 1, 3, 0.5, 0.01, 1.0, 0)) == "epoch 2/3  loss 0.5000  lr 0.01"


def test_plain_lines_come_at_most_once_in_an_interval():
    out, now = io.StringIO(), [0.0]
    progress = PlainProgress(out, seconds=5.0, clock=lambda: now[0])
    progress.start(100, 0)
    for second in range(12):
        now[0] = float(second)
        progress.step(INFO)
    progress.message("warning: x")
    progress.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 7/100  epoch 1/3  loss 0.5000")
    assert lines[2] == "warning: x"


def test_quiet_shows_messages_or_nothing():
    out = io.StringIO()
    for progress in (QuietProgress(out), QuietProgress()):
        progress.start(10, 0)
        progress.step(INFO)
        progress.message("result")
        progress.close()
    assert out.getvalue() == "result\n"


@pytest.mark.parametrize(("quiet", "seen"), [(True, "warning\n"), (False, "epoch 1\nwarning\n")])
def test_quiet_leaves_results_out(quiet, seen, capsys):
    progress = make_progress("off", quiet=quiet)
    progress.result("epoch 1")
    progress.message("warning")
    assert capsys.readouterr().err == seen


@pytest.mark.parametrize("total", [10, None])
def test_bar_draws_and_messages_stay(total):
    out = io.StringIO()
    progress = BarProgress(Console(file=out, force_terminal=True, width=120))
    progress.start(total, 3)
    progress.step(INFO)
    progress.message("a line [that] is no markup")
    progress.close()
    assert "a line [that] is no markup" in out.getvalue()
    assert "7/" in out.getvalue()


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    progress = BarProgress(Console(file=out, force_terminal=True, width=120))
    progress.start(10, 0)
    progress.step(INFO)
    progress.close()
    assert "\x1b[3" not in out.getvalue()  # colours; cursor movements remain


def test_modes(monkeypatch):
    assert isinstance(make_progress("plain"), PlainProgress)
    assert isinstance(make_progress("bar"), BarProgress)
    assert type(make_progress("off")) is QuietProgress
    assert type(make_progress("bar", quiet=True)) is QuietProgress
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(make_progress("auto"), PlainProgress)
    with pytest.raises(UsageError, match="did you mean 'plain'"):
        make_progress("plian")


def test_lines_go_to_stderr(capsys):
    progress = make_progress("plain")
    progress.message("hello")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")
