"""Ctrl-C, SIGTERM and SIGHUP: finish the step, save, and exit with the conventional status."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from ortboost.core.errors import OrtBoostError

__all__ = ["Interrupted", "SignalGuard", "Terminated"]


class Interrupted(OrtBoostError):  # noqa: N818 - a request, like KeyboardInterrupt
    """Training was interrupted (Ctrl-C); the message names the checkpoint that was written."""

    exit_status = 130


class Terminated(Interrupted):
    """Training received SIGTERM or SIGHUP; handled like an interruption."""

    exit_status = 143


_SAME = 0.5  # seconds in which a repeated signal counts as one: `timeout` sends it twice
_ASKING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class SignalGuard:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a request; a later one has its usual effect.

    Handlers are installed in the main thread only (Python requires it) and restored on exit.

    Example:
        >>> with SignalGuard() as signals:
        ...     print(signals.received)
        None
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is threading.main_thread():
            for number in _ASKING:
                ignored = signal.getsignal(number) is signal.SIG_IGN
                if not (ignored and number == getattr(signal, "SIGHUP", None)):  # set by nohup
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > _SAME:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            # None means a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def error(self, step: int, saved: str | None) -> Interrupted:
        """The error that ends the training after a request."""
        kind, word = (
            (Terminated, "terminated")
            if self.received != signal.SIGINT
            else (Interrupted, "interrupted")
        )
        return kind(
            f"Training was {word} after step {step}.",
            where=saved or "nothing was saved: the run has no checkpoint folder",
            fix="Continue with --resume." if saved else "Give the run a checkpoint folder.",
        )
