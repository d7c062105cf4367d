"""``python -m ortboost`` is the command ``ortboost``."""

from __future__ import annotations

import signal
import sys

__all__ = ["command"]


def command() -> None:
    """Entry point of the installed command."""
    try:
        from ortboost.cli import interrupt_once
        from ortboost.cli.supervise import supervised

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt_once)  # not where a shell lets it be ignored
        status = supervised(_quietly, sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to interrupt
        status = 128 + signal.SIGINT
    sys.exit(status)


def _quietly() -> int:
    """The command; a second Ctrl-C, while the first is told or the interpreter ends, prints no traceback."""
    from ortboost.cli import main

    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return status


if __name__ == "__main__":
    command()
