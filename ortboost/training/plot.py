"""A picture of a run: loss, loss scale, skipped steps and validation accuracy over the steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, UsageError
from ortboost.core.files import atomic_path
from ortboost.training.logs import read_log

__all__ = ["plot_log"]

_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#2563a8", "#d97706", "#2f855a", "#b83232", "#8a8f98"
_SMOOTH_FROM = 50  # fewer steps than this are shown as they are
_MOST = 1e200  # matplotlib adds a margin, and raises where that overflows


def plot_log(log: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Draw four panels from an event log.

    Args:
        log: The JSONL file of a run, see :mod:`ortboost.training.logs`.
        path: The PNG to write; its folder must exist.

    Returns:
        The path of the picture.

    Raises:
        DependencyError: matplotlib is not installed.
        UsageError: The log has no steps.
        FileError: The log cannot be read, or the picture not written.
    """
    events = read_log(log)
    steps = [event for event in events if event["event"] == "step"]
    validations = [event for event in events if event["event"] == "validation"]
    if not steps:
        raise UsageError(
            "There is nothing to draw: the log has no steps.",
            where=str(log),
            fix="Train first, or give the log of another run.",
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

    # Figure and canvas without pyplot: no global state, no display, safe in threads.
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex=True)
    _draw_loss(axes[0, 0], steps, validations)
    _draw_accuracy(axes[0, 1], validations)
    _draw_scale(axes[1, 0], steps)
    _draw_skips(axes[1, 1], steps)
    for axis in axes.flat:
        axis.grid(visible=True, color="#e3e6ea", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_GREY)
        axis.tick_params(colors="#4a4f57")
        axis.margins(x=0.01)
    for axis in axes[1]:
        axis.set_xlabel("step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    target = Path(path)
    with atomic_path(target) as temporary:
        figure.savefig(str(temporary), format="png", dpi=120)
    return target


def _column(events: list[dict[str, Any]], key: str) -> NDArray[np.float64]:
    """One key of all events; NaN where it is missing or no number."""
    return np.array([_number(event.get(key)) for event in events])


def _number(value: object) -> float:
    fits = isinstance(value, (int, float)) and abs(value) < _MOST
    return float(value) if fits else np.nan  # type: ignore[arg-type]


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, loc="left", fontsize=11, fontweight="bold", color="#24272c")


def _smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """A centred running mean over ``width`` values, of the finite ones; narrower at both ends."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(len(values))
    half = np.minimum(np.minimum(index, len(values) - 1 - index), width // 2)
    low, high = index - half, index + half + 1
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[high] - sums[low]) / (counts[high] - counts[low]))


def _draw_loss(axis: Any, steps: list[dict[str, Any]], validations: list[dict[str, Any]]) -> None:
    _title(axis, "loss")
    x, loss = _column(steps, "step"), _column(steps, "loss")
    smooth = len(x) >= _SMOOTH_FROM
    axis.plot(
        x,
        loss,
        color=_BLUE,
        linewidth=0.8 if smooth else 1.6,
        alpha=0.3 if smooth else 1.0,
        label="_" if smooth else "training",
    )
    if smooth:
        width = max(5, len(x) // 30)
        axis.plot(x, _smooth(loss, width), color=_BLUE, linewidth=1.8, label="training")
    values = _column(validations, "val_loss")
    if np.isfinite(values).any():
        axis.plot(
            _column(validations, "step"),
            values,
            color=_ORANGE,
            linewidth=1.6,
            marker="o",
            markersize=4,
            label="validation",
        )
    finite = loss[np.isfinite(loss) & (loss > 0)]
    if len(finite) and finite.max() > 50 * finite.min() and not (loss <= 0).any():
        axis.set_yscale("log")
    axis.legend(frameon=False, loc="upper right")


def _draw_accuracy(axis: Any, validations: list[dict[str, Any]]) -> None:
    _title(axis, "validation accuracy (%)")
    values = _column(validations, "val_accuracy") * 100
    if not np.isfinite(values).any():
        axis.text(
            0.5,
            0.5,
            "no validation accuracy in the log",
            color=_GREY,
            ha="center",
            va="center",
            transform=axis.transAxes,
        )
        axis.set_yticks([])
        return
    x = _column(validations, "step")
    axis.plot(x, values, color=_GREEN, linewidth=1.6, marker="o", markersize=4)
    best = int(np.nanargmax(values))
    axis.plot(x[best], values[best], color=_GREEN, marker="o", markersize=9, fillstyle="none")
    _title(axis, f"validation accuracy (%), best {values[best]:.2f} at step {x[best]:.0f}")


def _draw_scale(axis: Any, steps: list[dict[str, Any]]) -> None:
    _title(axis, "loss scale (log2)")
    scale = _column(steps, "loss_scale")
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents = np.log2(scale)
    x = _column(steps, "step")
    given = [event.get("loss_scales") for event in steps]
    groups = [row if isinstance(row, list) else [] for row in given]
    if any(groups):
        exponents = _draw_groups(axis, x, groups)
    else:
        axis.step(x, exponents, where="post", color=_BLUE, linewidth=1.6)
    overflow = np.array([bool(event.get("overflow")) for event in steps])
    if overflow.any():
        axis.plot(
            x[overflow],
            exponents[overflow] if exponents.ndim == 1 else _guilty(exponents)[overflow],
            linestyle="none",
            marker="v",
            markersize=5,
            color=_RED,
            label="overflow",
        )
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, loc="best")
    axis.yaxis.get_major_locator().set_params(integer=True)
    finite = exponents[np.isfinite(exponents)]
    if len(finite):
        axis.set_ylim(finite.min() - 1, finite.max() + 1)


def _draw_groups(axis: Any, x: NDArray[Any], groups: list[list[Any]]) -> NDArray[Any]:
    """A line for each group of a grouped scale; the exponents, ``[steps, groups]``."""
    number = max(map(len, groups))
    rows = [[_number(scale) for scale in row] for row in groups]
    rows = [row + [np.nan] * (number - len(row)) for row in rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents: NDArray[Any] = np.log2(np.array(rows, np.float64))
    for group in range(number):
        shade = 1.0 - 0.7 * group / max(number - 1, 1)
        label = f"group {group + 1}" if group in (0, number - 1) else None
        axis.step(
            x,
            exponents[:, group],
            where="post",
            color=_BLUE,
            alpha=shade,
            linewidth=1.4,
            label=label,
        )
    return exponents


def _guilty(exponents: NDArray[Any]) -> NDArray[Any]:
    """At each step the exponent of the group whose scale fell, or the highest one."""
    moved = np.diff(exponents, axis=0, prepend=exponents[:1])
    group = np.where(moved.min(axis=1) < 0, moved.argmin(axis=1), exponents.argmax(axis=1))
    found: NDArray[Any] = exponents[np.arange(len(group)), group]
    return found


def _draw_skips(axis: Any, steps: list[dict[str, Any]]) -> None:
    skips = _column(steps, "total_skips")
    last = 0 if not np.isfinite(skips).any() else int(np.nanmax(skips))
    count = int(_column(steps, "step")[-1])
    _title(axis, f"skipped steps, total ({last} of {count}, {last / max(count, 1):.1%})")
    x = _column(steps, "step")
    axis.fill_between(x, skips, step="post", color=_RED, alpha=0.15, linewidth=0)
    axis.step(x, skips, where="post", color=_RED, linewidth=1.6)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.set_ylim(0, max(1.0, last * 1.1))
