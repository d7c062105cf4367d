r"""Data-parallel steps: each process computes gradients, which are all-reduced before the update.

Each process runs ``gradients`` on its part of the batch. With `n_r` the samples of part `r`, or its
labels that are not ignored, and `n` the sum over all parts::

    G = sum_r (n_r / n) G_r        for a mean loss;  sum_r G_r for a sum

which is the gradient of the whole batch. Other batch statistics of boosts (the factors of THOR) are
means; they are summed with the weights `n_r / n` in float32, for any loss. In a part whose labels
are all ignored, the inputs still belong to those means: `n_r` is 1 there, as in the graph, and
statistics of its gradients, 0 / 0, count as zero. Then every process runs ``update`` with the same
`G`, so that parameters stay bit-identical in all processes without being sent. A process whose part
is empty contributes nothing.

Within a window of gradient accumulation only the finite check is exchanged; the accumulated sums
are all-reduced at the end of the window. State that differs between processes (running statistics,
sums of an incomplete window) is merged when the state is read: statistics are averaged, and rank 0
holds the sums.

Source: Li et al., PyTorch Distributed (VLDB 2020), for buckets and for local running statistics.
Weighting by samples keeps the mean over the batch exact if the parts have different sizes.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.adasum import AdaSum
from ortboost.core.errors import ConfigError, ModelError, UsageError
from ortboost.core.tensor_file import pieces_of
from ortboost.program import catalogue as names
from ortboost.program.catalogue import TensorSpec
from ortboost.program.gradients import LARGEST_NORM
from ortboost.program.program import Program
from ortboost.program.split import split_program
from ortboost.runtime.adasum import SharedAdaSum
from ortboost.runtime.compiled_graph import CompiledGraph
from ortboost.runtime.process_group import Buffer, Handle, ProcessGroup, WireType
from ortboost.runtime.session import drawing
from ortboost.runtime.split_graphs import SplitGraphs
from ortboost.runtime.state import DeviceState
from ortboost.runtime.update_graph import UpdateGraph

__all__ = ["SharedStep", "count_samples"]

_SEGMENTS: Final = 4  # default between machines; see docs/scale.md
_SMALL: Final = 2**18  # bytes of gradients below which segments do not pay off


class SharedStep:
    """Data-parallel steps of a program in the processes of a group.

    Args:
        program: The program.
        group: The processes.
        wire: The type in which gradients are exchanged.
        segments: Number of segments of the backward pass; the gradients of one segment are
            exchanged while the next runs. ``None`` to choose depending on whether the processes
            are on one machine. With two processes the results do not depend on it; with more, only
            the order of summation does.

    Raises:
        UsageError: The processes have different programs or versions.
        ConfigError: AdaSum with a loss that is not a mean.
        ModelError: See :func:`ortboost.program.split.split_program`.
    """

    def __init__(
        self,
        program: Program,
        group: ProcessGroup,
        wire: WireType = "float32",
        segments: int | None = None,
    ) -> None:
        self.program, self.group, self.wire = program, group, wire
        self.segments = segments
        self.splits = split_program(program)
        self.requests = np.zeros(2)  # SIGINT, SIGTERM: received by this process
        self.agreed = np.zeros(2)  # the same, summed over all processes in the last step
        self._accumulates = program.config.accumulator is not None
        self._mean = program.config.loss.reduction == "mean" or program.config.loss.name == "output"
        self._opened: dict[str, SplitGraphs] = {}
        self._flushes: dict[str, UpdateGraph] = {}
        self._moved = False  # whether steps have changed running statistics since the last average
        self._share = 0.0  # n_r / n of the last step, within the server
        joins = next((b for b in program.config.enabled_boosts if isinstance(b, AdaSum)), None)
        self._adasum = None if joins is None else SharedAdaSum(joins, group)
        self._every = 1 if joins is None else joins.every
        self._updates = 0  # since the last AdaSum
        self._common: dict[str, NDArray[Any]] = {}  # the last weights that all servers shared
        self.server = group if self._adasum is None else self._adasum.server
        if self._adasum is not None and not self._mean:
            raise ConfigError(
                "AdaSum needs a mean loss: a sum grows with the number of samples of a server.",
                where=f"loss '{program.config.loss.name}', {program.config.loss.reduction}",
                fix="Use the reduction 'mean'.",
            )
        group.agree(
            {
                "the program": program.fingerprint,
                "its initial state": _crc_of(program.initial),
                "the number of segments": segments,
            },
            fix="Give all processes the same folder, or copies of one, and the same settings.",
        )

    def run(
        self,
        graph: str,
        feeds: Mapping[str, NDArray[Any]],
        state: DeviceState,
        threads: int | None,
        *,
        seed: int | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a step on this process's part of the batch.

        Args:
            graph: Name of the step graph.
            feeds: The validated part and the learning rates; only the rates if the part is empty.
            state: The state; it is updated.
            threads: Intra-op threads.
            seed: Seed of this process's random numbers; ``None`` if the step draws none.

        Returns:
            The outputs of the step graph for the whole batch.

        Raises:
            UsageError: No process has a sample.
        """
        # All processes make the same calls of the group in the same order, also one without
        # samples: it skips forward and backward pass, and adds zeros.
        graphs = self.open(graph, state, threads)
        rates = {name: feeds[name] for name in graphs.rates}
        feeds = {s.name: feeds[s.name] for s in self.program.catalogue.batch if s.name in feeds}
        number, counted = count_samples(self.program.catalogue.batch, feeds)
        # Without labels there is no loss here, but inputs still belong to means, and to exchanges.
        ran = bool(counted or (number and (graphs.means or graphs.exchanges)))
        counts = np.array([counted, number, ran, *self.requests])
        totals, travelling = self.group.start_sum_of(counts)
        nearby, arriving = totals, travelling
        if self.server is not self.group:
            nearby, arriving = self.server.start_sum_of(counts)
        weight, values = 0.0, dict[str, NDArray[Any]]()
        sent: list[Handle] = []
        for i in range(len(graphs.gradients)):
            if ran:  # the lock not around communication, which could deadlock with threads
                with drawing(graphs.seed(seed, i)):
                    values |= graphs.gradients.run(i, feeds)
            if i == 0:  # the counts traveled while the first segment ran
                travelling.wait()
                arriving.wait()
                if not totals[1]:
                    raise UsageError(
                        "The batch is empty in all processes.",
                        where=f"inputs {', '.join(s.name for s in self.program.catalogue.batch)}",
                        fix="Feed at least one sample to one of them.",
                    )
                self._share = counted / nearby[0] if nearby[0] else 0.0
                weight = self._share if self._mean else float(counted > 0)
                if graphs.exchanges and ran:  # without labels, of the losses of other parts
                    weight = max(counted, 1) / max(totals[0], 1) if self._mean else 1.0
            # These gradients travel while the next segment runs; exchanged sums it has to wait for.
            sent += graphs.start_sums(i, weight)
            graphs.exchange(i, weight if ran else None)
        if not counted:
            values = {}  # a loss of 0 / 0
            graphs.clear(state, empty=not (ran and graphs.exchanges))
        if graphs.exchanges and totals[2] < self.group.size:
            graphs.spread_statistics(float(ran) / totals[2])  # equal in all that ran
        self.agreed = totals[3:]
        # Loss and metrics are those of all servers; the gradients may be those of one.
        of_all = counted / totals[0] if totals[0] else 0.0
        own = self._weighted(values, of_all, number / max(totals[1], 1.0), graphs.shown)
        shown, showing = self.group.start_sum_of(own)
        of_means = max(counted, 1) / totals[0] if ran and totals[0] else 0.0
        for handle in (*sent, *graphs.start_rest(weight, of_means), showing):
            handle.wait()
        # From here on the processes of a server have the same values, and make the same update.
        self._moved = True
        numbers = {
            s.name: np.asarray(x, np.float32) for s, x in zip(graphs.shown, shown, strict=True)
        }
        with self.joining(state, graph):
            return {**numbers, **graphs.update.run(rates)}

    def flush(
        self,
        graph: str,
        rates: Mapping[str, NDArray[Any]],
        state: DeviceState,
        threads: int | None,
    ) -> None:
        """Run a flush graph on the sums of a window over all processes."""
        flush = self.open_flush(graph, state, threads)
        self.join_sums(state)
        with self.joining(state, graph):
            flush.run(rates)
        self.leave_sums(state)

    def try_rate(
        self,
        trial: CompiledGraph,
        feeds: Mapping[str, NDArray[Any]],
        *,
        seed: int | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Run a line-search trial on the last step's part; returns the loss of the whole batch."""
        if not self._share:  # an empty part contributes nothing to the sums
            loss, promised = 0.0, 0.0
        else:
            with drawing(seed):
                found = trial.run(feeds)
            loss, promised = (float(found[name]) for name in (names.LOSS, names.PROMISED))
        total = self.group.sum(self._share * np.array([loss, promised]))
        return {
            names.LOSS: np.asarray(total[0], np.float32),
            names.PROMISED: np.asarray(total[1], np.float32),
        }

    @contextlib.contextmanager
    def joining(self, state: DeviceState, graph: str) -> Iterator[None]:
        """Context around an update: afterwards, combine the servers' updates with AdaSum if due."""
        if self._adasum is None or (self._accumulates and graph.startswith(names.STEP_GRAPH)):
            yield
            return
        # With freeze groups, graphs write different parameters: each is kept before it first moves.
        for entry in self.program.catalogue_of(graph).entries("parameter"):
            if entry.next is not None and entry.name not in self._common:
                self._common[entry.name] = state.read(entry.name)
        yield
        self._updates += 1
        if self._updates >= self._every:
            self.join_servers(state)

    def join_servers(self, state: DeviceState) -> None:
        """Combine the updates of the servers if their parameters differ."""
        self._updates = 0
        if self._adasum is None or not self._common:
            return
        deltas = {name: old - state.read(name) for name, old in self._common.items()}
        for name, delta in self._adasum.join(deltas).items():
            state.write(name, self._common[name] - delta)
        self._common.clear()

    def _weighted(
        self,
        values: Mapping[str, NDArray[Any]],
        share: float,
        of_samples: float,
        specs: Sequence[TensorSpec],
    ) -> NDArray[np.float64]:
        """This process's contribution to the loss and metrics of the whole batch."""
        own = np.zeros(len(specs))
        for i, spec in enumerate(specs):
            if spec.name not in values:
                continue
            factor = share
            if spec.name == names.LOSS and not self._mean:  # a sum, or one value per sample
                factor = of_samples if values[spec.name].ndim else 1.0
            own[i] = factor * float(values[spec.name].mean())
        return own

    def count_segments(self, size: int) -> int:
        """Number of segments for ``size`` bytes of gradients; one if communication is fast."""
        if self.segments is not None:
            return self.segments
        near = self.group.size == self.group.local_size
        return 1 if near or size < _SMALL else _SEGMENTS

    def open(self, graph: str, state: DeviceState, threads: int | None) -> SplitGraphs:
        """The two graphs of a step, opened on first use."""
        if graph not in self._opened:
            self._opened[graph] = SplitGraphs(
                self.splits[graph],
                state,
                group=self.group,
                server=self.server,
                wire=self.wire,
                segments=self.count_segments,
                threads=threads,
            )
        return self._opened[graph]

    def open_flush(self, graph: str, state: DeviceState, threads: int | None) -> UpdateGraph:
        """A flush graph, opened on first use."""
        if graph not in self._flushes:
            model = self.program.graphs[graph]
            self._flushes[graph] = UpdateGraph(model, state, self.group, threads=threads, placed={})
        return self._flushes[graph]

    # ---- state that differs between processes ----------------------------------------------------

    def join_sums(self, state: DeviceState, *, keep: bool = True) -> None:
        """Sum the accumulated gradients of the window over the processes.

        Args:
            state: The state.
            keep: Whether this process keeps the sums; otherwise its accumulators are zeroed.

        Raises:
            ModelError: A sum overflows.
        """
        if not self._accumulates:
            return
        entries = [
            e for e in state.catalogue.state if e.name.startswith(names.accumulator_name(""))
        ]
        for dtype in dict.fromkeys(entry.dtype for entry in entries):
            shapes = {e.name: e.shape for e in entries if e.dtype == dtype}
            buffer = Buffer(self.server, shapes, dtype, "cpu", self.wire)
            for name in shapes:
                buffer.write(name, state.read(name))
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
                state.write(name, total)

    def settle(self, state: DeviceState) -> None:
        """Merge the states of all processes: average statistics; rank 0 gets the accumulators."""
        self.average(state)
        self.join_sums(state, keep=self.server.rank == 0)
        if self._adasum is None:
            return
        for entry in state.catalogue.entries("slot"):  # the mean over the servers' optimizers
            mean = self.group.sum(state.read(entry.name).astype(np.float64)) / self.group.size
            if entry.name.startswith(names.accumulator_name("")):  # one process per server has it
                mean *= self.server.size if self.server.rank == 0 else 0
            state.write(entry.name, mean)

    def average(self, state: DeviceState) -> None:
        """Combine the servers' updates, and average running statistics that steps have changed."""
        self.join_servers(state)
        if not self._moved:
            return
        self._moved = False
        for entry in state.catalogue.entries("buffer"):
            if entry.next is not None and entry.dtype.kind == "f":
                mean = self.group.sum(state.read(entry.name).astype(np.float64)) / self.group.size
                state.write(entry.name, mean)

    def take(self, state: DeviceState) -> None:
        """Call it in all processes after loading a state: only rank 0 keeps the accumulators."""
        self.leave_sums(state)
        self._moved = False
        self._common.clear()
        self._updates = 0

    def leave_sums(self, state: DeviceState) -> None:
        """Zero the accumulated sums in all processes but rank 0."""
        if self.server.rank:
            for entry in state.catalogue.state:
                if entry.name.startswith(names.accumulator_name("")):
                    state.write(entry.name, np.zeros(entry.shape))

    def check(self, state: DeviceState, step: int) -> None:
        """Check that replicated state is the same in all processes (between AdaSums, per server).

        Raises:
            ModelError: A tensor differs; the message names the first one and a rank where it does.
        """
        # What differs by design: optimizers of servers, running statistics unless synchronized.
        own = {"slot"} if self._adasum is not None else set()
        if not any(split.exchanged for split in self.splits.values()):
            own.add("buffer")
        entries = [
            entry
            for entry in state.catalogue.state
            if entry.kind not in own
            and not entry.sharded
            and not entry.name.startswith(names.accumulator_name(""))
        ]
        sums = np.array([_crc(state.read(entry.name)) for entry in entries], np.int64)
        found = (self.server if self._common else self.group).gather(sums)
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


def count_samples(
    inputs: Sequence[TensorSpec], feeds: Mapping[str, NDArray[Any]]
) -> tuple[int, int]:
    """Count the samples of a batch, and the terms of a mean loss: samples, or labels not ignored.

    The arrays may have any shape; :func:`~ortboost.runtime.feeds.check_batch` refuses wrong ones.

    Example:
        >>> labels = TensorSpec("labels", np.dtype("int64"), ("N",), classes=3, ignored=-1)
        >>> count_samples([labels], {"labels": np.array([0, -1, 2])})
        (3, 2)
    """
    number = int(bool(feeds))  # without a batch axis, the data count as one sample
    for spec in inputs:
        axis = spec.batch_axis
        if isinstance(axis, int) and spec.name in feeds and axis < feeds[spec.name].ndim:
            number = feeds[spec.name].shape[axis]
    counted = number
    for spec in inputs:
        if spec.ignored is not None and spec.name in feeds and number:
            labels = feeds[spec.name]
            # A shifted loss compares each prediction with the next token; the first is never one.
            labels = labels[:, 1:] if spec.shifted and labels.ndim > 1 else labels
            counted = int((labels != spec.ignored).sum())
    return number, counted


def _crc(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data)


def _crc_of(state: Mapping[str, NDArray[Any]]) -> int:
    total = 0
    for name in sorted(state):
        for piece in pieces_of(state, name):
            total = zlib.crc32(piece.view(np.uint8).data, total)
    return total
