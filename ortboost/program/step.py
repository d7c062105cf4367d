r"""The training step as one graph: the part after the gradients.

    finite   = all scaled gradients are finite, and so are their squares

    if finite:    unscale, accumulate; S grows after `window` steps without overflow
    otherwise:    every state keeps its value; S shrinks
    if finite, and the accumulation window is full:    clip, optimizer

Without accumulation the two conditions are one, and so are the two ``If``. The last one depends on
every gradient, so all nodes that read a state to compute a gradient have run before any state is
written: this makes in-place updates safe (see :mod:`ortboost.program.aliasing`). In a skipped step,
the update costs almost nothing.

With a boost that accumulates gradients (:mod:`ortboost.boosts.grad_accumulation`), a step that is
not skipped adds to its window. :func:`append_flush` applies an incomplete window.

Overflow means gradients that are not finite, or so large that the new state would not be
(:mod:`ortboost.program.gradients`); the loss itself is not checked, as in MindSpore. The boost that
scales the loss updates the scale (:class:`ortboost.boosts.roles.LossScaler`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, StepContext, UpdateContext
from ortboost.boosts.roles import PART
from ortboost.core.errors import ConfigError
from ortboost.graph.bodies import choose
from ortboost.graph.build import Builder
from ortboost.program import names
from ortboost.program.catalogue import StateEntry
from ortboost.program.config import ProgramConfig
from ortboost.program.gradients import ScaledGradients
from ortboost.program.parameter_update import ParameterUpdate, StepState

__all__ = ["StepParts", "append_flush", "append_update"]

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
_FULL = "ortboost/full"
_SKIPS = (names.LAST_SKIPPED, names.CONSECUTIVE_SKIPS, names.TOTAL_SKIPS)


@dataclass(frozen=True)
class StepParts:
    """The result of appending an update to a graph.

    Args:
        hyper: Learning-rate inputs.
        state: States added by the update: slots, scale, counters.
        initial: Their initial values.
        next_of: State to its next value, for every state that a step changes.
        outputs: Whether the step overflowed, or whether a flush had something to apply: bool
            scalar. Of a step also the scale after it, float32 scalar (that of the first group, with
            a grouped scale, followed by all of them, float32 ``[groups]``).
    """

    hyper: tuple[ir.Value, ...]
    state: tuple[StateEntry, ...]
    initial: Mapping[str, NDArray[np.generic]]
    next_of: Mapping[str, ir.Value]
    outputs: tuple[ir.Value, ...]


def append_update(
    graph: GraphContext,
    config: ProgramConfig,
    gradients: Mapping[str, ir.Value],
    buffers_next: Mapping[str, ir.Value],
) -> StepParts:
    """Append finite check, gate, unscaling, boosts, optimizer and scale update to a gradient graph.

    Args:
        graph: The context of a gradient graph, whose inputs are the parameters, and the loss scale
            if any; it is changed in place. The trained parameters of the context are updated.
        config: The configuration.
        gradients: Parameter name to its scaled gradient.
        buffers_next: Buffer name to the raw next value that the forward pass computed.
    """
    writer = _Writer(graph, config)
    writer.declare_step()
    scaled = ScaledGradients(
        writer.b, graph, gradients, writer.scaler, writer.scale, config.gradient_divisor
    )
    if writer.scaler is None or writer.scaler.number < 2:  # one scale for all layers
        writer.context.unscale = next(iter(scaled.bundles.values())).factor
    writer.take_means()
    return (writer.gated if config.check_finite else writer.ungated)(scaled, buffers_next)


def append_flush(graph: GraphContext, config: ProgramConfig) -> StepParts:
    """Append the update with an incomplete window of gradients, in place.

    The inputs of the graph are the parameters. See :func:`append_update`.
    """
    return _Writer(graph, config).flush()


class _Writer:
    """Appends the update to one graph."""

    def __init__(self, graph: GraphContext, config: ProgramConfig) -> None:
        self.config = config
        self.b = Builder(graph.model.graph, "ortboost/update")
        self.state = StepState(self.b)
        self.inputs = self.state.inputs
        # With separate states, each freeze group has its own slots and count of updates.
        separate = config.splitter is not None and config.splitter.separate_state
        # The optimizer reads the last one as its step count, see `_update_context`.
        self.counters = [names.STEP] + ([names.group_step(graph.number)] if separate else [])
        self.parameters = ParameterUpdate(
            self.b, graph, config, self.state, graph.number if separate else 0
        )
        self.context = StepContext(
            self.b, graph.trained, self.inputs, graph.memory, graph.number, graph.window
        )
        self.boosts = config.enabled_boosts
        self.accumulator = config.accumulator
        self.scale = self.inputs.get(names.SCALE)  # a flush has none
        self.scaler = None if self.scale is None else config.scaler
        self.at_update: list[str] = []  # states of boosts that change at an update
        self.at_step: list[str] = []  # states of boosts that change at each step of a window
        self._early: dict[str, ir.Value] = {}  # next states that are computed before the branches
        self._declare_states(graph)

    # ---- states -------------------------------------------------------------------------------

    def _declare_states(self, graph: GraphContext) -> None:
        """Declare the states of boosts, and the counts of updates."""
        for boost in self.boosts:
            for state in boost.states_of(graph):
                if state.name == PART and PART in self.state.initial:
                    continue  # several boosts may read it
                self.state.add(
                    state.name, state.kind, state.initial, state.role, sharded=state.sharded
                )
                if boost is self.accumulator or state.changes_at == "step":
                    if self.accumulator is None:
                        raise ConfigError(
                            f"The state '{state.name}' changes at each step of a window, but there "
                            "is no accumulation.",
                            where=f"boost '{boost.name}', states",
                            fix="Declare it only if the window of the graph is above 1.",
                        )
                    self.at_step.append(state.name)
                elif state.changes_at == "update":
                    self.at_update.append(state.name)
        for name in reversed(self.counters):
            self.state.add(name, "counter", np.int64(0))

    def declare_step(self) -> None:
        """Declare the states of the gate: counters of the loss scale and of skipped steps."""
        counters = {} if self.scaler is None else self.scaler.counters()
        skips = dict.fromkeys(_SKIPS, 0) if self.config.check_finite else {}
        for name, start in {**counters, **skips}.items():
            self.state.add(name, "counter", np.int64(start))

    def take_means(self) -> None:
        """Compute the batch means of boosts outside all branches, where the step is split."""
        found: dict[str, ir.Value] = {}
        for boost in self.boosts:
            for key, value in boost.batch_means(self.context).items():
                value.name = self.b.unique(names.BATCH_MEAN + key)
                found[key] = value
        self.context.batch_means = found
        self.b.flush()

    def _take_sums(self, applies: ir.Value | None) -> None:
        """Compute what processes compute in parts outside all branches, where the update is cut."""
        b, sums = self.b, dict[str, ir.Value]()
        b.flush()
        context = self._update_context({}, self._counts())
        for boost in self.boosts:
            for key, part in boost.partial_sums(context, applies).items():
                name = f"{names.EXCHANGED}value/{key}"
                sums[key] = b.op("Identity", part, name=name, shape=part.shape)
        # Next states that a boost has set by now are results of the update, see `_updated`.
        self.context.sums, self._early = sums, context.next_of
        b.flush()

    # ---- gated, ungated, flush ----------------------------------------------------------------

    def gated(self, scaled: ScaledGradients, buffers_next: Mapping[str, ir.Value]) -> StepParts:
        """If a gradient is not finite, change only scale and counters."""
        scaled.pack()  # before the check, which then reads one vector
        # Without `gate_buffers` a skipped step accepts the new statistics: they are not checked.
        gated = self.config.gate_buffers
        finite = scaled.finite([*buffers_next.values()] if gated else ())
        overflow = self.b.op("Not", finite, name=names.OVERFLOW, shape=())
        caused = scaled.caused()
        self.b.flush()

        def if_finite() -> dict[str, ir.Value]:
            changed = self._changed(scaled)
            return {**changed, **buffers_next, **self._after_finite(scaled)}

        def if_overflow() -> dict[str, ir.Value]:
            # With accumulation, the second `If` decides on parameters, and this one on the window.
            kept = self._unchanged() if self.accumulator is None else self._unchanged_window()
            buffers = {
                name: self.inputs[name] if self.config.gate_buffers else raw
                for name, raw in buffers_next.items()
            }
            return {**kept, **buffers, **self._after_overflow(caused)}

        if self.accumulator is None:
            self._take_sums(finite)
        results = self._choose("ortboost/gate", finite, if_finite, if_overflow)
        results |= self._update_if_full(results)
        return self._parts(results, overflow)

    def ungated(self, scaled: ScaledGradients, buffers_next: Mapping[str, ir.Value]) -> StepParts:
        """Update without a finite check."""
        overflow = self.b.op("Identity", self.b.const(False, _BOOL), name=names.OVERFLOW, shape=())
        if self.accumulator is None:
            self._take_sums(None)
        changed = self._changed(scaled)
        results = self._named({**changed, **buffers_next, **self._after_finite(scaled)})
        self.b.flush()
        results |= self._update_if_full(results)
        return self._parts(results, overflow)

    def flush(self) -> StepParts:
        """Update with an incomplete window, if it is not empty."""
        b, accumulator = self.b, self.accumulator
        assert accumulator is not None  # there is no flush graph without one
        begun, gradients = accumulator.remainder(self.context)
        b.flush()

        def applied() -> dict[str, ir.Value]:
            return {**self._updated(gradients), **accumulator.cleared(self.context)}

        def kept() -> dict[str, ir.Value]:
            cleared = {name: self.inputs[name] for name in accumulator.cleared(self.context)}
            return {**self._unchanged(), **cleared}

        self._take_sums(begun)
        results = self._choose("ortboost/flush", begun, applied, kept)
        return self._parts(results, begun)

    def _changed(self, scaled: ScaledGradients) -> dict[str, ir.Value]:
        """The states that a step with finite gradients changes: all, or the window."""
        if self.accumulator is None:
            return self._updated(scaled.unscaled)
        states, full = self.accumulator.accumulate(self.context, scaled.unscaled)
        for boost in self.boosts:
            states |= boost.observe(self.context)
        return {**states, _FULL: full}

    def _unchanged_window(self) -> dict[str, ir.Value]:
        """The states of the accumulation window, unchanged."""
        return {
            **{name: self.inputs[name] for name in self.at_step},
            _FULL: self.b.const(False, _BOOL),
        }

    def _update_if_full(self, results: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """The update, if the window is full."""
        if self.accumulator is None:
            return {}
        full = results.pop(_FULL)  # not a state: it only passes from one If to the other
        gradients = partial(self.accumulator.accumulated, self.context, results)
        # The second If reads what the first one wrote, not the values before the step.
        observed = {name: results[name] for name in self.at_step}
        self.context.states = {**self.inputs, **observed}
        self._take_sums(full)
        updated = partial(self._updated, gradients)
        return self._choose("ortboost/apply", full, updated, self._unchanged)

    def _after_finite(self, scaled: ScaledGradients) -> dict[str, ir.Value]:
        """Scale and counters after a step with finite or unchecked gradients."""
        found: dict[str, ir.Value] = {}
        if self.scaler is not None and self.scale is not None:
            groups = tuple(scaled.bundles)
            found = self.scaler.after_finite_step(self.b, self.inputs, self.scale, groups)
        if self.config.check_finite:
            zero = self.b.const(0, _INT64)
            # A finite step ends the row of skips; their total remains.
            found |= dict.fromkeys(_SKIPS, zero)
            found[names.TOTAL_SKIPS] = self.inputs[names.TOTAL_SKIPS]
        return found

    def _after_overflow(self, caused: Mapping[int, ir.Value]) -> dict[str, ir.Value]:
        """Scale and counters after a step with overflow."""
        b, one = self.b, self.b.const(1, _INT64)
        found: dict[str, ir.Value] = {}
        if self.scaler is not None and self.scale is not None:
            found = self.scaler.after_overflow(b, self.inputs, self.scale, caused)
        found[names.LAST_SKIPPED] = one
        for name in (names.CONSECUTIVE_SKIPS, names.TOTAL_SKIPS):
            found[name] = b.op("Add", self.inputs[name], one)
        return found

    def _named(self, results: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """Name results outside branches like the next states; copy those that cannot be renamed."""
        made = {id(output) for node in self.b.nodes for output in node.outputs}
        found = {}
        for key, value in results.items():
            name = names.next_name(key)
            if id(value) in made:  # rename instead of copying
                made.remove(id(value))
                value.name = self.b.unique(name)
            else:
                value = self.b.op("Identity", value, name=name)
            like = self.inputs.get(key, value)
            value.type, value.shape = like.type, like.shape
            found[key] = value
        return found

    def _parts(self, next_of: Mapping[str, ir.Value], overflow: ir.Value) -> StepParts:
        """Append the reported outputs and collect the results."""
        scale = self.scale
        # A fixed scale has no next value.
        last = self.b.const(1.0) if scale is None else next_of.get(names.SCALE, scale)
        scales: tuple[ir.Value, ...] = ()
        if self.scaler is not None and self.scaler.number and scale is not None:
            scales = (self.b.op("Identity", last, name=names.LOSS_SCALES, shape=scale.shape),)
            last = self.b.op("Gather", last, self.b.const(0, _INT64), shape=())
        loss_scale = self.b.op("Identity", last, name=names.LOSS_SCALE, shape=())
        self.b.flush()
        return StepParts(
            tuple(self.parameters.rates.values()),
            tuple(self.state.entries),
            self.state.initial,
            next_of,
            (overflow, loss_scale, *scales),
        )

    # ---- state changes ------------------------------------------------------------------------

    def _updated(self, means: Callable[[], Mapping[str, ir.Value]]) -> dict[str, ir.Value]:
        """Parameters, slots, the states of boosts, and the count of updates."""
        counts, next_of = self._counts(), dict(self._early)
        context = self._update_context(next_of, counts)
        gradients = means()
        for boost in self.boosts:
            gradients = boost.transform_gradients(context, gradients)
        next_of |= self.parameters.updated(context, gradients)
        for boost in self.boosts:
            boost.after_update(context)
        # A boost need not change a state at every update, but both branches need the same results.
        own = {name: next_of.get(name, self.inputs[name]) for name in self.at_update}
        return {**next_of, **own, **counts}

    def _counts(self) -> dict[str, ir.Value]:
        """The number of this update, in all and of the group."""
        one = self.b.const(1, _INT64)
        return {name: self.b.op("Add", self.inputs[name], one) for name in self.counters}

    def _update_context(
        self, next_of: dict[str, ir.Value], counts: Mapping[str, ir.Value]
    ) -> UpdateContext:
        # With a state per freeze group, Adam's bias correction counts the updates of the group.
        step = self.b.cast([*counts.values()][-1], ir.DataType.DOUBLE)
        return UpdateContext(**vars(self.context), step=step, next_of=next_of)

    def _choose(
        self,
        name: str,
        condition: ir.Value,
        then: Callable[[], Mapping[str, ir.Value]],
        otherwise: Callable[[], Mapping[str, ir.Value]],
    ) -> dict[str, ir.Value]:
        """All state changes in one ``If``; results by state."""
        prefix = names.next_name("")
        return choose(self.b, name, condition, then, otherwise, self.inputs, prefix=prefix)

    def _unchanged(self) -> dict[str, ir.Value]:
        """The states of :meth:`_updated`, unchanged."""
        return {
            name: self.inputs[name]
            for name in (*self.counters, *self.at_update, *self.parameters.states)
        }
