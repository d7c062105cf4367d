"""The picture of a run."""

from __future__ import annotations

import json
import struct
import sys
from array import array
from contextlib import nullcontext

import numpy as np
import pytest

from ortboost.core.errors import DependencyError, UsageError
from ortboost.training.history import Curve, RunHistory
from ortboost.training.logs import EventLog
from ortboost.training.plot import _smooth, plot_log, plot_runs


def write_log(path, steps, *, validate=True):
    with EventLog(path) as log:
        for step in range(1, steps + 1):
            loss = float("nan") if step == 2 else 1 / step
            log.write(
                "step",
                step,
                loss=loss,
                overflow=step == 2,
                loss_scale=2.0 ** (10 - step // 9),
                total_skips=int(step > 1),
            )
            if validate and step % 10 == 0:
                log.write("validation", step, val_loss=2 / step, val_accuracy=1 - 1 / step)
    return path


@pytest.mark.parametrize(("steps", "validate"), [(1, False), (20, True), (200, True), (200, False)])
def test_draws_a_png(tmp_path, steps, validate):
    pytest.importorskip("matplotlib")
    log = write_log(tmp_path / "log.jsonl", steps, validate=validate)
    raw = plot_log(log, tmp_path / "curves.png").read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", raw[16:24])
    assert width > 1000
    assert height > 500
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]


def history(*events, **about):
    run = RunHistory("a run")
    for event in [{"event": "start", "step": 0, "about": about}, *events]:
        run.add(event)
    return run


def drawn(monkeypatch, runs, tmp_path):
    """The figure that is saved."""
    figures = []
    figure = pytest.importorskip("matplotlib.figure").Figure
    monkeypatch.setattr(figure, "savefig", lambda self, path, **_: figures.append(self))
    monkeypatch.setattr("ortboost.training.plot.atomic_path", lambda p: nullcontext(p))
    plot_runs(runs, tmp_path / "curves.png")
    return figures[0]


def step(number, **fields):
    usual = {"loss": 1 / number, "overflow": False, "loss_scale": 8.0, "learning_rate": {"lr": 0.1}}
    return {"event": "step", "step": number, **usual, **fields}


def panels(figure):
    return [axis.get_title(loc="left").split(",")[0] for axis in figure.axes]


def test_what_does_not_move_is_told_and_not_drawn(tmp_path, monkeypatch):
    rate = {"learning_rate": 0.05}
    validation = {"event": "validation", "step": 2, "val_loss": 0.5, "val_accuracy": 0.75}
    end = {"event": "end", "step": 2, "reason": "all epochs done"}
    run = history(
        step(1, learning_rate=rate),
        step(2, learning_rate=rate),
        validation,
        end,
        run="mine",
        engine="portable",
        boosts="less-bn",
    )
    figure = drawn(monkeypatch, [run], tmp_path)
    assert panels(figure) == ["loss"]
    assert figure.get_suptitle() == "mine  ·  portable  ·  less-bn"
    (text,) = (text.get_text() for text in figure.texts if text.get_text() != figure.get_suptitle())
    assert text == (
        "learning rate 0.05  ·  loss scale 8  ·  val_loss 0.5  ·  val_accuracy 0.75  ·  "
        "no step skipped  ·  all epochs done"
    )


def test_what_moves_has_a_panel_and_skips_are_marked(tmp_path, monkeypatch):
    steps = [
        step(i, overflow=i == 3, loss_scale=8.0 / i, learning_rate={"learning_rate": 0.1 * i})
        for i in range(1, 5)
    ]
    values = [{"event": "validation", "step": i, "val_accuracy": i / 10} for i in (2, 4)]
    figure = drawn(monkeypatch, [history(*steps, *values)], tmp_path)
    assert panels(figure) == [
        "loss",
        "validation (%): accuracy",
        "learning rate",
        "loss scale (log2)",
    ]
    assert figure.axes[1].get_title(loc="left").endswith("best 40.00 at step 4")
    for place in (0, 3):
        marks = figure.axes[place].get_lines()[-1]
        assert marks.get_label() == "skipped"
        assert list(marks.get_xdata()) == [3]
    assert any("1 of 4 steps skipped (25.0%)" in text.get_text() for text in figure.texts)


def test_an_error_is_drawn_in_its_own_unit(tmp_path, monkeypatch):
    values = [{"event": "validation", "step": i, "val_mae": 3.5 * i} for i in (1, 2)]
    figure = drawn(monkeypatch, [history(step(1), step(2), *values)], tmp_path)
    axis = figure.axes[1]
    assert axis.get_title(loc="left") == "validation: mae, best 3.5 at step 1"
    assert list(axis.get_lines()[0].get_ydata()) == [3.5, 7.0]


def test_the_legend_covers_no_curve(tmp_path, monkeypatch):
    values = [{"event": "validation", "step": i, "val_loss": 1.0} for i in (1, 2)]
    skips = [step(1), step(2, overflow=True)]
    figure = drawn(monkeypatch, [history(*skips, *values)], tmp_path)
    figure.draw_without_rendering()
    axis = figure.axes[0]
    shown = [text.get_text() for text in axis.get_legend().get_texts()]
    assert shown == ["training", "validation", "skipped"]
    lowest = min(text.get_window_extent().y0 for text in axis.get_legend().get_texts())
    assert lowest >= axis.get_window_extent().y1


def test_several_runs_are_one_picture_with_a_legend(tmp_path, monkeypatch):
    runs = [history(step(1), step(2), run=name) for name in ("one", "_two", "$three$")]
    figure = drawn(monkeypatch, runs, tmp_path)
    labels = [text.get_text().strip() for text in figure.legends[0].get_texts()]
    assert labels == ["one", "_two", r"\$three\$"]
    assert len({line.get_color() for line in figure.axes[0].get_lines()}) == 3


def test_a_grouped_scale_has_a_line_for_each_group(tmp_path, monkeypatch):
    scales = [[8.0, 2.0, 4.0], [8.0, 1.0, 4.0], [None, 1.0, 2.0]]
    steps = [step(i, loss_scales=row) for i, row in enumerate(scales, 1)]
    figure = drawn(monkeypatch, [history(*steps)], tmp_path)
    lines = [line.get_ydata() for line in figure.axes[1].get_lines()]
    np.testing.assert_array_equal(lines, [[3, 3, np.nan], [1, 0, 0], [2, 2, 1]])


def test_no_global_state_of_matplotlib_is_touched(tmp_path):
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    plot_log(write_log(tmp_path / "log.jsonl", 5), tmp_path / "curves.png")
    assert ("matplotlib.pyplot" in sys.modules) is before


def test_a_missing_matplotlib_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    log = write_log(tmp_path / "log.jsonl", 5)
    with pytest.raises(DependencyError) as caught:
        plot_log(log, tmp_path / "curves.png")
    assert 'pip install "ortboost[plot]"' in caught.value.fix
    assert not (tmp_path / "curves.png").exists()


def test_an_empty_log_is_refused(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("start", 0)
    with pytest.raises(UsageError, match="nothing to draw"):
        plot_log(tmp_path / "log.jsonl", tmp_path / "curves.png")


def test_smoothing_is_a_mean_of_the_finite_values_that_has_half_its_width_at_the_end():
    def smooth(values):
        x, y = _smooth(Curve(array("q", range(len(values))), array("d", values)), width=5)
        assert list(x) == list(range(len(values)))
        return y.tolist()

    values = [1.0, 2.0, np.nan, 4.0, 9.0]
    assert smooth(values) == [1.0, 1.5, 4.0, 5.0, 6.5]
    assert smooth([2.0] * 9) == [2.0] * 9
    assert smooth([1e30] * 3 + [2.0] * 9)[6:] == [2.0] * 6  # a large value leaves no trace


def test_equal_losses_give_equal_curves_where_runs_are_compared(monkeypatch, tmp_path):
    """One run with fewer steps than are smoothed alone, one with more."""
    short = history(*[step(number) for number in range(1, 46)])
    long = history(*[step(number) for number in range(1, 301)])
    figure = drawn(monkeypatch, [short, long], tmp_path)
    first, second = (line.get_ydata() for line in figure.axes[0].get_lines()[:2])
    np.testing.assert_array_equal(first[:40], second[:40])


JUNK = ["text", [1], {}, True, None, -1, 10**400, 1e308, 0]


@pytest.mark.parametrize("value", JUNK, ids=str)
def test_a_damaged_log_is_drawn_as_far_as_it_is_whole(tmp_path, value):
    pytest.importorskip("matplotlib")
    log = write_log(tmp_path / "log.jsonl", 20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for place, key in enumerate(
        ("loss", "overflow", "loss_scale", "total_skips", "step", "event", "loss_scales")
    ):
        lines[place][key] = value
    lines[-1].update(val_loss=value, val_accuracy=value)
    texts = [json.dumps(line) for line in lines]
    log.write_text("\n".join([*texts, "[" * 9999, "9" * 9999, "{", "[]"]))
    assert plot_log(log, tmp_path / "curves.png").stat().st_size > 1000
