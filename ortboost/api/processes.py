"""Training one program folder in several processes started by ``torchrun``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from ortboost.core.cores import available_cores
from ortboost.core.errors import FileError
from ortboost.runtime.process_group import ProcessGroup, in_torchrun, require_torch
from ortboost.runtime.shared_step import SharedStep
from ortboost.training.logs import read_log
from ortboost.training.signals import SignalGuard

__all__ = [
    "SharedSignals",
    "continues",
    "in_torchrun",
    "launch",
    "own_threads",
    "processes",
    "torchrun",
]

_MANY = 3  # Ctrl-C arrives twice, directly and from torchrun; a third one is from the user


@contextlib.contextmanager
def processes(timeout: float) -> Iterator[ProcessGroup | None]:
    """The group of processes started by ``torchrun``; ``None`` without ``torchrun``."""
    if not in_torchrun():
        yield None
        return
    with ProcessGroup(timeout=timeout) as group:
        yield group


def launch() -> dict[str, object]:
    """What identifies the ``torchrun`` that started this process; empty without one."""
    if not in_torchrun():
        return {}
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return {"id": name, "host": socket.gethostname(), "pid": os.getppid()}


def continues(log: Path) -> bool:
    """Whether ``torchrun`` restarted this process after a failure, in the run of this log.

    Otherwise the process that failed had not begun its run yet: the folder may hold an older one.
    """
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) == 0 or not in_torchrun():
        return False
    own, begun = launch(), None
    with contextlib.suppress(FileError):
        starts = [event for event in read_log(log) if event["event"] == "start"]
        begun = starts[-1].get("launch") if starts else None
    if not isinstance(begun, dict) or begun.get("id") != own["id"]:
        return False
    # torchrun's default id, "none", is the same for every launch. On one host the pid of torchrun
    # distinguishes launches; the log of another host counts as this launch, which may have moved.
    elsewhere = begun.get("host") != own["host"]
    return own["id"] != "none" or elsewhere or begun.get("pid") == own["pid"]


def own_threads(group: ProcessGroup | None, threads: int | None) -> int | None:
    """Threads of this process: if not given, its share of the cores of the machine."""
    if group is None or threads is not None:
        return threads
    return max(1, available_cores() // group.local_size)


def torchrun(number: int, arguments: Sequence[str], *, restarts: int = 0) -> list[str]:
    """Build the command that runs an ortboost command line in several processes on this machine.

    Example:
        >>> torchrun(2, ["train", "run"])[-6:]  # doctest: +SKIP
        ['--nproc-per-node', '2', '-m', 'ortboost', 'train', 'run']

    Raises:
        DependencyError: torch is not installed.
    """
    require_torch()
    command = [sys.executable, "-m", "ortboost.api.launch", "--standalone"]
    command += ["--max-restarts", str(restarts)]
    return [*command, "--nproc-per-node", str(number), "-m", "ortboost", *arguments]


class SharedSignals(SignalGuard):
    """Termination signals shared by all processes: the next step distributes a received signal.

    Args:
        shared: The step that the processes share.
    """

    def __init__(self, shared: SharedStep) -> None:
        self._shared, self._seen = shared, 0
        super().__init__()

    @property
    def received(self) -> int | None:
        """The signal that any of the processes received, as of the last step."""
        interrupted, terminated = self._shared.agreed
        if not interrupted and not terminated:
            return None
        return signal.SIGTERM if terminated else signal.SIGINT

    @received.setter
    def received(self, number: int | None) -> None:
        if number is not None:
            # The order of `agreed`: interrupted, terminated.
            self._shared.requests[int(number != signal.SIGINT)] = 1.0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._seen += 1
        if self._seen >= _MANY:
            self._restore()
