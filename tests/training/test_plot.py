"""The picture of a run."""

from __future__ import annotations

import builtins
import json
import struct
import sys

import numpy as np
import pytest

from ortboost.core.errors import DependencyError, UsageError
from ortboost.training.logs import EventLog
from ortboost.training.plot import _draw_scale, _smooth, plot_log


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
    assert height > 600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]


def test_a_grouped_scale_has_a_line_for_each_group(tmp_path):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    scales = [[8.0, 2.0, 4.0], [8.0, 1.0, 4.0], [None, 1.0, 2.0]]
    steps = [
        {
            "step": i + 1,
            "loss_scale": row[0],
            "loss_scales": row,
            "overflow": True,
            "total_skips": i,
        }
        for i, row in enumerate(scales)
    ]
    _draw_scale(axes, steps[:2])
    *groups, marks = axes.get_lines()
    assert [line.get_ydata().tolist() for line in groups] == [[3, 3], [1, 0], [2, 2]]
    assert marks.get_ydata().tolist() == [
        3,
        0,
    ]  # where nothing is known, the highest; the one that fell
    _draw_scale(axes, steps)


def test_no_global_state_of_matplotlib_is_touched(tmp_path):
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    plot_log(write_log(tmp_path / "log.jsonl", 5), tmp_path / "curves.png")
    assert ("matplotlib.pyplot" in sys.modules) is before


def test_a_missing_matplotlib_is_named_with_its_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
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


def test_smoothing_is_a_centred_mean_of_the_finite_values():
    values = np.array([1.0, 2.0, np.nan, 4.0, 9.0])
    assert _smooth(values, 3).tolist() == [1.0, 1.5, 3.0, 6.5, 9.0]
    assert _smooth(np.full(9, 2.0), 5).tolist() == [2.0] * 9


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
