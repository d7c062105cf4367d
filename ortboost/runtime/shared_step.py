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

If the gradients are small, the counts `n_r`, the loss and the metrics travel with them in one
message; `n` is then known only afterwards, and `sum_r n_r G_r` is divided by it.

Within a window of gradient accumulation only the finite check is exchanged; the accumulated sums
are all-reduced at the end of the window. State that differs between processes (running statistics,
sums of an incomplete window) is merged when the state is read: statistics are averaged, and rank 0
holds the sums.

Source: Li et al., PyTorch Distributed (VLDB 2020), for buckets and for local running statistics.
Weighting by samples keeps the mean over the batch exact if the parts have different sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ConfigError, UsageError
from ortboost.program import names
from ortboost.program.catalogue import TensorSpec
from ortboost.program.program import Program
from ortboost.program.split import SplitStep
from ortboost.runtime.local_step import LocalStep
from ortboost.runtime.part_weights import Counts, PartWeights, Reduction, count_samples
from ortboost.runtime.process_group import Handle, ProcessGroup, WireType
from ortboost.runtime.session import drawing
from ortboost.runtime.shared_state import SharedState, checksum
from ortboost.runtime.split_graphs import SplitGraphs
from ortboost.runtime.state import DeviceState
from ortboost.runtime.update_graph import UpdateGraph

__all__ = ["SharedStep"]

_Compute: TypeAlias = Callable[[int], dict[str, NDArray[Any]]]
"""Runs a segment of the gradients on this process's part; the outputs without a buffer."""
_SEGMENTS: Final = 4  # default between machines; see docs/scale.md
_SMALL: Final = 2**18  # bytes of gradients below which segments do not pay off


class SharedStep:
    """Data-parallel steps of a program in the processes of a group.

    Args:
        program: The program.
        splits: The result of :func:`ortboost.program.split.split_program`.
        state: The state of this process.
        local: The graphs of this process, for what is not split.
        group: The processes.
        threads: Intra-op threads.
        wire: The type in which gradients are exchanged.
        segments: Number of segments of the backward pass; the gradients of one segment are
            exchanged while the next runs. With two processes the results do not depend on the
            number; with more, only the order of summation does. ``None`` to choose depending on
            whether the processes are on one machine, and to exchange all that a step needs in one
            message if the gradients are small.

    Raises:
        UsageError: The processes have different programs or versions.
        ConfigError: AdaSum with a loss that is not a mean.
    """

    def __init__(
        self,
        program: Program,
        splits: Mapping[str, SplitStep],
        state: DeviceState,
        local: LocalStep,
        group: ProcessGroup,
        threads: int | None,
        wire: WireType,
        segments: int | None,
    ) -> None:
        self.program, self.group, self.wire, self.segments = program, group, wire, segments
        self._splits, self._device_state, self._threads = splits, state, threads
        self._local = local
        exchanges = any(split.exchanged for split in splits.values())
        self.state = SharedState(program, state, group, wire, synchronized=exchanges)
        self.requests = np.zeros(2)  # SIGINT, SIGTERM: received by this process
        self.agreed = np.zeros(2)  # the same, summed over all processes in the last step
        loss = program.config.loss
        self._reduction: Reduction = "mean" if loss.name == "output" else loss.reduction
        self._opened: dict[str, SplitGraphs] = {}
        self._flushes: dict[str, UpdateGraph] = {}
        self._share = 0.0  # n_r / n of the last step, within the server
        self._unit = 0.0  # a power of 2 near the `n` of a batch; its choice changes no sum
        self.whole = Counts(0, 0, 0)
        """The counts of the last batch, of all processes."""
        if self.state.joins and self._reduction != "mean":
            raise ConfigError(
                "AdaSum needs a mean loss: a sum grows with the number of samples of a server.",
                where=f"loss '{loss.name}', {loss.reduction}",
                fix="Use the reduction 'mean'.",
            )
        group.agree(
            {
                "the program": program.fingerprint,
                "its initial state": checksum(program.initial),
                "the number of segments": segments,
            },
            fix="Give all processes the same folder, or copies of one, and the same settings.",
        )

    def run(
        self, graph: str, feeds: Mapping[str, NDArray[Any]], *, seed: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run a step on this process's part of the batch, and update the state.

        Args:
            graph: Name of the step graph.
            feeds: The validated part and the learning rates; only the rates if the part is empty.
            seed: Seed of this process's random numbers; ``None`` if the step draws none.

        Returns:
            The outputs of the step graph for the whole batch.

        Raises:
            UsageError: No process has a sample.
        """
        # All processes make the same calls of the group in the same order, also one without
        # samples: it skips forward and backward pass, and adds zeros.
        graphs = self.open(graph)
        rates = {name: feeds[name] for name in graphs.rates}
        feeds = {s.name: feeds[s.name] for s in self.program.catalogue.batch if s.name in feeds}
        own = count_samples(self.program.catalogue.batch, feeds)

        def compute(segment: int) -> dict[str, NDArray[Any]]:
            # The lock is not held while processes communicate: threads could deadlock.
            with drawing(graphs.seed(seed, segment)):
                return graphs.gradients.run(segment, feeds)

        sum_parts = self._sum_at_once if graphs.in_one_message else self._sum_in_turn
        shown = sum_parts(graphs, own, compute)
        # From here on the processes of a server have the same values, and make the same update.
        self.state.moved = True
        numbers = {
            s.name: np.asarray(x, np.float32) for s, x in zip(graphs.shown, shown, strict=True)
        }
        with self.state.joining(graph):
            return {**numbers, **graphs.update.run(rates)}

    def _sum_at_once(self, graphs: SplitGraphs, own: Counts, compute: _Compute) -> list[float]:
        """Sum all that the parts of a batch contribute in one message; returns loss and metrics.

        Every message takes time, however short; for small networks more than their computation.
        """
        values = dict[str, NDArray[Any]]()
        if own.terms:
            values = compute(0)
        else:
            graphs.clear(empty=True)
        # `n` is known only after the sum: n_r G_r are summed, in units of about `n` terms.
        is_mean = self._reduction == "mean"
        if is_mean and not self._unit:
            terms = float(self.group.sum(np.array([own.terms]))[0])
            self._unit = 2.0 ** round(math.log2(terms)) if terms else 0.0
        share = own.terms / (self._unit or 1.0) if is_mean else float(own.terms > 0)
        parts = [
            own.divisor(s.name, self._reduction) * float(values[s.name].mean())
            if s.name in values
            else 0.0
            for s in graphs.shown
        ]
        digits, self.agreed, shown = graphs.sum_at_once(share, own.digits(), self.requests, parts)
        self.whole = whole = Counts.of_digits(digits.tolist())
        _require_samples(whole, self.program.catalogue.batch)
        if is_mean and whole.terms:
            graphs.scale_sums(self._unit / whole.terms)
        self._share = own.terms / whole.terms if whole.terms else 0.0
        divisors = [whole.divisor(s.name, self._reduction) for s in graphs.shown]
        return [x / divisor if divisor else 0.0 for x, divisor in zip(shown, divisors, strict=True)]

    def _sum_in_turn(
        self, graphs: SplitGraphs, own: Counts, compute: _Compute
    ) -> NDArray[np.float64]:
        """Sum what the parts contribute as soon as it is available; returns loss and metrics."""
        # Without labels there is no loss here, but inputs still belong to means, and to exchanges.
        ran = bool(own.terms or (own.samples and (graphs.means or graphs.exchanges)))
        weighing = self._start_weighing(own, ran, exchanges=bool(graphs.exchanges))
        values = compute(0) if ran else {}
        weights = weighing()  # the counts traveled while the first segment ran
        self._share, self.whole = weights.in_server, weights.whole
        sent: list[Handle] = []
        for i in range(len(graphs.gradients)):
            if i and ran:
                values |= compute(i)
            # These gradients travel while the next segment runs; it must wait for exchanged sums.
            sent += graphs.start_sums(i, weights.gradients)
            graphs.exchange(i, weights.gradients if ran else None)
        if not own.terms:
            values.clear()  # a loss of 0 / 0
            graphs.clear(empty=not (ran and graphs.exchanges))
        if graphs.exchanges and weights.all_ran < self.group.size:
            graphs.spread_statistics(weights.statistics)  # equal in all that ran
        # Loss and metrics are those of all servers; the gradients may be those of one.
        parts = [
            weights.shown(s.name, values[s.name]) if s.name in values else 0.0 for s in graphs.shown
        ]
        shown, showing = self.group.start_sum_of(np.array(parts))
        for handle in (*sent, *graphs.start_rest(weights.gradients, weights.means), showing):
            handle.wait()
        return shown

    def _start_weighing(
        self, own: Counts, ran: bool, *, exchanges: bool
    ) -> Callable[[], PartWeights]:
        """Start to sum the counts of all parts; the result waits for them."""
        counts = np.array([*own, ran, *self.requests], np.float64)
        totals, traveling = self.group.start_sum_of(counts)
        nearby, arriving = totals, traveling
        if self.state.server is not self.group:
            nearby, arriving = self.state.server.start_sum_of(counts)

        def weigh() -> PartWeights:
            traveling.wait()
            arriving.wait()
            self.agreed = totals[4:]
            whole = Counts(int(totals[0]), int(totals[1]), float(totals[2]))
            _require_samples(whole, self.program.catalogue.batch)
            return PartWeights(
                own,
                ran,
                whole,
                all_ran=totals[3],
                server_terms=nearby[2],
                reduction=self._reduction,
                exchanges=exchanges,
            )

        return weigh

    def flush(self, graph: str, rates: Mapping[str, NDArray[Any]]) -> None:
        """Run a flush graph on the sums of a window over all processes."""
        flush = self.open_flush(graph)
        self.state.join_sums()
        with self.state.joining(graph):
            flush.run(rates)
        self.state.leave_sums()

    def try_rate(
        self, feeds: Mapping[str, NDArray[Any]], *, seed: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run a line-search trial on the last step's part; returns the loss of the whole batch."""
        if not self._share:  # an empty part contributes nothing to the sums
            loss, promised = 0.0, 0.0
        else:
            found = self._local.try_rate(feeds, seed=seed)
            loss, promised = (float(found[name]) for name in (names.LOSS, names.PROMISED))
        total = self.group.sum(self._share * np.array([loss, promised]))
        return {
            names.LOSS: np.asarray(total[0], np.float32),
            names.PROMISED: np.asarray(total[1], np.float32),
        }

    def prepare(self, graph: str) -> None:
        """Open a graph now instead of on first use."""
        if graph.startswith(names.STEP_GRAPH):
            self.open(graph)
        elif graph.startswith(names.FLUSH_GRAPH):
            self.open_flush(graph)
        else:
            self._local.prepare(graph)

    def count_segments(self, size: int) -> int:
        """Number of segments for ``size`` bytes of gradients; one if communication is fast."""
        if self.segments is not None:
            return self.segments
        near = self.group.size == self.group.local_size
        return 1 if near or size < _SMALL else _SEGMENTS

    def open(self, graph: str) -> SplitGraphs:
        """The two graphs of a step, opened on first use."""
        if graph not in self._opened:
            numbers = len(Counts(0, 0, 0).digits()) + len(self.requests)
            self._opened[graph] = SplitGraphs(
                self._splits[graph],
                self._device_state,
                group=self.group,
                server=self.state.server,
                wire=self.wire,
                segments=self.count_segments,
                threads=self._threads,
                numbers=numbers if self.segments is None else None,
            )
        return self._opened[graph]

    def open_flush(self, graph: str) -> UpdateGraph:
        """A flush graph, opened on first use."""
        if graph not in self._flushes:
            model, state = self.program.graphs[graph], self._device_state
            self._flushes[graph] = UpdateGraph(
                model, state, self.group, threads=self._threads, placed={}
            )
        return self._flushes[graph]


def _require_samples(whole: Counts, inputs: Sequence[TensorSpec]) -> None:
    if not whole.samples:
        raise UsageError(
            "The batch is empty in all processes.",
            where=f"inputs {', '.join(spec.name for spec in inputs)}",
            fix="Feed at least one sample to one of them.",
        )
