"""Run a command in a child process, so that a crash in native code ends in an error message.

A damaged model can make native code divide by zero or access memory out of bounds. Python raises no
exception then: the operating system kills the process. Here it kills a child, forked before any
library is loaded, and the parent prints a three-line error. Signals sent to the parent are
forwarded to the child; signals from the terminal reach both anyway.

On Linux only, where the child also dies with the parent; elsewhere the command runs directly, as it
does with ``ORTBOOST_ONE_PROCESS=1``, for debuggers and profilers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

from ortboost.cli import print_error

__all__ = ["CRASHED", "supervised"]

CRASHED = 10
"""Exit status after a crash in native code."""

_PR_SET_PDEATHSIG = 1
_SENT_BY_KERNEL = 0x80  # si_code of signals that the terminal sends to the whole group
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PATIENCE = 1.0  # seconds between checks of the child, in case another thread consumed SIGCHLD
_CRASHES = {
    signal.SIGSEGV: "invalid memory access",
    signal.SIGBUS: "invalid memory access",
    signal.SIGFPE: "integer division by zero or overflow in a division",
    signal.SIGABRT: "aborted",
    signal.SIGILL: "instruction not supported by this processor",
    signal.SIGTRAP: "aborted",
}


def supervised(run: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command in a child and return its exit status, or :data:`CRASHED` after a crash.

    ``words`` are the command-line arguments, for the error message.
    """
    if not sys.platform.startswith("linux") or os.environ.get("ORTBOOST_ONE_PROCESS"):
        return run()
    parent = os.getpid()
    # If it were ignored, neither the signal nor the exit status would arrive.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waited = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)  # before the fork: none is lost
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # The parent may have died before prctl.
        return run() if os.getppid() == parent else 128 + signal.SIGKILL
    interrupted = False
    while True:
        found = signal.sigtimedwait(waited, _PATIENCE)
        if found is None or found.si_signo == signal.SIGCHLD:
            gone, status = os.waitpid(child, os.WNOHANG)
            if gone:
                return _exit_status(status, words, interrupted=interrupted)
            continue
        interrupted |= found.si_signo == signal.SIGINT
        # Ctrl-C in a terminal reaches the child by itself.
        if found.si_code != _SENT_BY_KERNEL:
            os.kill(child, found.si_signo)


def _exit_status(status: int, words: Sequence[str], *, interrupted: bool) -> int:
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = signal.Signals(os.WTERMSIG(status))
    if interrupted:  # libraries may abort on Ctrl-C during import
        number = signal.SIGINT
    if number in _CRASHES:
        what = f"A library crashed ({number.name}): {_CRASHES[number]}."
        fix = (
            "The model or a data file is damaged or malicious, or the library has a bug: please "
            "report it."
        )
        status = CRASHED
    else:
        what = f"The process was killed by {number.name}."
        fix = "Run it again; files are written whole or not at all."
        if words[:1] == ["train"]:
            fix += " Continue training with --resume."
        if number == signal.SIGINT:
            what = "Interrupted."
        if number == signal.SIGKILL:
            fix = f"Unless someone killed it, it ran out of memory. {fix}"
        status = 128 + number
    return print_error(what, words, fix, status)
