"""``python -m ortboost`` is the command ``ortboost``."""

from __future__ import annotations

import sys

from ortboost.cli import main
from ortboost.cli.supervise import supervised

__all__ = ["command"]


def command() -> None:
    """Entry point of the installed command."""
    sys.exit(supervised(main, sys.argv[1:]))


if __name__ == "__main__":
    command()
