r"""The training step as one graph: what comes after the gradients.

    finite   = all scaled gradients are finite
    if finite:    un-scale, accumulate; S grows after `window` good steps
    otherwise:    every state keeps its value; S shrinks
    if finite, and the window of accumulation is full:    clip, optimizer

Without accumulation the two conditions are one, and so are the two ``If``. The last one depends on
every gradient, so whatever reads a state to make a gradient has run before anything is written: this is
what makes updating in place right (see :mod:`ortboost.program.aliasing`). A skipped step costs almost
nothing.

**Accumulation** over `N` micro-batches, with `g` the un-scaled gradient and `k` the micro-batches so far:

    a <- g / N              if k = 0
    a <- a + g / N          otherwise
    k <- k + 1;   if k = N:  update with a;  k <- 0

A micro-batch that overflows is skipped and does not count; the learning rate is per update. So it is in
MindSpore's `GradientAccumulation`, a mean. What is left of a window can be applied as the mean over its
`k` micro-batches: :func:`flush_graph`.

Overflow means non-finite gradients; the loss itself is not looked at, as in MindSpore. What becomes of
the scale: :mod:`ortboost.program.scale_policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.graph.build import Builder
from ortboost.graph.parameters import Parameter
from ortboost.graph.query import match_names
from ortboost.optimizers import UpdateInputs
from ortboost.program import catalogue as names
from ortboost.program import scale_policy
from ortboost.program.catalogue import StateEntry
from ortboost.program.config import ProgramConfig, decays
from ortboost.program.gate import choose
from ortboost.program.gradients import ScaledGradients, clipped

__all__ = ["StepParts", "append_flush", "append_update"]

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
_FULL = "ortboost/full"


@dataclass(frozen=True)
class StepParts:
    """What the update added to the graph.

    Args:
        hyper: Learning-rate inputs.
        state: States that the update keeps for itself: slots, scale, counters.
        initial: Their initial values.
        next_of: State to the value that is next, for every state a step changes.
        overflow: bool scalar.
        loss_scale: float32 scalar, the scale after this step; with a grouped scale that of the first
            group.
        loss_scales: float32 ``[groups]``, with a grouped scale.
    """

    hyper: tuple[ir.Value, ...]
    state: tuple[StateEntry, ...]
    initial: Mapping[str, NDArray[np.generic]]
    next_of: Mapping[str, ir.Value]
    overflow: ir.Value
    loss_scale: ir.Value
    loss_scales: ir.Value | None = None


def append_update(
    model: ir.Model,
    config: ProgramConfig,
    trained: Sequence[Parameter],
    gradients: Mapping[str, ir.Value],
    buffers_next: Mapping[str, ir.Value],
    scale: ir.Value | None,
    *,
    group: int | None = None,
    centralized: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    scale_groups: Mapping[str, int] | None = None,
    incoming: Mapping[tuple[int, int], Sequence[ir.Value]] | None = None,
) -> StepParts:
    """Append finite check, gate, un-scaling, clipping, optimizer and scale update to a gradient graph.

    Args:
        model: The gradient graph; parameters are its inputs. Changed in place.
        config: The configuration.
        trained: Parameters to update.
        gradients: Parameter name to its scaled gradient.
        buffers_next: Buffer name to the raw next value that the forward pass computed.
        scale: The loss-scale input; ``None`` for no scaling.
        group: Number of the freeze group that has an optimizer state of its own; ``None`` if there
            is one state for all.
        centralized: Parameter to the axes over which its gradient is centralized.
        scale_groups: Parameter to its scale group, with a grouped loss scale.
        incoming: A scale group and the one above it, to the gradients that come from there into it,
            with a grouped loss scale.
    """
    writer = _Writer(model, config, trained, group, centralized)
    writer.declare_step()
    scaled = ScaledGradients(writer.b, config, trained, gradients, scale, scale_groups, incoming)
    if config.check_finite:
        return writer.gated(scaled, buffers_next, scale)
    return writer.ungated(scaled, buffers_next, scale)


def append_flush(
    model: ir.Model,
    config: ProgramConfig,
    trained: Sequence[Parameter],
    *,
    group: int | None = None,
    centralized: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> StepParts:
    """Append the update with what a window of accumulation holds so far, see :func:`append_update`.

    Args:
        model: A graph whose inputs are the parameters. Changed in place.
        config: The configuration.
        trained: Parameters to update.
        group: See :func:`append_update`.
        centralized: See :func:`append_update`.
    """
    writer = _Writer(model, config, trained, group, centralized)
    return writer.flush()


class _Writer:
    """Appends the update to one graph."""

    def __init__(
        self,
        model: ir.Model,
        config: ProgramConfig,
        trained: Sequence[Parameter],
        group: int | None,
        centralized: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.graph = model.graph
        self.config = config
        self.trained = trained
        self.group = group
        self.centralized = centralized
        self.b = Builder(model.graph, "ortboost/update")
        self.inputs = {value.name or "": value for value in model.graph.inputs}
        self.state: list[StateEntry] = []
        self.initial: dict[str, NDArray[np.generic]] = {}
        self.hyper: dict[str, ir.Value] = {}
        self._declare_update()

    # ---- inputs -------------------------------------------------------------------------------

    def _declare_update(self) -> None:
        """What the optimizer reads and keeps."""
        self._learning_rate(None)
        for group in self.config.groups:
            if group.learning_rate is not None:
                self._learning_rate(group.name)
        for parameter in self.trained:
            for slot in self.config.optimizer.slots:
                self._add_zeros(self._slot(slot, parameter), "slot", parameter, slot)
        if self.config.accumulate > 1:
            for parameter in self.trained:
                self._add_zeros(names.accumulator_name(parameter.name), "slot", parameter, "mean")
            self._add_state(names.MICRO_STEPS, "counter", np.int64(0))
        if self.group is not None:
            self._add_state(names.group_step(self.group), "counter", np.int64(0))
        self._add_state(names.STEP, "counter", np.int64(0))

    def declare_step(self) -> None:
        """What the gate reads and keeps."""
        for name, start in scale_policy.counters(self.config).items():
            self._add_state(name, "counter", np.int64(start))

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=self.b.unique(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        self.inputs[name] = value
        return value

    def _learning_rate(self, group: str | None) -> None:
        name = names.learning_rate_name(group)
        self.hyper[name] = self._input(name, _FLOAT, ())

    def _add_zeros(self, name: str, kind: str, like: Parameter, role: str) -> None:
        self._add_state(name, kind, np.zeros(like.shape, like.dtype.numpy()), role)

    def _add_state(
        self, name: str, kind: str, initial: NDArray[np.generic] | np.generic, role: str = ""
    ) -> None:
        array = np.asarray(initial)
        self._input(name, ir.DataType.from_numpy(array.dtype), array.shape)
        self.initial[name] = array
        self.state.append(
            StateEntry(name, kind, array.dtype, array.shape, names.next_name(name), role)
        )

    def _slot(self, slot: str, parameter: Parameter) -> str:
        return names.slot_name(slot, parameter.name, self.group or 0)

    # ---- the forms ----------------------------------------------------------------------------

    def gated(
        self,
        scaled: ScaledGradients,
        buffers_next: Mapping[str, ir.Value],
        scale: ir.Value | None,
    ) -> StepParts:
        """Nothing moves but scale and counters if a gradient is not finite."""
        scaled.pack()
        finite = scaled.finite()
        overflow = self.b.op("Not", finite, name=names.OVERFLOW, shape=())
        grouped = isinstance(self.config.loss_scale, GroupedScaleConfig)
        blamed = scaled.blamed() if grouped else {}
        self.b.flush()
        accumulating = self.config.accumulate > 1

        def good() -> dict[str, ir.Value]:
            moved = self._accumulated(scaled) if accumulating else self._updated(scaled.unscaled)
            groups = tuple(scaled.bundles) if grouped else ()
            law = scale_policy.passed(self.b, self.config, self.inputs, scale, groups)
            return {**moved, **buffers_next, **law}

        def bad() -> dict[str, ir.Value]:
            kept = self._waiting() if accumulating else self._unchanged()
            buffers = {
                name: self.inputs[name] if self.config.gate_buffers else raw
                for name, raw in buffers_next.items()
            }
            law = scale_policy.skipped(self.b, self.config, self.inputs, scale, blamed)
            return {**kept, **buffers, **law}

        results = choose(self.b, "ortboost/gate", finite, good, bad, names.next_name, self.inputs)
        if accumulating:
            results |= self._update_if_full(results)
        return self._parts(results, scale, overflow)

    def ungated(
        self,
        scaled: ScaledGradients,
        buffers_next: Mapping[str, ir.Value],
        scale: ir.Value | None,
    ) -> StepParts:
        """Update whatever comes."""
        overflow = self.b.op("Identity", self.b.const(False, _BOOL), name=names.OVERFLOW, shape=())
        accumulating = self.config.accumulate > 1
        moved = self._accumulated(scaled) if accumulating else self._updated(scaled.unscaled)
        law = scale_policy.passed(self.b, self.config, self.inputs, scale)
        results = self._named({**moved, **buffers_next, **law})
        self.b.flush()
        if accumulating:
            results |= self._update_if_full(results)
        return self._parts(results, scale, overflow)

    def flush(self) -> StepParts:
        """Update with the mean over the `k` micro-batches that there are, if there are any."""
        b, done = self.b, self.inputs[names.MICRO_STEPS]
        some = b.op("Greater", done, b.const(0, _INT64), dtype=_BOOL, name=names.FLUSHED, shape=())
        share = b.op("Cast", done, dtype=_FLOAT, to=_FLOAT)
        factor = b.op("Div", b.const(float(self.config.accumulate)), share)
        b.flush()

        def means() -> dict[str, ir.Value]:
            accumulators = {p.name: names.accumulator_name(p.name) for p in self.trained}
            return {
                name: b.op("Mul", self.inputs[accumulator], factor)
                for name, accumulator in accumulators.items()
            }

        def applied() -> dict[str, ir.Value]:
            return {**self._updated(means), names.MICRO_STEPS: b.const(0, _INT64)}

        def kept() -> dict[str, ir.Value]:
            return {**self._unchanged(), names.MICRO_STEPS: done}

        results = choose(b, "ortboost/flush", some, applied, kept, names.next_name, self.inputs)
        return self._parts(results, None, some)

    def _update_if_full(self, results: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """The optimizer, when the window is full."""
        full = results.pop(_FULL)

        def means() -> dict[str, ir.Value]:
            return {p.name: results[names.accumulator_name(p.name)] for p in self.trained}

        return choose(
            self.b,
            "ortboost/apply",
            full,
            lambda: self._updated(means),
            self._unchanged,
            names.next_name,
            self.inputs,
        )

    def _named(self, results: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """Results of no branch under the names of the next states; a copy where one has another."""
        made = {id(output) for node in self.b.nodes for output in node.outputs}
        found = {}
        for key, value in results.items():
            name = names.next_name(key)
            if id(value) in made:  # a copy would cost time for no more than a name
                made.remove(id(value))
                value.name = self.b.unique(name)
            else:
                value = self.b.op("Identity", value, name=name)
            like = self.inputs.get(key, value)
            value.type, value.shape = like.type, like.shape
            found[key] = value
        return found

    def _parts(
        self, next_of: Mapping[str, ir.Value], scale: ir.Value | None, overflow: ir.Value
    ) -> StepParts:
        """Close the graph and describe what was added."""
        last = self.b.const(1.0) if scale is None else next_of.get(names.SCALE, scale)
        scales = None
        if isinstance(self.config.loss_scale, GroupedScaleConfig) and scale is not None:
            scales = self.b.op("Identity", last, name=names.LOSS_SCALES, shape=scale.shape)
            last = self.b.op("Gather", last, self.b.const(0, _INT64), shape=())
        loss_scale = self.b.op("Identity", last, name=names.LOSS_SCALE, shape=())
        self.b.flush()
        return StepParts(
            tuple(self.hyper.values()),
            tuple(self.state),
            self.initial,
            next_of,
            overflow,
            loss_scale,
            scales,
        )

    # ---- what moves ---------------------------------------------------------------------------

    def _updated(self, means: Callable[[], Mapping[str, ir.Value]]) -> dict[str, ir.Value]:
        """Clip and update: parameters, slots and the count of updates."""
        b, one = self.b, self.b.const(1, _INT64)
        counters = [names.STEP] + ([] if self.group is None else [names.group_step(self.group)])
        counts = {name: b.op("Add", self.inputs[name], one) for name in counters}
        step = b.op("Cast", counts[counters[-1]], dtype=ir.DataType.DOUBLE, to=ir.DataType.DOUBLE)
        gradients = clipped(b, self.config.clip, means())
        next_of: dict[str, ir.Value] = {}
        for parameter in self.trained:
            rate, decay = self._group(parameter)
            slots = {s: self._slot(s, parameter) for s in self.config.optimizer.slots}
            update = self.config.optimizer.update(
                b,
                UpdateInputs(
                    weight=self.inputs[parameter.name],
                    grad=gradients[parameter.name],
                    slots={slot: self.inputs[name] for slot, name in slots.items()},
                    learning_rate=rate,
                    step=step,
                    weight_decay=decay,
                    adapt=self._adapts(parameter),
                    centralize=self.centralized.get(parameter.name, ()),
                ),
            )
            next_of[parameter.name] = update.weight
            next_of.update({slots[slot]: value for slot, value in update.slots.items()})
        return {**next_of, **counts}

    def _unchanged(self) -> dict[str, ir.Value]:
        """The same states as they are."""
        kept = [names.STEP] + ([] if self.group is None else [names.group_step(self.group)])
        for parameter in self.trained:
            kept.append(parameter.name)
            kept += [self._slot(slot, parameter) for slot in self.config.optimizer.slots]
        return {name: self.inputs[name] for name in kept}

    def _accumulated(self, scaled: ScaledGradients) -> dict[str, ir.Value]:
        """Add a micro-batch to the window; the algebra is at the top."""
        b, size = self.b, self.config.accumulate
        done = self.inputs[names.MICRO_STEPS]
        started = b.op("Greater", done, b.const(0, _INT64), dtype=_BOOL)
        count = b.op("Add", done, b.const(1, _INT64))
        full = b.op("GreaterOrEqual", count, b.const(size, _INT64), dtype=_BOOL, shape=())
        keep = b.op("Cast", started, dtype=_FLOAT, to=_FLOAT)
        divisor = b.const(float(size))
        found = {}
        for name, grad in scaled.unscaled().items():
            state = names.accumulator_name(name)
            old = b.op("Mul", self.inputs[state], keep)
            found[state] = b.op("Add", old, b.op("Div", grad, divisor))
        left = b.op("Where", full, b.const(0, _INT64), count, dtype=_INT64)
        return {**found, names.MICRO_STEPS: left, _FULL: full}

    def _waiting(self) -> dict[str, ir.Value]:
        """The window as it is."""
        kept = [names.accumulator_name(p.name) for p in self.trained] + [names.MICRO_STEPS]
        return {**{name: self.inputs[name] for name in kept}, _FULL: self.b.const(False, _BOOL)}

    def _group(self, parameter: Parameter) -> tuple[ir.Value, float]:
        """Learning-rate input and weight decay of a parameter."""
        rate = self.hyper[names.LEARNING_RATE]
        decay = self.config.weight_decay if decays(parameter, self.config.decay) else 0.0
        for group in self.config.groups:
            if match_names([parameter.name], group.patterns)[0]:
                if group.learning_rate is not None:
                    rate = self.hyper[names.learning_rate_name(group.name)]
                return rate, decay if group.weight_decay is None else group.weight_decay
        return rate, decay

    def _adapts(self, parameter: Parameter) -> bool:
        """Whether LARS adapts the rate of a parameter."""
        if self.config.adapt is None:
            return parameter.role == "weight"
        return bool(match_names([parameter.name], self.config.adapt)[0])
