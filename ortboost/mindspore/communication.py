"""MindSpore's ``communication`` and the data-parallel part of ``set_auto_parallel_context``.

As in MindSpore, these settings apply to the whole process: ``torchrun`` starts it, :func:`init`
connects to the others, and training cells compiled afterwards share their steps::

    init()
    set_auto_parallel_context(parallel_mode=ParallelMode.DATA_PARALLEL, gradients_mean=True)
    data = my_part_of_the_data(get_rank(), get_group_size())
"""

from __future__ import annotations

import warnings
from typing import Any, Final

from ortboost.mindspore.core.arguments import (
    ArgumentRuntimeError,
    ArgumentValueError,
    NotInThisVersionError,
)
from ortboost.runtime.process_group import ProcessGroup

__all__ = [
    "ParallelMode",
    "get_group_size",
    "get_rank",
    "init",
    "release",
    "reset_auto_parallel_context",
    "set_auto_parallel_context",
    "shared_group",
]


class ParallelMode:
    """Names of the modes; only the first two are supported.

    Example:
        >>> ParallelMode.DATA_PARALLEL
        'data_parallel'
    """

    STAND_ALONE: Final = "stand_alone"
    DATA_PARALLEL: Final = "data_parallel"
    HYBRID_PARALLEL: Final = "hybrid_parallel"
    SEMI_AUTO_PARALLEL: Final = "semi_auto_parallel"
    AUTO_PARALLEL: Final = "auto_parallel"


class _Process:
    """The settings of this process, which MindSpore keeps globally, too."""

    group: ProcessGroup | None = None
    mode: str = ParallelMode.STAND_ALONE


def init(backend_name: str | None = None) -> None:
    """Connect to the other processes; a second call has no effect.

    Args:
        backend_name: ``gloo``, ``nccl`` or ``None``; the backend always follows from the device.

    Raises:
        ArgumentValueError: The backend is not supported.
        UsageError: The process was not started by ``torchrun``.
        DependencyError: torch is not installed.
    """
    if backend_name not in (None, "gloo", "nccl"):
        raise ArgumentValueError(
            f"Unknown backend '{backend_name}'.",
            where="communication.init, backend_name",
            fix="Leave it out: gloo is used for the CPU, NCCL for a GPU.",
        )
    if _Process.group is None:
        _Process.group = ProcessGroup()


def release() -> None:
    """Disconnect from the other processes."""
    if _Process.group is not None:
        _Process.group.close()
        _Process.group = None


def get_rank() -> int:
    """The rank of this process, from 0.

    Raises:
        ArgumentRuntimeError: Before :func:`init`.
    """
    return _group().rank


def get_group_size() -> int:
    """The number of processes.

    Raises:
        ArgumentRuntimeError: Before :func:`init`.
    """
    return _group().size


def set_auto_parallel_context(**settings: Any) -> None:
    """Configure how training cells compiled afterwards share their steps.

    Args:
        **settings: ``parallel_mode``: ``stand_alone`` or ``data_parallel``; ``gradients_mean``:
            True, the mean over all samples; ``device_num``: the number of processes, which is
            checked. MindSpore's default of ``gradients_mean`` is False, the sum, so that
            ``data_parallel`` without it gives a warning.

    Raises:
        ArgumentValueError: A value is invalid, or the number of processes differs.
        NotInThisVersionError: The mode or setting is not supported.
        ArgumentRuntimeError: ``data_parallel`` before :func:`init`.

    Example:
        >>> set_auto_parallel_context(parallel_mode=ParallelMode.STAND_ALONE)
    """
    where, given = "set_auto_parallel_context", frozenset(settings)
    mode = settings.pop("parallel_mode", _Process.mode)
    number = settings.pop("device_num", None)
    # Only a call that chooses the mode has to say how gradients are combined.
    says_mean = "gradients_mean" in settings or "parallel_mode" not in given
    mean = settings.pop("gradients_mean", True)
    known = [value for name, value in vars(ParallelMode).items() if name.isupper()]
    if mode not in known:
        raise ArgumentValueError(
            f"Unknown mode {mode!r}.", where=where, fix=f"Choices: {', '.join(known)}."
        )
    if settings or mode not in known[:2] or not mean:  # what is left in settings is unknown
        name = next(iter(settings), f"parallel_mode={mode}" if mean else "gradients_mean=False")
        raise NotInThisVersionError(
            f"'{name}' is not in this version.",
            where=where,
            fix="Use parallel_mode='data_parallel' with gradients_mean=True.",
        )
    if mode == ParallelMode.DATA_PARALLEL:
        _group()
    size = 1 if _Process.group is None else _Process.group.size
    if number not in (None, size):
        found = "is 1 process" if size == 1 else f"are {size} processes"
        raise ArgumentValueError(
            f"device_num is {number}, but there {found}.",
            where=where,
            fix="Leave it out, or start that many, torchrun --nproc-per-node N, and call init().",
        )
    if mode == ParallelMode.DATA_PARALLEL and not says_mean:
        warnings.warn(
            "gradients_mean is not given: gradients are averaged, where MindSpore's default is "
            "their sum; give gradients_mean=True",
            stacklevel=2,
        )
    _Process.mode = mode


def reset_auto_parallel_context() -> None:
    """Reset to a single process."""
    _Process.mode = ParallelMode.STAND_ALONE


def shared_group() -> ProcessGroup | None:
    """The processes that share a step; ``None`` in stand-alone mode."""
    return _group() if _Process.mode == ParallelMode.DATA_PARALLEL else None


def _group() -> ProcessGroup:
    if _Process.group is None:
        raise ArgumentRuntimeError(
            "The processes are not connected.",
            where="communication",
            fix="Call communication.init() first.",
        )
    return _Process.group
