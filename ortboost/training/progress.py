"""Progress of a run: a bar in a terminal or notebook, plain lines elsewhere.

All output except a notebook's goes to stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import IO, Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ortboost.core.errors import require_known
from ortboost.core.loss_scale import scale_text
from ortboost.core.printable import printable

__all__ = [
    "MODES",
    "BarProgress",
    "Mode",
    "NotebookProgress",
    "PlainProgress",
    "QuietProgress",
    "Reporter",
    "StepInfo",
    "in_notebook",
    "make_progress",
    "session_progress",
]

Mode: TypeAlias = Literal["auto", "bar", "plain", "off"]
MODES: Final = get_args(Mode)
_SECONDS: Final = 5.0  # between step lines
_REDRAWN: Final = 0.2  # seconds between redraws in a notebook


@dataclass(frozen=True)
class StepInfo:
    """The facts of a step that are shown."""

    step: int
    epoch: int
    epochs: int
    loss: float
    learning_rate: float
    loss_scale: float
    skips: int

    def __str__(self) -> str:
        text = f"epoch {self.epoch + 1}/{self.epochs}  loss {self.loss:.4f}"
        text += f"  lr {self.learning_rate:.3g}"
        text += f"  scale {scale_text(self.loss_scale)}" if self.loss_scale != 1.0 else ""
        return text + (f"  skipped {self.skips}" if self.skips else "")


@runtime_checkable
class Reporter(Protocol):
    """Receives the trainer's messages."""

    def start(self, total: int | None, done: int) -> None:
        """A run of ``total`` steps (None if unknown) starts after step ``done``."""

    def step(self, info: StepInfo) -> None:
        """A step is done."""

    def result(self, text: str) -> None:
        """A line of information: the result of an epoch."""

    def message(self, text: str) -> None:
        """A line that must not be missed: a warning."""

    def close(self) -> None:
        """The run has ended, successfully or not."""


class QuietProgress:
    """Shows messages only, or nothing.

    Args:
        stream: Where messages go; None drops them.
        results: Also show the results of epochs.
    """

    def __init__(self, stream: IO[str] | None = None, *, results: bool = False) -> None:
        self._stream, self._results = stream, results

    def start(self, total: int | None, done: int) -> None:
        """Nothing to show."""

    def step(self, info: StepInfo) -> None:
        """Nothing to show."""

    def result(self, text: str) -> None:
        """Print the line if results are shown."""
        if self._results:
            self.message(text)

    def message(self, text: str) -> None:
        """Print the line if there is a stream that can take it."""
        if self._stream is None:
            return
        try:
            print(printable(text), file=self._stream, flush=True)
        except BrokenPipeError:  # the reader has left
            raise
        except OSError:  # a full disk; no reason to end a training
            self._stream = None

    def close(self) -> None:
        """Nothing to close."""


class PlainProgress(QuietProgress):
    """Plain lines for logs and CI: a step line at intervals, and every message.

    Args:
        stream: Where lines go, stderr by default.
        seconds: Minimum interval between step lines, in seconds.
        clock: A monotonic clock, in seconds.
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
        """Store the number of steps; the first step line appears after the first interval."""
        self._total, self._shown = total, self._clock()

    def step(self, info: StepInfo) -> None:
        """Print a line if the interval since the last one has passed."""
        now = self._clock()
        if now - self._shown >= self._seconds:
            self._shown = now
            total = f"/{self._total}" if self._total else ""
            self.message(f"step {info.step}{total}  {info}")


class BarProgress(QuietProgress):
    """A progress bar; messages scroll above it.

    Args:
        console: Where it is drawn; stderr by default. ``NO_COLOR`` is respected by rich.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(results=True)
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
        """Advance the bar (rich redraws it about ten times a second)."""
        self._bar.update(self._task, completed=info.step, description=str(info))

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()


class NotebookProgress(QuietProgress):
    """A bar and the results so far in the output of a notebook cell; needs IPython only."""

    def __init__(self) -> None:
        super().__init__(results=True)
        self._lines: list[str] = []
        self._total: int | None = None
        self._info: StepInfo | None = None
        self._drawn = 0.0
        self._handle: Any = None

    def start(self, total: int | None, done: int) -> None:
        """Open the output."""
        from IPython.display import HTML, display

        self._total, self._drawn = total, time.monotonic()
        self._handle = display(HTML(self._page()), display_id=True)

    def step(self, info: StepInfo) -> None:
        """Redraw the bar if the interval since the last time has passed."""
        self._info = info
        if time.monotonic() - self._drawn >= _REDRAWN:
            self._draw()

    def message(self, text: str) -> None:
        """Add a line below the bar."""
        self._lines.append(text)
        self._draw()

    def close(self) -> None:
        """Remove the bar; the lines remain."""
        self._info, self._total = None, None
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(self._page()))

    def _page(self) -> str:
        bar = ""
        if self._info is not None:
            of = f"/{self._total}" if self._total else ""
            length = f'value="{self._info.step}" max="{self._total}"' if self._total else ""
            bar = f"<progress {length}></progress> {self._info.step}{of} {escape(str(self._info))}"
        return f"<div>{bar}</div><pre>{escape(chr(10).join(self._lines))}</pre>"


def in_notebook() -> bool:
    """Whether this is a notebook session: IPython with a kernel, which can show HTML."""
    # Do not import IPython: a process that has not imported it is not in a notebook.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


def session_progress() -> Reporter:
    """The default reporter of the Python API: a bar if interactive, otherwise warnings only."""
    if in_notebook():
        return NotebookProgress()
    return BarProgress() if sys.stderr.isatty() else QuietProgress(sys.stderr)


def make_progress(mode: str = "auto", *, quiet: bool = False) -> Reporter:
    """The reporter for a mode.

    Args:
        mode: "bar", "plain", "off", or "auto": a bar if stderr is a terminal, otherwise plain
            lines.
        quiet: Show warnings only; "off" also shows the results of epochs.

    Raises:
        UsageError: The mode is unknown.
    """
    require_known(mode, MODES, f"Unknown progress mode '{mode}'.", "progress")
    if quiet or mode == "off":
        return QuietProgress(sys.stderr, results=not quiet)
    if mode == "bar" or (mode == "auto" and sys.stderr.isatty()):
        return BarProgress()
    return PlainProgress()
