"""``python -m ortboost`` is the command ``ortboost``.

Ctrl-C may come at any moment, also during imports. The signal is blocked until a handler is
installed, and little is imported before that: an interrupted import would print a traceback.
"""

from __future__ import annotations

import sys

__all__ = ["command"]

_INTERRUPTED = 130


def command() -> None:
    """Entry point of the installed command."""
    try:
        import signal

        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        masks = hasattr(signal, "pthread_sigmask")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
        from ortboost.cli import interrupt_once
        from ortboost.cli.supervise import supervised

        if default:
            signal.signal(signal.SIGINT, interrupt_once)  # not where a shell lets it be ignored
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        status = supervised(_quietly, sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to interrupt
        status = _INTERRUPTED
    sys.exit(status)


def _quietly() -> int:
    """Run the command; a second Ctrl-C while it exits prints no traceback."""
    import gc
    import io
    import os
    import signal

    # Closed (>&-): no library may get its number for a file. The lowest free number is taken.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # the locale may not have what a path has
        sys.stdout.reconfigure(errors="backslashreplace")
    from ortboost.cli import leave_if_interrupted, main

    sys.unraisablehook = leave_if_interrupted
    try:
        status = main()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()  # no search for cycles in what the process leaves to the system: 0.1 s and more
    return status


if __name__ == "__main__":
    command()
