"""Run training steps, and evaluate on the same state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.roles import LineSearch
from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import ModelError, OrtBoostError, first_line
from ortboost.core.field_types import Range
from ortboost.core.shown import Shown
from ortboost.core.step_result import StepResult
from ortboost.graph.query import format_shape
from ortboost.program import names
from ortboost.program.aliasing import in_place_states
from ortboost.program.catalogue import Catalogue, TensorSpec, read_catalogue
from ortboost.program.program import Program
from ortboost.program.split import SplitStep, split_program
from ortboost.runtime.cuda.replay import can_replay
from ortboost.runtime.diagnosis import diagnose, inner_tensors, list_nonfinite
from ortboost.runtime.evaluator import Evaluator
from ortboost.runtime.feeds import arrays_of, check_batch, check_rates, refused_batch
from ortboost.runtime.findings import Diagnosis
from ortboost.runtime.local_step import LocalStep
from ortboost.runtime.part_weights import Counts, count_samples
from ortboost.runtime.process_group import ProcessGroup, WireType
from ortboost.runtime.session import training_device
from ortboost.runtime.shared_evaluator import SharedEvaluator
from ortboost.runtime.shared_step import SharedStep
from ortboost.runtime.state import DeviceState
from ortboost.runtime.step_counters import StepCounters

__all__ = ["Stepper"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # times 2**64: its multiples are far apart (Knuth)


def _one_at_a_time(
    method: Callable[Concatenate[Stepper, _P], _R],
) -> Callable[Concatenate[Stepper, _P], _R]:
    """Let threads wait for each other: two steps at once would write the same state."""

    @functools.wraps(method)
    def wrapper(self: Stepper, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._state.lock:
            return method(self, *args, **kwargs)

    return wrapper


class Stepper(Shown):
    """Runs the step graphs of a program; the state stays on the device.

    Several threads may share it: steps, evaluations, and reads and writes of the state take turns.

    Args:
        program: The program.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Intra-op threads; the runtime's choice if not given.
        in_place: Update states in place where that is proven safe. Disabling it costs a second copy
            of the state and does not change results; it exists to test exactly that.
        group: The processes that share each step, see :mod:`ortboost.runtime.shared_step`.
            :meth:`step` is fed this process's part of the batch, and returns loss and metrics of
            the whole batch. All methods but :meth:`get` and :meth:`set` must then be called by all
            processes.
        wire: Type of gradients exchanged between processes.
        check_sync: Compare the parameters of all processes every this many steps; 0 for never.
        segments: In how many segments the backward pass is cut, so that gradients of one travel
            while the next runs; ``None`` for the choice of
            :class:`~ortboost.runtime.shared_step.SharedStep`.
        cuda_graph: Capture steps as CUDA graphs where that is possible; see
            :mod:`ortboost.runtime.cuda.replay`. It costs a second copy of the state.

    Raises:
        UsageError: The processes of the group have different programs.

    Example:
        >>> import ortboost as ob
        >>> stepper = Stepper(ob.build_program("models/mlp.onnx"), device="cpu", threads=1)
        >>> batch = {"x": np.zeros([4, 64], np.float32), "labels": np.arange(4)}
        >>> stepper.step(batch, {"learning_rate": 0.1}).updated
        True
    """

    @checked
    def __init__(
        self,
        program: Program,
        *,
        device: str = "auto",
        threads: int | None = None,
        in_place: bool = True,
        group: ProcessGroup | None = None,
        wire: WireType = "float32",
        check_sync: int = 0,
        segments: Annotated[int, Range(1)] | None = None,
        cuda_graph: bool = True,
    ) -> None:
        self.program = program
        self.group, self._check_sync = group, check_sync
        splits = {} if group is None else split_program(program)
        self.catalogue = program.catalogue
        self.device = training_device(device)
        self._threads = threads
        self._catalogues = {name: program.catalogue_of(name) for name in program.graphs}
        replay = cuda_graph and group is None and can_replay(program, self.device)
        proven = self._in_place(splits) if in_place and not replay else frozenset[str]()
        part = (0, 1) if group is None else (group.rank, group.size)
        self._state = DeviceState(program.catalogue, program.initial, self.device, proven, part)
        self._local = LocalStep(program, self._state, threads, replay=replay)
        self.shared = None
        if group is not None:
            self.shared = SharedStep(
                program, splits, self._state, self._local, group, threads, wire, segments
            )
        self._runner: LocalStep | SharedStep = self.shared or self._local
        labels = [s for s in program.catalogue.batch if s.ignored is not None or s.weights]
        is_mean = program.config.loss.reduction == "mean"
        self._counts = is_mean and bool(labels)
        self._weighs = is_mean and any(spec.weights for spec in labels)
        self._steps = 0  # those of this object
        self._scales: dict[str, NDArray[Any]] | None = None
        self._counters = StepCounters(program)
        self._counters.read(self._state)
        # Open the first graph now: errors of the runtime appear here, not at the first step.
        self._runner.prepare(self.next_graph)

    def _facts(self) -> dict[str, object]:
        return {
            "of": self.program.source,
            "device": self.device,
            "updates": self._counters.updates,
            "skipped": self._counters.total_skips or None,
            "next": self.next_graph,
            "inputs": ", ".join(f"{s.name} {s.dtype}{format_shape(s.shape)}" for s in self.inputs),
        }

    def _in_place(self, splits: Mapping[str, SplitStep]) -> frozenset[str]:
        """States that all graphs writing them can update in place."""
        written: set[str] = set()
        unproven: set[str] = set()
        graphs = [(model, self._catalogues[name]) for name, model in self.program.graphs.items()]
        graphs += [(split.update, read_catalogue(split.update)) for split in splits.values()]
        for model, catalogue in graphs:
            writes = {entry.name for entry in catalogue.state if entry.next is not None}
            written |= writes
            unproven |= writes - in_place_states(model, catalogue)
        return frozenset(written - unproven)

    def open(self) -> None:
        """Open every graph now instead of on first use."""
        for name in self.program.graphs:
            self._runner.prepare(name)

    @property
    def next_graph(self) -> str:
        """Name of the graph that the next step runs."""
        return names.graph_name(names.STEP_GRAPH, self._counters.group)

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The batch inputs, including labels."""
        return self.catalogue.batch

    @property
    def groups(self) -> Sequence[str]:
        """Names of the learning-rate inputs."""
        return [spec.name for spec in self.catalogue.hyper]

    @_one_at_a_time
    def step(
        self, feeds: Mapping[str, NDArray[Any]], hyper: Mapping[str, float], *, seed: int = 0
    ) -> StepResult:
        """Run one step.

        Args:
            feeds: Batch input to array or tensor of the catalogue's dtype; a smaller dtype of the
                same kind, such as int32 for labels, is converted. Other names are ignored.
            hyper: Learning-rate input to value.
            seed: Seed of the random generator for this step.

        Raises:
            UsageError: An input is missing or has another type, a learning rate is unknown, or the
                runtime rejects the shapes.
        """
        for name, given in (("feeds", feeds), ("hyper", hyper)):
            if type(given) is not dict:  # plain dicts, the usual case, need no check
                check_argument("Stepper.step", name, given, Mapping[str, Any])
        empty = False
        if self.shared is not None:
            feeds = arrays_of(feeds, self.inputs)
            # A process without samples still takes part in the communication of the step.
            empty = not count_samples(self.inputs, feeds).samples
        ready = self._rates(hyper) if empty else self._checked(feeds, hyper)
        if self._scales is not None:  # watched: the step may change them
            self._scales = {
                e.name: self._state.read(e.name) for e in self.catalogue.entries("scale")
            }
        name, group, before = self.next_graph, self._counters.group, self._counters.updates
        values = self._run(name, ready, self._seed_for(self.catalogue, seed))
        overflow = bool(values.pop(names.OVERFLOW))
        self._counters.count(overflow)  # as the graph has just done
        updated = self._counters.updates > before
        if self.shared is not None:
            if self.program.config.accumulator is not None and updated:
                self._close_window(group, hyper)
            self._steps += 1
            if self._check_sync and self._steps % self._check_sync == 0:
                self.shared.state.check(self._steps)
        if self.program.config.line_search is not None and not overflow:
            losses = values[names.LOSS]
            taken = self._line_search(self.program.config.line_search, ready, losses, seed)
            values[names.RATE] = np.asarray(taken)
        counts = None
        if self._counts:
            shared = self.shared
            counts = count_samples(self.inputs, ready) if shared is None else shared.whole
        return self._result(values, counts, overflow=overflow, updated=updated, group=group)

    def _result(
        self,
        values: dict[str, NDArray[Any]],
        counts: Counts | None,
        *,
        overflow: bool,
        updated: bool,
        group: int,
    ) -> StepResult:
        """The result of a step, from the outputs of its graph."""
        losses = values.pop(names.LOSS)
        scales = values.pop(names.LOSS_SCALES, np.zeros(0))
        # What is left after the loss scale are metrics.
        return StepResult(
            loss=float(losses.mean()),
            overflow=overflow,
            loss_scale=float(values.pop(names.LOSS_SCALE)),
            applied_steps=self._counters.updates,
            consecutive_skips=self._counters.consecutive_skips,
            total_skips=self._counters.total_skips,
            metrics={name: float(value) for name, value in values.items()},
            losses=losses,
            updated=updated,
            group=group,
            loss_scales=tuple(float(scale) for scale in scales),
            labels=counts.labels if counts else None,
            label_weight=counts.terms if counts and self._weighs else None,
        )

    def _run(
        self, name: str, ready: Mapping[str, NDArray[Any]], seed: int | None
    ) -> dict[str, NDArray[Any]]:
        """Run a step graph, and return its outputs."""
        try:
            return self._runner.run(name, ready, seed=seed)
        except OrtBoostError:
            raise
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            batch = {spec.name: ready[spec.name] for spec in self.inputs if spec.name in ready}
            raise refused_batch(error, batch, "step") from error

    @_one_at_a_time
    def flush(self, hyper: Mapping[str, float]) -> bool:
        """Apply an incomplete window of accumulation, as the mean of its micro-batches.

        ``hyper`` is as for :meth:`step`. The result is false if there was nothing to apply.

        Raises:
            UsageError: A learning rate is unknown or missing.
        """
        if not self._counters.micro_steps:
            return False
        self._apply(self._counters.group, hyper)
        self._counters.count_update()
        return True

    def _close_window(self, group: int, hyper: Mapping[str, float]) -> None:
        """Update in several processes, whose steps only fill a window and reset its counter."""
        # The flush graph takes the mean over that many micro-batches.
        self._state.write(names.MICRO_STEPS, np.asarray(self.program.config.accumulate))
        self._apply(group, hyper)

    def _apply(self, group: int, hyper: Mapping[str, float]) -> None:
        """Run the update with the gradients of a window."""
        self._runner.flush(names.graph_name(names.FLUSH_GRAPH, group), self._rates(hyper))

    def _line_search(
        self, search: LineSearch, feeds: Mapping[str, NDArray[Any]], before: NDArray[Any], seed: int
    ) -> float:
        """Apply and return the first accepted rate; 0 if none is, for example if a loss is NaN."""
        catalogue, accepted = self._catalogues[names.TRIAL_GRAPH], 0.0
        batch = {s.name: feeds[s.name] for s in catalogue.batch if s.name in feeds}
        drawn = self._seed_for(catalogue, seed)  # the same dropout masks as in the step
        for rate in search.rates:
            given = {**batch, names.RATE: np.asarray(rate, np.float32)}
            found = self._runner.try_rate(given, seed=drawn)
            # The decrease that the direction promises at this rate (Armijo); NaN is never accepted.
            if np.float32(before) + found[names.PROMISED] > found[names.LOSS]:
                accepted = rate
                break
        chosen = {names.RATE: np.asarray(accepted, np.float32)}
        self._local.run(names.ACCEPT_GRAPH, chosen)
        return accepted

    def _seed_for(self, catalogue: Catalogue, seed: int) -> int | None:
        """The seed of this process for a graph; ``None`` if it draws no random numbers."""
        if not catalogue.randomness:
            return None
        if type(seed) is not int:  # a number of numpy, which could overflow below
            check_argument("Stepper.step", "seed", seed, int)
            seed = int(seed)
        rank = 0 if self.group is None else self.group.rank  # rank 0 draws as a single process
        return (seed + rank * _GOLDEN_RATIO) % 2**63

    def _checked(
        self, feeds: Mapping[str, NDArray[Any]], hyper: Mapping[str, float]
    ) -> dict[str, NDArray[Any]]:
        batch = check_batch(
            feeds, self.catalogue.batch, broadcast=self.program.config.loss.broadcast
        )
        return {**batch, **self._rates(hyper)}

    def _rates(self, hyper: Mapping[str, float]) -> dict[str, NDArray[Any]]:
        return check_rates(hyper, self.groups)

    # ---- state ---------------------------------------------------------------------------------

    @_one_at_a_time
    def state(self, *, copy: bool = True) -> Mapping[str, NDArray[Any]]:
        """The state on the host; of several processes: :mod:`ortboost.runtime.shared_step`.

        Args:
            copy: False: each tensor is copied when it is accessed, instead of all of them now. So
                a checkpoint needs no second copy of the state in memory. The values are those at
                that moment: read them before the next step.
        """
        if self.shared is not None:
            self.shared.state.settle()
        return self._state.read_all(copy=copy)

    @_one_at_a_time
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the whole state.

        Raises:
            FileError: It does not fit the program.
        """
        self._state.write_all(state)
        if self.shared is not None:
            self.shared.state.take()
        self._counters.read(self._state)

    @_one_at_a_time
    def get(self, name: str) -> NDArray[Any]:
        """Copy one state tensor to the host.

        Raises:
            UsageError: The state is unknown.
        """
        return self._state.read(name)

    @_one_at_a_time
    def set(self, name: str, value: NDArray[Any]) -> None:
        """Replace one state tensor.

        Raises:
            UsageError: The state is unknown, or the shape differs.
        """
        self._state.write(name, value)
        self._counters.read(self._state)

    def evaluator(self) -> Evaluator | SharedEvaluator:
        """An evaluator on the state of this stepper."""
        alone = Evaluator(self.program, self._state, threads=self._threads)
        return alone if self.shared is None else SharedEvaluator(alone, self.shared)

    # ---- diagnosis ----------------------------------------------------------------------------

    @_one_at_a_time
    def nonfinite(
        self, feeds: Mapping[str, NDArray[Any]], hyper: Mapping[str, float], *, seed: int = 0
    ) -> list[str]:
        """List at most ten tensors that overflow on this batch: inputs and states first.

        The step runs again with its intermediate tensors as outputs; the state is not changed. If
        no loss or gradient is non-finite, gradients whose square overflows are listed. The seed is
        that of the step in question.
        """
        if self.shared is not None:
            feeds = arrays_of(feeds, self.inputs)
            if not count_samples(self.inputs, feeds).samples:
                return []
        inputs = {**self._checked(feeds, hyper), **self._state.read_all()}
        model, drawn = self.program.graphs[self.next_graph], self._seed_for(self.catalogue, seed)
        device, threads = self.device, self._threads
        inner = inner_tensors(model, inputs, device=device, threads=threads, seed=drawn)
        return list_nonfinite(self.catalogue, inputs, inner)

    def watch(self) -> None:
        """Record the loss scale of each step from now on, for :meth:`diagnose`."""
        self._scales = {}

    @_one_at_a_time
    def diagnose(
        self, feeds: Mapping[str, NDArray[Any]], hyper: Mapping[str, float], *, seed: int = 0
    ) -> Diagnosis:
        """Locate the overflow of the last step; see :mod:`ortboost.runtime.diagnosis`.

        The step runs again, with its batch, rates and seed; the state is not changed. A skipped
        step has changed the loss scale, but nothing else that the gradients depend on: it runs with
        its original scale if :meth:`watch` was called before, otherwise with the current one.

        Raises:
            ModelError: The runtime fails, for example for lack of memory.
        """
        name = self.next_graph
        inputs = {**self._checked(feeds, hyper), **self._state.read_all(), **(self._scales or {})}
        try:
            return diagnose(
                self.program.graphs[name],
                self._catalogues[name],
                inputs,
                device=self.device,
                threads=self._threads,
                seed=self._seed_for(self.catalogue, seed),
            )
        except Exception as error:  # out of memory, or bare exceptions of the bindings
            raise ModelError(
                "The step cannot be run with its intermediate tensors as outputs.",
                where=first_line(error),
                fix="All of them are in memory at once: try a smaller batch.",
            ) from error
