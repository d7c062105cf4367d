"""The state of data-parallel steps: what differs between processes, and how it is merged."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.adasum import AdaSum
from ortboost.core.errors import ModelError
from ortboost.core.tensor_file import pieces_of
from ortboost.program import names
from ortboost.program.catalogue import StateEntry
from ortboost.program.gradients import LARGEST_NORM
from ortboost.program.program import Program
from ortboost.runtime.adasum import SharedAdaSum
from ortboost.runtime.process_group import Buffer, ProcessGroup, WireType
from ortboost.runtime.state import DeviceState

__all__ = ["SharedState", "checksum"]


class SharedState:
    """Merges the states of the processes of a group.

    Running statistics are those of a process's parts until they are averaged, unless all processes
    compute the same ones (``synchronized``); the sums of an incomplete window are spread over the
    processes until rank 0 has them all; with AdaSum, parameters and slots are those of a server.

    Attributes:
        server: The processes that sum gradients: all, or with AdaSum those of one server.
        moved: Whether steps have changed running statistics since the last average.
    """

    def __init__(
        self,
        program: Program,
        state: DeviceState,
        group: ProcessGroup,
        wire: WireType,
        *,
        synchronized: bool,
    ) -> None:
        self._program, self._state, self._group, self._wire = program, state, group, wire
        self._synchronized = synchronized
        self._accumulates = program.config.accumulator is not None
        joins = next((b for b in program.config.enabled_boosts if isinstance(b, AdaSum)), None)
        self._adasum = None if joins is None else SharedAdaSum(joins, group)
        self._every = 1 if joins is None else joins.every
        self._updates = 0  # since the last AdaSum
        self._common: dict[str, NDArray[Any]] = {}  # the last weights that all servers shared
        self.server = group if self._adasum is None else self._adasum.server
        self.moved = False

    @property
    def joins(self) -> bool:
        """Whether the servers combine their updates with AdaSum."""
        return self._adasum is not None

    @contextlib.contextmanager
    def joining(self, graph: str) -> Iterator[None]:
        """Context around an update: afterwards, combine the servers' updates with AdaSum if due."""
        if self._adasum is None or (self._accumulates and graph.startswith(names.STEP_GRAPH)):
            yield
            return
        # With freeze groups, graphs write different parameters: each is kept before it first moves.
        for entry in self._program.catalogue_of(graph).entries("parameter"):
            if entry.next is not None and entry.name not in self._common:
                self._common[entry.name] = self._state.read(entry.name)
        yield
        self._updates += 1
        if self._updates >= self._every:
            self.join_servers()

    def join_servers(self) -> None:
        """Combine the updates of the servers if their parameters differ."""
        self._updates = 0
        if self._adasum is None or not self._common:
            return
        deltas = {name: old - self._state.read(name) for name, old in self._common.items()}
        for name, delta in self._adasum.join(deltas).items():
            self._state.write(name, self._common[name] - delta)
        self._common.clear()

    def join_sums(self, *, keep: bool = True) -> None:
        """Sum the accumulated gradients of the window over the processes.

        Without ``keep`` this process's accumulators are zeroed.

        Raises:
            ModelError: A sum overflows.
        """
        if not self._accumulates:
            return
        entries = [e for e in self._state.catalogue.state if _is_sum(e)]
        for dtype in dict.fromkeys(entry.dtype for entry in entries):
            shapes = {e.name: e.shape for e in entries if e.dtype == dtype}
            buffer = Buffer(self.server, shapes, dtype, "cpu", self._wire)
            for name in shapes:
                buffer.write(name, self._state.read(name))
            buffer.start_sum().wait()
            buffer.scale(float(keep))
            for name in shapes:
                total = buffer.read(name)
                # Each part is finite, but the sum may overflow; see ortboost.program.gradients.
                if not np.linalg.norm(total.astype(np.float64)) < LARGEST_NORM:
                    raise ModelError(
                        f"The sum of an accumulation window overflowed: '{name}'.",
                        where="gradient accumulation in several processes",
                        fix="Use the reduction 'mean', or a smaller loss scale or --exchange-dtype "
                        "bfloat16.",
                    )
                self._state.write(name, total)

    def settle(self) -> None:
        """Merge the states of all processes: average statistics; rank 0 gets the accumulators."""
        self.average()
        self.join_sums(keep=self.server.rank == 0)
        if self._adasum is None:
            return
        for entry in self._state.catalogue.entries("slot"):  # the mean over the servers' optimizers
            mean = self._mean(entry.name)
            if _is_sum(entry):  # one process per server has it
                mean *= self.server.size if self.server.rank == 0 else 0
            self._state.write(entry.name, mean)

    def average(self) -> None:
        """Combine the servers' updates, and average running statistics that steps have changed."""
        self.join_servers()
        if not self.moved:
            return
        self.moved = False
        for entry in self._state.catalogue.entries("buffer"):
            if entry.next is not None and entry.dtype.kind == "f":
                self._state.write(entry.name, self._mean(entry.name))

    def _mean(self, name: str) -> np.ndarray:
        """The mean of a tensor over all processes, in float64."""
        return self._group.sum(self._state.read(name).astype(np.float64)) / self._group.size

    def take(self) -> None:
        """Call it in all processes after loading a state: only rank 0 keeps the accumulators."""
        self.leave_sums()
        self.moved = False
        self._common.clear()
        self._updates = 0

    def leave_sums(self) -> None:
        """Zero the accumulated sums in all processes but rank 0."""
        if self.server.rank:
            for entry in self._state.catalogue.state:
                if _is_sum(entry):
                    self._state.write(entry.name, np.zeros(entry.shape))

    def check(self, step: int) -> None:
        """Check that replicated state is the same in all processes (between AdaSums, per server).

        Raises:
            ModelError: A tensor differs; the message names the first one and a rank where it does.
        """
        # What differs by design: optimizers of servers, running statistics unless synchronized.
        own = {"slot"} if self._adasum is not None else set()
        if not self._synchronized:
            own.add("buffer")
        entries = [
            entry
            for entry in self._state.catalogue.state
            if entry.kind not in own and not entry.sharded and not _is_sum(entry)
        ]
        arrays = (np.ascontiguousarray(self._state.read(entry.name)) for entry in entries)
        sums = np.array([zlib.crc32(array.data) for array in arrays], np.int64)
        found = (self.server if self._common else self._group).gather(sums)
        for rank, other in enumerate(found):
            different = np.flatnonzero(other != found[0])
            if different.size:
                raise ModelError(
                    f"The processes have diverged: '{entries[different[0]].name}' differs, and "
                    f"{different.size - 1} more.",
                    where=f"step {step}, rank 0 and rank {rank}",
                    fix="The processes must have the same hardware and runtime. Resume from a "
                    "checkpoint before this step.",
                )


def _is_sum(entry: StateEntry) -> bool:
    """Whether a state is the sum of a parameter's gradients over a window."""
    return entry.name.startswith(names.accumulator_name(""))


def checksum(state: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 of the tensors of a state, in the order of their names."""
    total = 0
    for name in sorted(state):
        for piece in pieces_of(state, name):
            total = zlib.crc32(piece.view(np.uint8).data, total)
    return total
