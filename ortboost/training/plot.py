"""Plots of runs: loss, validation, learning rate and loss scale over the steps.

A panel with a constant value is omitted, and the value is printed below the plot instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, UsageError
from ortboost.core.files import atomic_path
from ortboost.core.loss_scale import scale_text
from ortboost.core.printable import printable
from ortboost.training.callbacks import Goal
from ortboost.training.history import Curve, RunHistory

__all__ = ["plot_log", "plot_runs"]

_RED, _GREY, _DARK = "#b83232", "#8a8f98", "#24272c"
_COLORS = ("#2563a8", "#d97706", "#2f855a", "#8250df", "#b83280", "#0e7490", "#854d0e", "#4a4f57")
_STROKES = ("-", "--", ":", "-.")  # for runs beyond the number of colors
_SMOOTH_FROM = 50  # runs with fewer steps are not smoothed
_PLACES = 2000
_MOSAICS: Final = {1: "A", 2: "AB", 3: "AA;BC", 4: "AB;CD"}
_TITLED = ("engine", "device", "optimizer", "boosts")


def plot_log(log: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Draw the curves of one run from its event log.

    Args:
        log: The JSONL file of a run, see :mod:`ortboost.training.logs`.
        path: The PNG to write; its folder must exist.

    Raises:
        FileError: The log cannot be read; and the errors of :func:`plot_runs`.
    """
    return plot_runs([RunHistory.read(log)], path)


def plot_runs(runs: Sequence[RunHistory], path: str | os.PathLike[str]) -> Path:
    """Draw the curves of one or more runs in one figure, a PNG; its folder must exist.

    Raises:
        DependencyError: matplotlib is not installed.
        UsageError: None of them has steps.
        FileError: The PNG cannot be written.
    """
    drawn = [run for run in runs if "loss" in run.curves]
    if not drawn:
        raise UsageError(
            "There is nothing to draw: the log has no steps.",
            where=", ".join(run.name for run in runs) or str(path),
            fix="Train first, or pass the log of another run.",
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "Drawing needs matplotlib, which is not installed.",
            where=str(path),
            fix='pip install "ortboost[plot]"',
        ) from error

    panels = [("loss", _draw_loss)]
    metric = next((m for m in map(_metric, drawn) if m), None)
    if metric is not None:
        panels.append((metric, _draw_metric))
    for name, draw in (("learning_rate", _draw_rate), ("loss_scale", _draw_scale)):
        if any(_moves(curve) for run in drawn for curve in _family(run, name)):
            panels.append((name, draw))
    # Figure and canvas without pyplot: no global state, no display, thread-safe.
    figure = Figure(figsize=(11, 7 if len(panels) > 2 else 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: dict[str, Any] = figure.subplot_mosaic(_MOSAICS[len(panels)], sharex=True)
    for (name, draw), axis in zip(panels, axes.values(), strict=True):
        draw(axis, drawn, name)
        axis.grid(visible=True, color="#e3e6ea", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_GREY)
        axis.tick_params(colors="#4a4f57", labelbottom=True)
        axis.margins(x=0.01)
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    _head(figure, drawn, [name for name, _ in panels])
    if len(drawn) > 1:
        figure.legend(
            *axes["A"].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(4, len(drawn)),
            frameon=False,
        )
    target = Path(path)
    with atomic_path(target) as temporary:
        figure.savefig(str(temporary), format="png", dpi=120)
    return target


def _plain(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as formulas."""
    return printable(text).replace("$", r"\$")


def _head(figure: Any, runs: Sequence[RunHistory], panels: Sequence[str]) -> None:
    run, latest = runs[0], runs[0].latest
    words = [run.name, *(str(run.about[key]) for key in _TITLED if run.about.get(key))]
    title = f"{len(runs)} runs" if len(runs) > 1 else _plain("  ·  ".join(words)[:110])
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", color=_DARK)
    if len(runs) > 1:
        return
    single = {"learning_rate": "{:.4g}".format, "loss_scale": scale_text}
    facts = [
        f"{name.replace('_', ' ')} {text(latest[name])}"
        for name, text in single.items()
        if name not in panels and math.isfinite(latest.get(name, math.nan))
    ]
    if not any(name.startswith("val_") for name in panels):
        facts += [f"{n} {v:.4g}" for n, v in latest.items() if n.startswith("val_")]
    share = f"{run.skips / max(run.step, 1):.1%}"
    skipped = f"{run.skips} of {run.step} steps skipped ({share})"
    facts.append(skipped if run.skips else "no step skipped")
    facts.append(run.reason or "not ended")
    figure.text(
        0.01, 0.0, _plain("  ·  ".join(facts)), fontsize=9, color="#4a4f57", ha="left", va="bottom"
    )
    figure.set_layout_engine("constrained", rect=(0, 0.03, 1, 0.97), w_pad=0.12, h_pad=0.12)


def _metric(run: RunHistory) -> str | None:
    """The monitored validation metric, if its value is not constant."""
    name = run.monitored
    # The loss has a panel of its own.
    moves = name.startswith("val_") and name != "val_loss" and _moves(run.curves[name])
    return name if moves else None


def _family(run: RunHistory, name: str) -> list[Curve]:
    """A curve and those of its groups: ``learning_rate`` and ``learning_rate/head``."""
    plural = (f"{name}/", f"{name}s/")
    return [curve for key, curve in run.curves.items() if key == name or key.startswith(plural)]


def _moves(curve: Curve) -> bool:
    finite = curve.y[np.isfinite(curve.y)]
    return len(finite) > 0 and bool(finite.min() < finite.max())


def _style(runs: Sequence[RunHistory], index: int) -> dict[str, Any]:
    """Color, line style and legend label of a run."""
    stroke = _STROKES[index // len(_COLORS) % len(_STROKES)]
    label = f" {_plain(runs[index].name)}" if len(runs) > 1 else "_"  # "_": no legend entry
    return {"color": _COLORS[index % len(_COLORS)], "linestyle": stroke, "label": label}


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, loc="left", fontsize=11, fontweight="bold", color=_DARK)


def _smooth(curve: Curve, width: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A moving mean of `width` finite values at up to 2,000 points.

    It is centred, and narrower at the start. At the end it goes back by half its width, as the mean
    of a few values would jump.
    """
    values = curve.y
    at = np.unique(np.linspace(0, len(values) - 1, _PLACES).round().astype(np.int64))
    before = np.minimum(at, width // 2)
    after = np.minimum(before, len(values) - 1 - at)
    windows = np.stack([at - before, at + after + 1], axis=1).ravel()
    finite = np.isfinite(values)
    # Each window is summed separately: with differences of running sums, one value like 1e30
    # would cancel all others.
    # reduceat sums the terms between any two consecutive indices; [::2] keeps the windows. The
    # appended zero lets a window end at the last value.
    counts, sums = (
        np.add.reduceat(np.append(terms, 0.0), windows)[::2]
        for terms in (finite.astype(np.float64), np.where(finite, values, 0.0))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return curve.x[at], np.asarray(sums / counts)


def _draw_loss(axis: Any, runs: Sequence[RunHistory], name: str) -> None:
    single = len(runs) == 1
    # The same window for all runs: equal losses must give equal curves.
    steps = max(len(run.curves[name]) for run in runs)
    smooth, width = steps >= _SMOOTH_FROM, max(5, steps // 30)
    seen = []
    for index, run in enumerate(runs):
        curve, style = run.curves[name], _style(runs, index)
        if single:
            style["label"] = "training"
        if single or not smooth:
            thin = {"alpha": 0.3, "linewidth": 0.8, "label": "_"} if smooth else {}
            axis.plot(curve.x, curve.y, **{"linewidth": 1.6, **style, **thin})
        if smooth:
            axis.plot(*_smooth(curve, width), linewidth=1.8, **style)
        seen.append(curve.y)
    _title(axis, "loss" if single else "training loss")
    validation = runs[0].curves.get("val_loss", Curve())
    if single and np.isfinite(validation.y).any():
        style = {"color": _COLORS[1], "marker": "o", "markersize": 4, "label": "validation"}
        axis.plot(validation.x, validation.y, linewidth=1.6, **style)
        seen.append(validation.y)
    values = np.concatenate(seen)
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 50 * values.min():
        axis.set_yscale("log")
    if single:
        _mark_skips(axis, runs[0])
        # Beside the title: inside, it would cover the curves, which may be anywhere.
        axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.98), ncols=3)


def _mark_skips(axis: Any, run: RunHistory) -> None:
    """Draw a tick at the bottom of the panel for each skipped step."""
    if run.skipped:
        foot = axis.get_xaxis_transform()
        style = {"marker": "|", "markersize": 9, "color": _RED, "linestyle": "none"}
        axis.plot(run.skipped, [0.025] * len(run.skipped), transform=foot, label="skipped", **style)


def _draw_metric(axis: Any, runs: Sequence[RunHistory], name: str) -> None:
    words, share = name.removeprefix("val_"), Goal(name).rising  # not for an error
    unit = 100 if share else 1
    for index, run in enumerate(runs):
        curve = run.curves.get(name)
        if curve is not None:
            style = _style(runs, index)
            axis.plot(curve.x, curve.y * unit, linewidth=1.6, marker="o", markersize=4, **style)
            best = run.best(name)
            if best is not None:
                step, value = best
                axis.plot(
                    [step],
                    [value * unit],
                    color=style["color"],
                    marker="o",
                    markersize=9,
                    fillstyle="none",
                    clip_on=False,
                )
                if len(runs) == 1:
                    shown = f"{value * unit:.2f}" if share else f"{value:.3g}"
                    words += f", best {shown} at step {step}"
    _title(axis, f"validation{' (%)' if share else ''}: {words}")


def _draw_rate(axis: Any, runs: Sequence[RunHistory], name: str) -> None:
    _title(axis, "learning rate")
    for index, run in enumerate(runs):
        style = _style(runs, index)
        for place, curve in enumerate(_family(run, name)):
            alpha = 1.0 if not place else 0.5
            axis.plot(curve.x, curve.y, linewidth=1.6, alpha=alpha, **style)


def _draw_scale(axis: Any, runs: Sequence[RunHistory], name: str) -> None:
    _title(axis, "loss scale (log2)")
    seen: list[NDArray[np.float64]] = []
    for index, run in enumerate(runs):
        curves = _family(run, name)
        # With groups, `loss_scale` itself is the curve of the first one.
        groups = [curve for curve in curves if curve is not run.curves.get(name)]
        style = _style(runs, index)
        exponents = []
        for group, curve in enumerate(groups or curves):
            with np.errstate(divide="ignore", invalid="ignore"):
                exponents.append(np.log2(curve.y))
            fade = 1.0 - 0.7 * group / max(len(groups) - 1, 1)
            label = {"label": f"group {group + 1}"} if groups and len(runs) == 1 else {}
            line = {**style, **label, "alpha": fade, "linewidth": 1.6}
            axis.step(curve.x, exponents[-1], where="post", **line)
        seen += [found[np.isfinite(found)] for found in exponents]
    if len(runs) == 1:
        _mark_skips(axis, runs[0])
        if axis.get_legend_handles_labels()[1]:
            axis.legend(frameon=False, loc="best")
    axis.yaxis.get_major_locator().set_params(integer=True)
    finite = np.concatenate(seen)
    if len(finite):
        axis.set_ylim(finite.min() - 1, finite.max() + 1)
