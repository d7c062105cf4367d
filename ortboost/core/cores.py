"""The processors that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["available_cores"]

_CGROUPS: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Number of logical processors that this process may keep busy, at least 1.

    A process may be bound to some of them, and a container may be limited to the time of a few on a
    machine with many (``docker run --cpus 2``; see "cpu.max" in the Linux documentation of control
    groups, and "cpu.cfs_quota_us" in that of their first version).

    Example:
        >>> available_cores() >= 1
        True
    """
    if hasattr(os, "sched_getaffinity"):  # Linux
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    return min([bound, *_limits()])


def _limits() -> Iterator[int]:
    """The limits of the control groups that the process is in, in whole processors."""
    for folder in _groups():
        try:
            if (file := folder / "cpu.max").exists():
                quota, period = file.read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:  # -1 for no limit
                yield math.ceil(int(quota) / int(period))
        except (
            OSError,
            ValueError,
            ZeroDivisionError,
        ):  # not a group of processors, or not one of Linux
            continue


def _groups() -> Iterator[Path]:
    """The control groups of the process, from the root down to its own."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()  # as 4:cpu,cpuacct:/docker/1f, or 0::/user
    except OSError:
        return
    for _, controllers, own in (line.split(":", 2) for line in lines):
        if not controllers or "cpu" in controllers.split(","):
            root = _CGROUPS / controllers
            yield root
            # In a container the own path may be that of the host, which is not there.
            parts = Path(own.lstrip("/")).parts
            yield from (root.joinpath(*parts[: i + 1]) for i in range(len(parts)))
