"""Showing a run while it goes on: a bar on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Final, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ortboost.core.errors import require_known
from ortboost.core.loss_scale import scale_text
from ortboost.core.printable import printable

__all__ = [
    "MODES",
    "BarProgress",
    "PlainProgress",
    "QuietProgress",
    "Reporter",
    "StepInfo",
    "make_progress",
]

MODES: Final = ("auto", "bar", "plain", "off")
_SECONDS: Final = 5.0


@dataclass(frozen=True)
class StepInfo:
    """What is worth showing of a step."""

    step: int
    epoch: int
    epochs: int
    loss: float
    learning_rate: float
    loss_scale: float
    skips: int

    def __str__(self) -> str:
        text = f"epoch {self.epoch + 1}/{self.epochs}  loss {self.loss:.4f}  lr {self.learning_rate:.3g}"
        text += f"  scale {scale_text(self.loss_scale)}" if self.loss_scale != 1.0 else ""
        return text + (f"  skipped {self.skips}" if self.skips else "")


@runtime_checkable
class Reporter(Protocol):
    """What the trainer tells."""

    def start(self, total: int | None, done: int) -> None:
        """A run of ``total`` steps (None if unknown) goes on from step ``done``."""

    def step(self, info: StepInfo) -> None:
        """A step is done."""

    def result(self, text: str) -> None:
        """A line for people who watch: the result of an epoch."""

    def message(self, text: str) -> None:
        """A line that must be seen: a warning."""

    def close(self) -> None:
        """The run has ended, one way or the other."""


class QuietProgress:
    """Shows messages only, or nothing.

    Args:
        stream: Where messages go; None drops them.
        results: Show the results of epochs too.
    """

    def __init__(self, stream: IO[str] | None = None, *, results: bool = False) -> None:
        self._stream, self._results = stream, results

    def start(self, total: int | None, done: int) -> None:
        """Nothing to show."""

    def step(self, info: StepInfo) -> None:
        """Nothing to show."""

    def result(self, text: str) -> None:
        """Print the line if results are wanted."""
        if self._results:
            self.message(text)

    def message(self, text: str) -> None:
        """Print the line if there is a stream."""
        if self._stream is not None:
            print(printable(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to undo."""


class PlainProgress(QuietProgress):
    """Lines for logs and CI: one when time has passed, and each message.

    Args:
        stream: Where lines go, stderr by default.
        seconds: At most one step line in so many seconds.
        clock: Seconds on some monotonous clock.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream or sys.stderr, results=True)
        self._seconds, self._clock = seconds, clock
        self._total: int | None = None
        self._shown = 0.0

    def start(self, total: int | None, done: int) -> None:
        """Note the length; the first step line comes after the first interval."""
        self._total, self._shown = total, self._clock()

    def step(self, info: StepInfo) -> None:
        """Print a line if the last one is old enough."""
        now = self._clock()
        if now - self._shown >= self._seconds:
            self._shown = now
            total = f"/{self._total}" if self._total else ""
            self.message(f"step {info.step}{total}  {info}")


class BarProgress:
    """A progress bar; messages scroll above it.

    Args:
        console: Where it is drawn; stderr by default. ``NO_COLOR`` is respected by rich.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)

    def start(self, total: int | None, done: int) -> None:
        """Draw the bar."""
        self._bar.reset(self._task, total=total, completed=done, description="")
        self._bar.start()

    def step(self, info: StepInfo) -> None:
        """Move the bar (drawn some ten times a second, however fast the steps are)."""
        self._bar.update(self._task, completed=info.step, description=str(info))

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def result(self, text: str) -> None:
        """Print the line above the bar."""
        self.message(text)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def make_progress(mode: str = "auto", *, quiet: bool = False) -> Reporter:
    """The reporter for a mode.

    Args:
        mode: "bar", "plain", "off", or "auto": a bar if stderr is a terminal, else plain lines.
        quiet: Show warnings only; "off" shows the results of epochs too.

    Raises:
        UsageError: The mode is unknown.
    """
    require_known(mode, MODES, f"There is no progress '{mode}'.", "progress")
    if quiet or mode == "off":
        return QuietProgress(sys.stderr, results=not quiet)
    if mode == "bar" or (mode == "auto" and sys.stderr.isatty()):
        return BarProgress()
    return PlainProgress()
