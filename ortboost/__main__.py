"""``python -m ortboost`` is the command ``ortboost``."""

from __future__ import annotations

import signal
import sys

from ortboost.cli import main
from ortboost.cli.supervise import supervised

__all__ = ["command"]


def command() -> None:
    """Entry point of the installed command."""
    sys.exit(supervised(_quietly, sys.argv[1:]))


def _quietly() -> int:
    """The command; a second Ctrl-C, while the first is told or the interpreter ends, prints no traceback."""
    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    command()
