"""Command lines in forks of one process that has everything imported and has opened nothing.

A session of onnxruntime has threads, which a fork does not take along. So what runs a command, even
to find out which modules it needs, is itself a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ortboost.cli import main as ortboost

__all__ = ["preload", "run_case"]


def preload(work: Callable[[], None]) -> None:
    """Do some work in a fork, then import here what it needed there.

    Args:
        work: What needs the modules; what it raises ends this process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(SystemExit):
            work()
            with os.fdopen(writing, "w") as pipe:
                json.dump(sorted(sys.modules), pipe)
            status = 0
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    if os.waitpid(child, 0)[1] or not text:
        raise SystemExit("the whole files could not be made")
    for name in json.loads(text):
        if name != "__main__":
            with contextlib.suppress(ImportError, AttributeError):  # made, not imported, there
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of this


def run_case(
    command: list[str], said: Path, *, seconds: float, gigabytes: float, curves: bool = True
) -> tuple[str, float]:
    """Run one command line in a fork, with limits.

    Args:
        command: Words after ``ortboost``.
        said: Where to write what it prints.
        seconds: After so long it is killed, with the processes that it started.
        gigabytes: Limit of its address space.
        curves: Whether training may draw its curves, which takes longer than all the rest.

    Returns:
        ``"exit 8"``, ``"signal SIGFPE"`` or ``"hang"``, and the seconds it took.
    """
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        faulthandler.disable()  # it writes where the parent does
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not curves:
            sys.modules["matplotlib.figure"] = None  # type: ignore[assignment] - not to be found
        status = 1
        with contextlib.suppress(BaseException):
            os.chdir(said.parent)
            status = ortboost(command)
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    with contextlib.suppress(ProcessLookupError):  # what it started, too
        os.killpg(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    took = time.monotonic() - started
    if not ended:
        return "hang", took
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}", took
    return f"exit {os.WEXITSTATUS(status)}", took
