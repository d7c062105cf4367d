"""``python -m ortboost`` is the command ``ortboost``."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

__all__ = ["command"]


def command() -> None:
    """Entry point of the installed command."""
    signal.signal(signal.SIGINT, _once)
    try:
        from ortboost.cli import main
        from ortboost.cli.supervise import supervised

        status = supervised(main, sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to interrupt
        status = 128 + signal.SIGINT
    sys.exit(status)


def _once(number: int, frame: object) -> NoReturn:
    """Interrupt, and let nothing interrupt the end: Ctrl-C often comes twice, or to a whole group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):  # at its end, Python takes back what is ignored
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    raise KeyboardInterrupt


if __name__ == "__main__":
    command()
