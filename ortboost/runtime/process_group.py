"""Processes of a run and their communication with ``torch.distributed``.

``torchrun`` starts and restarts the processes. CPU tensors are exchanged with gloo, GPU tensors
with NCCL. Every call is collective: all processes make the same calls in the same order.
"""

from __future__ import annotations

import copy
import datetime
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, LostProcessError, UsageError, first_line
from ortboost.core.version import __version__

__all__ = [
    "Buffer",
    "Handle",
    "ProcessGroup",
    "WireType",
    "in_torchrun",
    "require_torch",
]

WireType: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""The type in which float32 values are exchanged."""
_ALIGNED: Final = 64  # bytes: alignment of tensors for vector instructions
_GRACE: Final = 5.0  # seconds for the remaining processes to report that they are alive


def in_torchrun() -> bool:
    """Whether ``torchrun`` started this process, as one of several or alone."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


@dataclass(frozen=True)
class Handle:
    """An asynchronous operation; :meth:`wait` blocks until it completes."""

    wait: Callable[[], None]


class Buffer:
    """Contiguous memory for several tensors, which are reduced together.

    Args:
        group: The processes.
        tensors: Name to shape.
        dtype: The dtype of all tensors.
        device: ``cpu`` or ``cuda``.
        wire: The type in which float32 values are exchanged.

    Raises:
        DependencyError: torch is not installed, or has no CUDA for ``device="cuda"``.
    """

    def __init__(
        self,
        group: ProcessGroup,
        tensors: Mapping[str, Sequence[int]],
        dtype: np.dtype[Any],
        device: str = "cpu",
        wire: WireType = "float32",
    ) -> None:
        torch = require_torch()
        if device == "cuda" and not torch.cuda.is_available():
            raise DependencyError(
                "This build of torch does not support CUDA.",
                where=f"torch {torch.__version__}, device cuda",
                fix="Install a CUDA build of torch, or use --device cpu.",
            )
        self._group, self.dtype, self.device = group, dtype, device
        step = max(1, _ALIGNED // dtype.itemsize)
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}  # first element, and shape
        length = 0
        for name, shape in tensors.items():
            self._places[name] = (length, tuple(shape))
            length += -(-math.prod(shape) // step) * step  # rounded up to the alignment
        self._all = torch.zeros(length, dtype=getattr(torch, dtype.name), device=device)
        # What is sent: the memory itself, or a copy in a narrower type.
        narrow = wire != "float32" and dtype == np.float32
        self._wire = self._all.to(getattr(torch, wire)) if narrow else self._all
        self._settle()

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._places)

    def alias(self, name: str, other: str) -> None:
        """Give a tensor a second name."""
        self._places[other] = self._places[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._places[name][1]

    def pointer(self, name: str) -> int:
        """Address of a tensor on its device."""
        return int(self._all.data_ptr()) + self._places[name][0] * self.dtype.itemsize

    def _view(self, name: str) -> Any:
        start, shape = self._places[name]
        return self._all[start : start + math.prod(shape)].view(shape)

    def read(self, name: str) -> NDArray[Any]:
        """A host copy of a tensor."""
        return np.array(self._view(name).cpu().numpy(), copy=True)

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Replace a tensor."""
        self._view(name).copy_(require_torch().from_numpy(np.asarray(value, self.dtype, order="C")))
        self._settle()

    def _settle(self) -> None:
        """Wait for the GPU: onnxruntime reads and writes this memory on a stream of its own."""
        if self.device == "cuda":
            require_torch().cuda.current_stream().synchronize()

    def scale(self, factor: float, names: Sequence[str] | None = None) -> None:
        """Multiply all values, or the named tensors.

        A factor of 0 gives 0 even for values that are not finite.
        """
        for part in [self._all] if names is None else map(self._view, names):
            if factor == 0.0:
                part.zero_()  # not mul_: 0 * inf is NaN
            elif factor != 1.0:
                part.mul_(factor)
        self._settle()

    def drop_not_finite(self) -> None:
        """Replace values that are not finite by 0."""
        self._all.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self._settle()

    def start_sum(self) -> Handle:
        """Start the all-reduce sum; the result is bit-identical in all processes."""
        if self._wire is not self._all:
            self._wire.copy_(self._all)
        travelling = self._group.start_sum(self._wire)

        def wait() -> None:
            travelling.wait()  # with NCCL, only torch's stream waits
            if self._wire is not self._all:
                self._all.copy_(self._wire)
            self._settle()

        return Handle(wait)


class ProcessGroup:
    """The processes of a run, as ``torchrun`` started them.

    Args:
        timeout: Seconds to wait for the other processes.

    Raises:
        DependencyError: torch is not installed.
        UsageError: The process was not started by ``torchrun``, or the processes cannot connect.

    Example:
        >>> with ProcessGroup() as group:  # doctest: +SKIP
        ...     Stepper(program, group=group).step(my_part_of_the_batch, {"learning_rate": 0.1})
    """

    def __init__(self, *, timeout: float = 600.0) -> None:
        if not in_torchrun():
            raise UsageError(
                "This process was not started by torchrun.",
                where="RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not all set",
                fix="torchrun --nproc-per-node 2 -m ortboost train RUN ..., or --processes 2.",
            )
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.timeout = timeout
        self._ranks: Any = None  # torch's handle of a subgroup; None for all processes
        if self.local_size > 1:
            _see_own_gpu(self.local_rank)  # before torch initializes CUDA
        torch = require_torch()
        self._dist, self._owner = torch.distributed, not torch.distributed.is_initialized()
        self._store: Any = None  # unknown if the caller initialized torch.distributed
        if self._owner:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            patience = datetime.timedelta(seconds=timeout)
            try:
                store, rank, size = next(self._dist.rendezvous("env://", timeout=patience))
                # torchrun's store survives a restart (torch 2.13): the addresses in it are stale.
                life = f"ortboost/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
                self._store = self._dist.PrefixStore(life, store)
                self._dist.init_process_group(
                    backend, store=self._store, rank=rank, world_size=size, timeout=patience
                )
            except Exception as error:  # torch raises errors of many kinds
                raise UsageError(
                    "The processes could not connect to each other.",
                    where=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}, rank "
                    f"{self.rank} of {self.size}: {first_line(error)}",
                    fix="Start all of them within the timeout (--timeout), with a free address and "
                    "port that all can reach.",
                ) from error

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group."""
        if self._owner and self._dist.is_initialized():
            self._dist.destroy_process_group()

    def part(self, members: Sequence[Sequence[int]]) -> ProcessGroup:
        """The subgroup of this process; every process passes the global ranks of all subgroups."""
        found = copy.copy(self)
        found._owner = False
        for ranks in members:  # a collective call: every process creates every group
            handle = self._dist.new_group(list(ranks))
            if self.rank in ranks:
                found.rank, found.size = list(ranks).index(self.rank), len(ranks)
                found._ranks = handle
        return found

    # ---- communication -------------------------------------------------------------------------

    def start_sum(self, tensor: Any) -> Handle:
        """Start the all-reduce sum of a torch tensor, in place."""
        work = self._guarded(
            lambda: self._dist.all_reduce(tensor, group=self._ranks, async_op=True)
        )
        return Handle(lambda: self._guarded(work.wait))

    def start_sum_of(self, array: NDArray[Any]) -> tuple[NDArray[Any], Handle]:
        """Start the all-reduce sum of a host array; the returned sum is valid after waiting."""
        total = np.array(array, order="C", copy=True)
        return total, self.start_sum(require_torch().from_numpy(total))

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """The sum of an array over all processes."""
        total, travelling = self.start_sum_of(array)
        travelling.wait()
        return total

    def gather(self, value: Any) -> list[Any]:
        """Gather a small picklable object from every process, by rank."""
        found: list[Any] = [None] * self.size
        self._guarded(lambda: self._dist.all_gather_object(found, value, self._ranks))
        return found

    def exchange(self, array: NDArray[Any], partner: int, like: NDArray[Any]) -> NDArray[Any]:
        """Send an array to the process of a global rank, and receive one from it.

        The received array has the shape and dtype of ``like``.
        """
        torch = require_torch()
        received = torch.empty(like.shape, dtype=getattr(torch, like.dtype.name))
        sent = torch.from_numpy(np.asarray(array, order="C"))

        def both() -> None:
            # Both start before either is waited for, as the partner waits for the same.
            for work in (self._dist.isend(sent, partner), self._dist.irecv(received, partner)):
                work.wait()

        self._guarded(both)
        found: NDArray[Any] = received.numpy()
        return found

    def agree(self, facts: Mapping[str, object], *, fix: str) -> None:
        """Check that facts by name, and the version of ortboost, are the same in all processes.

        Raises:
            UsageError: Processes differ; the message names the first such fact and its values.
        """
        found = self.gather({"version of ortboost": __version__, **facts})
        for name in found[0]:  # `get`: another version may have other facts
            for rank, other in enumerate(found):
                if other.get(name) != found[0][name]:
                    raise UsageError(
                        f"The processes do not match: {name} differs.",
                        where=f"rank 0: {found[0][name]}; rank {rank}: {other.get(name)}",
                        fix=fix,
                    )

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Make a call; if it fails because processes are gone, name them."""
        try:
            return call()
        except RuntimeError as error:  # torch.distributed's own errors are subclasses
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> LostProcessError:
        """The error that names the missing processes; the store of ``torchrun`` outlives them."""
        missing = [] if self._store is None else self._silent()
        who = f"rank {', '.join(map(str, missing))}" if missing else "a process"
        return LostProcessError(
            f"The run lost {who}: it ended, or did not respond for {self.timeout:g} seconds.",
            where=f"rank {self.rank} of {self.size}: {first_line(error)}",
            fix="See the output of that process; continue with --resume, or let torchrun restart "
            "(--max-restarts 3). If steps are slow, use a longer --timeout.",
        )

    def _silent(self) -> list[int]:
        """The ranks that do not report being alive; none if the store is gone too."""
        # Every remaining process fails in the same call, so all of them report here.
        try:
            self._store.set(f"alive/{self.rank}", "1")
            end = time.monotonic() + _GRACE
            while True:
                silent = [r for r in range(self.size) if not self._store.check([f"alive/{r}"])]
                if not silent or time.monotonic() > end:
                    return silent
                time.sleep(0.1)
        except RuntimeError:
            return []


def _see_own_gpu(local_rank: int) -> None:
    """Make only this process's GPU visible, as device 0; call it before CUDA is initialized."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    listed = [name for name in visible.split(",") if name]
    if len(listed) != 1:  # one: the launcher has chosen already
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            listed[local_rank] if local_rank < len(listed) else str(local_rank)
        )


def require_torch() -> Any:
    """The torch module.

    Raises:
        DependencyError: It is not installed, or has no ``torch.distributed``.
    """
    try:
        import torch
        import torch.distributed  # missing in some builds
    except ImportError as error:
        raise DependencyError(
            "Training in several processes needs PyTorch.",
            where=str(error),
            fix="pip install 'ortboost[distributed]'.",
        ) from error
    if not torch.distributed.is_available():
        raise DependencyError(
            "This build of torch has no torch.distributed.",
            where=f"torch {torch.__version__}",
            fix="Install a build for Linux from the package index.",
        )
    return torch
