"""Run a command in a child process, so that a crash of a library ends in an error, not in silence.

A damaged model can make native code divide by zero or read outside its memory. No exception tells
of that: the operating system ends the process. Here it ends a child, forked before anything is
loaded, and the parent says in three lines what happened. Signals that are sent to the parent go on
to the child; those of the terminal reach both by themselves.

Linux only, where the death of the parent ends the child, too; elsewhere the command runs as it is.
``ORTBOOST_ONE_PROCESS=1`` does the same, for debuggers and profilers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

__all__ = ["CRASHED", "supervised"]

CRASHED = 10
"""Exit status after a crash in native code."""

_PR_SET_PDEATHSIG = 1
_SENT_BY_KERNEL = 0x80  # si_code of signals that the terminal sends to the whole group
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PATIENCE = 1.0  # seconds to the next look at the child, should a thread have caught its signal
_CRASHES = {
    signal.SIGSEGV: "it read or wrote outside its memory",
    signal.SIGBUS: "it read or wrote outside its memory",
    signal.SIGFPE: "an integer was divided by zero, or overflowed in a division",
    signal.SIGABRT: "it gave up",
    signal.SIGILL: "the processor does not know an instruction",
    signal.SIGTRAP: "it gave up",
}


def supervised(run: Callable[[], int], words: Sequence[str]) -> int:
    """Run a command in a child and return its exit status, or :data:`CRASHED` after a crash.

    Args:
        run: The command; what it returns is the exit status.
        words: The command line, for the error.
    """
    if not sys.platform.startswith("linux") or os.environ.get("ORTBOOST_ONE_PROCESS"):
        return run()
    parent = os.getpid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would not come, nor the status
    waited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
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
        if found.si_code != _SENT_BY_KERNEL:
            os.kill(child, found.si_signo)


def _exit_status(status: int, words: Sequence[str], *, interrupted: bool) -> int:
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = signal.Signals(os.WTERMSIG(status))
    if interrupted:  # libraries abort when Ctrl-C comes while they are imported
        number = signal.SIGINT
    if number in _CRASHES:
        what = f"A library crashed ({number.name}): {_CRASHES[number]}."
        fix = "The model or a data file is damaged or hostile, or the library has a bug: please report it."
        status = CRASHED
    else:
        what = f"The process was ended by {number.name}."
        fix = (
            "Run it again; files are written whole or not at all. A training goes on with --resume."
        )
        if number == signal.SIGINT:
            what = "Interrupted."
        if number == signal.SIGKILL:
            fix = f"If nobody did that, memory ran out. {fix}"
        status = 128 + number
    print(f"error: {what}", file=sys.stderr)
    print(f"  where: ortboost {' '.join(words)}", file=sys.stderr)
    print(f"  fix:   {fix}", file=sys.stderr)
    return status
