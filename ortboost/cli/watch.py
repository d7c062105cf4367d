"""``ortboost watch``: follow a run in progress, on a screen or as plain lines."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortboost.cli.command import option, verb
from ortboost.cli.console import Output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ortboost.training import RunHistory

__all__ = ["sparkline", "watch"]

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30  # bars per line
_WARNINGS = 3  # number of warnings shown


@verb(
    "watch",
    file=False,
    examples="""\b
Examples:
  ortboost watch run
  ortboost watch run > progress.txt
\b
It only reads the log, so it can start and stop (Ctrl-C) at any time, also on another machine that
shares the folder. It ends when the training does. Into a pipe or file it writes plain lines.""",
)
def watch(
    run: Annotated[Path, typer.Argument(help="Program folder; it need not exist yet.")],
    seconds: float = option("Seconds between reads of the log.", default=0.5, min=0.05),
    *,
    printer: Output,
) -> None:
    """Watch a run in progress, or show how one ended."""
    try:
        history = _follow(run, seconds, printer.human_readable)
    except KeyboardInterrupt:  # stops watching, not the training
        return
    printer.result(_summary(history))


def _follow(run: Path, seconds: float, human_readable: bool) -> RunHistory:
    """Show a run until it ends, and return its history."""
    from rich.console import Console as Screen
    from rich.live import Live

    from ortboost.api import follow
    from ortboost.training.progress import PlainProgress, QuietProgress

    if not human_readable or not sys.stdout.isatty():
        lines = PlainProgress(sys.stdout, max(seconds, 5.0)) if human_readable else QuietProgress()
        shown = None
        for history, events in follow(run, seconds=seconds):
            if not (history.step or history.sessions) and shown is None:
                there = "" if run.is_dir() else ", a folder that does not exist yet"
                lines.message(f"waiting for training to start in {run}{there}")
            # A run that starts over has a new history.
            if shown is not history:
                lines.start(history.total, history.step)
                shown = history
            _print_events(lines, history, events)
        return history
    began: tuple[float, int] | None = None
    with Live(console=Screen(), auto_refresh=False) as live:
        for history, _ in follow(run, seconds=seconds):
            if history.step and (began is None or history.step < began[1]):
                began = time.monotonic(), history.step  # earlier steps do not count for the pace
            pace = 0.0
            if began is not None and history.step > began[1]:
                pace = (history.step - began[1]) / (time.monotonic() - began[0])
            live.update(_screen(history, run, pace), refresh=True)
    return history


def _print_events(lines: Any, history: RunHistory, events: Sequence[Mapping[str, Any]]) -> None:
    """Print new events as plain lines."""
    from ortboost.training.progress import StepInfo

    for event in events:
        step, kind = event["step"], event["event"]
        if kind == "epoch":
            at = {n: c.values[c.steps.index(step)] for n, c in _means(history) if step in c.steps}
            means = "  ".join(f"{name} {value:.4g}" for name, value in at.items())
            epoch = event.get("epoch")
            number = epoch + 1 if isinstance(epoch, int) else 1
            lines.result(f"step {step}  epoch {number}/{history.epochs}  {means}")
        elif kind == "warning":
            lines.message(f"warning: {event.get('text')}")
        elif kind == "end":
            lines.message(f"ended at step {step}: {event.get('reason')}")
    latest = history.latest
    if any(event["event"] == "step" for event in events):
        rate, scale = latest.get("learning_rate", math.nan), latest.get("loss_scale", math.nan)
        loss, skips = latest.get("loss", math.nan), history.skips
        lines.step(StepInfo(history.step, history.epoch, history.epochs, loss, rate, scale, skips))


def _means(history: RunHistory) -> list[tuple[str, Any]]:
    return [(n, c) for n, c in history.curves.items() if n.startswith(("val_", "train_"))]


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Draw values as bars: means if there are more than ``width``, blanks where none is finite.

    Example:
        >>> sparkline([0, 1, 2, math.nan, 7])
        '▁▂▃ █'
    """
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)] if count else [0]
    means = []
    for low, high in itertools.pairwise(edges):
        part = [value for value in values[low:high] if math.isfinite(value)]
        means.append(sum(part) / len(part) if part else math.nan)
    finite = [mean for mean in means if math.isfinite(mean)]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    top = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((m - least) * top)] if math.isfinite(m) else " " for m in means)


def _screen(history: RunHistory, run: Path, pace: float) -> RenderableType:
    """The screen for a terminal; ``pace`` is in steps per second."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from ortboost.core.printable import printable

    def text(words: str, style: str = "") -> Text:
        return Text(printable(words), style)

    if not (history.step or history.sessions):
        return text(f"waiting for training to start in {run}", "dim")
    words = [history.name, *(str(history.about.get(k) or "") for k in ("engine", "optimizer"))]
    words.append(str(history.about.get("boosts") or ""))
    head = text("  ·  ".join(word for word in words if word), "bold")
    head.append(f"  {history.reason or 'running'}", "green" if history.reason is None else "dim")
    total = history.total
    facts = [f"step {history.step}{f'/{total}' if total else ''}"]
    facts.append(f"epoch {min(history.epoch + 1, history.epochs or 1)}/{history.epochs or '?'}")
    if history.reason is None and pace > 0:
        facts.append(f"{pace:.3g} steps/s")
        facts += [f"{_clock((total - history.step) / pace)} left"] if total else []
    elif history.seconds is not None:
        facts.append(f"took {history.seconds:.3g} s")
    bar = Table.grid(padding=(0, 2))
    done = history.step if total else 0
    bar.add_row(ProgressBar(total=total or 1, completed=done, width=16), text("  ·  ".join(facts)))
    rows = Table.grid(padding=(0, 2))
    for name, value, bars in _rows(history):
        rows.add_row(text(name, "cyan"), text(value), text(bars, "blue"))
    notes = [text(f"warning: {note}", "yellow") for note in history.warnings[-_WARNINGS:]]
    return Group(head, bar, rows, *notes)


def _rows(history: RunHistory) -> list[tuple[str, str, str]]:
    """The rows of the screen: name, latest value, and curve."""
    from ortboost.core.loss_scale import scale_text

    rows = []
    names = [n for n in history.curves if n.startswith(("val_", "train_")) and n != "train_loss"]
    for name in ("loss", *names, "learning_rate", "loss_scale"):
        if name not in history.curves:
            continue
        values = history.curves[name].values
        shown = f"{values[-1]:.4g}"
        course = values.tolist()
        if name == "loss_scale":  # it changes by powers of 2
            shown = scale_text(values[-1]) if math.isfinite(values[-1]) else shown
            course = [math.log2(v) if v > 0 else math.nan for v in course]
        best = history.best(name) if name == history.monitored != "loss" else None
        value = f"{shown} (best {best[1]:.4g} at step {best[0]})" if best else shown
        rows.append((name.replace("_", " "), value, sparkline(course)))
    if history.skips:
        last = f", the last at step {history.skipped[-1]}" if history.skipped else ""
        rows.append(("skipped", f"{history.skips} of {history.step}{last}", ""))
    return rows


def _clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    Example:
        >>> _clock(4), _clock(3725)
        ('0:04', '1:02:05')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _summary(history: RunHistory) -> dict[str, Any]:
    best = history.best()
    return {
        "name": history.name,
        "about": dict(history.about),
        "reason": history.reason,
        "steps": history.step,
        "epochs": history.epoch,
        "skipped": history.skips,
        "seconds": history.seconds,
        "latest": history.latest,
        "best": None
        if best is None
        else {"metric": history.monitored, "step": best[0], "value": best[1]},
        "warnings": history.warnings,
    }
