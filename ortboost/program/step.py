r"""The training step as one graph: what comes after the gradients.

With scaled gradients `G = S g` from the engine:

    finite   = all(G is finite)          as sum(0 * G) == 0: 0 * inf and 0 * nan are nan, and a sum of
                                         finite zeros cannot overflow, which a sum of G can
    if finite:    g = G / S / d, clip, optimizer; S grows after `window` good steps
    otherwise:    every state keeps its value; S shrinks

One ``If`` holds both branches. It depends on every gradient, so whatever reads a state to make a
gradient has run before anything is written: this is what makes updating in place right (see
:mod:`ortboost.program.aliasing`). A skipped step costs almost nothing.

The law of the scale is that of MindSpore's `DynamicLossScaleUpdateCell`, with bounds; its host twin is
:mod:`ortboost.loss_scale`. Overflow means non-finite gradients; the loss itself is not looked at, as
in MindSpore. `G` is checked before it is un-scaled, which is the same as long as un-scaling only
shrinks; where the configuration allows `S d < 1`, what is checked is `g`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.build import Builder
from ortboost.graph.query import Parameter, match_names
from ortboost.loss_scale import DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import UpdateInputs
from ortboost.program import catalogue as names
from ortboost.program.catalogue import StateEntry
from ortboost.program.config import ClipConfig, ProgramConfig, decays

__all__ = ["StepParts", "append_update"]

_SMALL = 8192  # elements; larger gradients are not worth a copy

_FLOAT, _INT64, _BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL


@dataclass(frozen=True)
class StepParts:
    """What the update added to the graph.

    Args:
        hyper: Learning-rate inputs.
        state: States that the update keeps for itself: slots, scale, counters.
        initial: Their initial values.
        next_of: State to the value that is next, for every state a step changes.
        overflow: bool scalar.
        loss_scale: float32 scalar, the scale after this step.
    """

    hyper: tuple[ir.Value, ...]
    state: tuple[StateEntry, ...]
    initial: Mapping[str, NDArray[np.generic]]
    next_of: Mapping[str, ir.Value]
    overflow: ir.Value
    loss_scale: ir.Value


def append_update(
    model: ir.Model,
    config: ProgramConfig,
    trained: Sequence[Parameter],
    gradients: Mapping[str, ir.Value],
    buffers_next: Mapping[str, ir.Value],
    scale: ir.Value | None,
) -> StepParts:
    """Append finite check, gate, un-scaling, clipping, optimizer and scale update to a gradient graph.

    Args:
        model: The gradient graph; parameters are its inputs. Changed in place.
        config: The configuration.
        trained: Parameters to update.
        gradients: Parameter name to its scaled gradient.
        buffers_next: Buffer name to the raw next value that the forward pass computed.
        scale: The loss-scale input; ``None`` for no scaling.
    """
    writer = _Writer(model, config, trained, gradients, buffers_next, scale)
    return writer.gated() if config.check_finite else writer.ungated()


class _Writer:
    """Holds what the two forms of the update share."""

    def __init__(
        self,
        model: ir.Model,
        config: ProgramConfig,
        trained: Sequence[Parameter],
        gradients: Mapping[str, ir.Value],
        buffers_next: Mapping[str, ir.Value],
        scale: ir.Value | None,
    ) -> None:
        self.graph = model.graph
        self.config = config
        self.trained = trained
        self.gradients = gradients
        self.buffers_next = buffers_next
        self.scale = scale
        self.b = Builder(model.graph, "ortboost/update")
        self.inputs = {value.name: value for value in model.graph.inputs}
        self.state: list[StateEntry] = []
        self.initial: dict[str, NDArray[np.generic]] = {}
        self.hyper: dict[str, ir.Value] = {}
        self.factor: ir.Value | None = None
        self.packed: ir.Value | None = None
        self.small: list[Parameter] = []
        self._declare()

    # ---- inputs -------------------------------------------------------------------------------

    def _declare(self) -> None:
        self._learning_rate(None)
        for group in self.config.groups:
            if group.learning_rate is not None:
                self._learning_rate(group.name)
        for parameter in self.trained:
            for slot in self.config.optimizer.slots:
                name = names.slot_name(slot, parameter.name)
                zeros = np.zeros(parameter.shape, parameter.dtype.numpy())
                self._add_state(name, "slot", zeros, slot)
        if isinstance(self.config.loss_scale, DynamicScaleConfig):
            self._add_state(names.GOOD_STEPS, "counter", np.int64(0))
        self._add_state(names.STEP, "counter", np.int64(0))
        if self.config.check_finite:
            self._add_state(names.LAST_SKIPPED, "counter", np.int64(0))
            self._add_state(names.CONSECUTIVE_SKIPS, "counter", np.int64(0))
            self._add_state(names.TOTAL_SKIPS, "counter", np.int64(0))

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=self.b.unique(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        self.inputs[name] = value
        return value

    def _learning_rate(self, group: str | None) -> None:
        name = names.learning_rate_name(group)
        self.hyper[name] = self._input(name, _FLOAT, ())

    def _add_state(
        self, name: str, kind: str, initial: NDArray[np.generic] | np.generic, role: str = ""
    ) -> None:
        array = np.asarray(initial)
        self._input(name, ir.DataType.from_numpy(array.dtype), array.shape)
        self.initial[name] = array
        self.state.append(
            StateEntry(name, kind, array.dtype, array.shape, names.next_name(name), role)
        )

    # ---- the two forms ------------------------------------------------------------------------

    def gated(self) -> StepParts:
        """One If for everything that changes."""
        self.factor = self._unscaling()  # reads the scale, so before the branches that write it
        self._pack()
        finite = self._finite()
        overflow = self.b.op("Not", finite, name=names.OVERFLOW, shape=())
        self.b.flush()
        applied = self._good_step()
        then_branch = self._branch("applied", applied)
        else_branch = self._branch("skipped", self._skipped_step())
        results = {
            state: ir.Value(
                name=self.b.unique(names.next_name(state)),
                type=self.inputs[state].type,
                shape=self.inputs[state].shape,
            )
            for state in applied
        }
        gate = ir.Node(
            "",
            "If",
            [finite],
            [ir.AttrGraph("then_branch", then_branch), ir.AttrGraph("else_branch", else_branch)],
            outputs=list(results.values()),
            name=self.b.unique("ortboost/gate"),
        )
        self.graph.append(gate)
        return self._parts(results, overflow)

    def ungated(self) -> StepParts:
        """Update whatever comes."""
        self.factor = self._unscaling()
        overflow = self.b.op("Identity", self.b.const(False, _BOOL), name=names.OVERFLOW, shape=())
        results = {}
        good = self._good_step()
        made = {id(output) for node in self.b.nodes for output in node.outputs}
        for state, value in good.items():
            name, like = names.next_name(state), self.inputs[state]
            if id(value) in made:  # a copy would cost time for no more than a name
                made.remove(id(value))
                value.name, value.type, value.shape = self.b.unique(name), like.type, like.shape
                results[state] = value
            else:
                results[state] = self.b.op("Identity", value, name=name, shape=like.shape)
        self.b.flush()
        return self._parts(results, overflow)

    def _parts(self, next_of: Mapping[str, ir.Value], overflow: ir.Value) -> StepParts:
        """Close the graph and describe what was added."""
        scale = self.b.const(1.0) if self.scale is None else next_of.get(names.SCALE, self.scale)
        loss_scale = self.b.op("Identity", scale, name=names.LOSS_SCALE, shape=())
        self.b.flush()
        return StepParts(
            tuple(self.hyper.values()),
            tuple(self.state),
            self.initial,
            next_of,
            overflow,
            loss_scale,
        )

    def _branch(self, name: str, next_of: Mapping[str, ir.Value]) -> ir.Graph:
        """The waiting nodes as a branch whose outputs are the next values, in this order.

        A branch may only give out what it made itself, and everything once: the rest is copied.
        """
        inside = {id(output) for node in self.b.nodes for output in node.outputs}
        outputs: list[ir.Value] = []
        for state, value in next_of.items():
            if id(value) in inside:
                inside.remove(id(value))
                output = value
            else:
                output = self.b.op("Identity", value, name=f"ortboost/{name}/{state}")
            output.type, output.shape = self.inputs[state].type, self.inputs[state].shape
            outputs.append(output)
        return ir.Graph([], outputs, nodes=self.b.take(), name=f"ortboost/{name}")

    # ---- parts --------------------------------------------------------------------------------

    def _pack(self) -> None:
        """Lay the small gradients into one vector: for them a node costs more than the numbers do."""
        small = [p for p in self.trained if p.size <= _SMALL]
        if len(small) < 2:
            return
        flat = [
            self.gradients[p.name]
            if len(p.shape) == 1
            else self.b.op("Reshape", self.gradients[p.name], self.b.ints(-1), shape=(p.size,))
            for p in small
        ]
        self.packed = self.b.op("Concat", *flat, axis=0, shape=(sum(p.size for p in small),))
        self.small = small

    def _finite(self) -> ir.Value:
        """`sum(0 * G) == 0`."""
        zero = self.b.const(0.0)
        inside = {p.name for p in self.small}
        checked = [grad for name, grad in self.gradients.items() if name not in inside]
        if self.packed is not None:
            checked.append(self.packed)
        if self.factor is not None and self._unscaling_may_overflow():
            checked = [self.b.op("Mul", grad, self.factor) for grad in checked]
        sums = [
            self.b.op("ReduceSum", self.b.op("Mul", grad, zero), keepdims=0, shape=())
            for grad in checked
        ]
        total = self.b.op("Sum", *sums, shape=()) if len(sums) > 1 else sums[0]
        return self.b.op("Equal", total, zero, dtype=_BOOL, shape=())

    def _good_step(self) -> dict[str, ir.Value]:
        """State to next value when the update is applied."""
        b, one = self.b, self.b.const(1, _INT64)
        count = b.op("Add", self.inputs[names.STEP], one)
        step = b.op("Cast", count, dtype=ir.DataType.DOUBLE, to=ir.DataType.DOUBLE)
        gradients = self._clipped(self._unscaled())
        next_of: dict[str, ir.Value] = {}
        for parameter in self.trained:
            rate, decay = self._group(parameter)
            slots = {
                slot: self.inputs[names.slot_name(slot, parameter.name)]
                for slot in self.config.optimizer.slots
            }
            update = self.config.optimizer.update(
                b,
                UpdateInputs(
                    weight=self.inputs[parameter.name],
                    grad=gradients[parameter.name],
                    slots=slots,
                    learning_rate=rate,
                    step=step,
                    weight_decay=decay,
                    adapt=self._adapts(parameter),
                ),
            )
            next_of[parameter.name] = update.weight
            for slot, value in update.slots.items():
                next_of[names.slot_name(slot, parameter.name)] = value
        next_of.update(self.buffers_next)
        next_of.update(self._grown_scale())
        next_of[names.STEP] = count
        if self.config.check_finite:
            zero = b.const(0, _INT64)
            next_of[names.LAST_SKIPPED] = zero
            next_of[names.CONSECUTIVE_SKIPS] = zero
            next_of[names.TOTAL_SKIPS] = self.inputs[names.TOTAL_SKIPS]
        return next_of

    def _skipped_step(self) -> dict[str, ir.Value]:
        """State to next value when a gradient is not finite."""
        b, one = self.b, self.b.const(1, _INT64)
        next_of: dict[str, ir.Value] = {}
        for parameter in self.trained:
            next_of[parameter.name] = self.inputs[parameter.name]
            for slot in self.config.optimizer.slots:
                name = names.slot_name(slot, parameter.name)
                next_of[name] = self.inputs[name]
        for name, raw in self.buffers_next.items():
            next_of[name] = self.inputs[name] if self.config.gate_buffers else raw
        next_of.update(self._shrunk_scale())
        next_of[names.STEP] = self.inputs[names.STEP]
        next_of[names.LAST_SKIPPED] = one
        next_of[names.CONSECUTIVE_SKIPS] = b.op("Add", self.inputs[names.CONSECUTIVE_SKIPS], one)
        next_of[names.TOTAL_SKIPS] = b.op("Add", self.inputs[names.TOTAL_SKIPS], one)
        return next_of

    def _unscaling(self) -> ir.Value | None:
        """`1 / (S d)`; a multiplication with the rounded reciprocal is what MindSpore does too."""
        factor = None if self.scale is None else self.b.op("Reciprocal", self.scale, shape=())
        if self.config.gradient_divisor != 1.0:
            divisor = self.b.const(np.float32(1.0) / np.float32(self.config.gradient_divisor))
            factor = divisor if factor is None else self.b.op("Mul", factor, divisor)
        return factor

    def _unscaling_may_overflow(self) -> bool:
        """Whether `1 / (S d)` can be above 1, so that a finite `G` may have an infinite `g`."""
        law, smallest = self.config.loss_scale, 1.0
        if isinstance(law, DynamicScaleConfig):
            smallest = min(law.init, law.min_scale)
        elif isinstance(law, FixedScaleConfig):
            smallest = law.scale
        return smallest * min(self.config.gradient_divisor, 1.0) < 1.0

    def _unscaled(self) -> dict[str, ir.Value]:
        if self.factor is None:
            return dict(self.gradients)
        b, factor = self.b, self.factor
        found = dict(self.gradients)
        if self.packed is not None:
            vector = b.op("Mul", self.packed, factor)
            sizes = b.ints(*(p.size for p in self.small))
            parts = b.ops("Split", vector, sizes, names=[None] * len(self.small), axis=0)
            for p, part in zip(self.small, parts, strict=True):
                shaped = len(p.shape) == 1
                found[p.name] = part if shaped else b.op("Reshape", part, b.ints(*p.shape))
        inside = {p.name for p in self.small}
        for name, grad in self.gradients.items():
            if name not in inside:
                found[name] = b.op("Mul", grad, factor)
        return found

    def _clipped(self, gradients: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        clip = self.config.clip
        if clip is None:
            return dict(gradients)
        if clip.by == "value":
            low, high = self.b.const(-clip.limit), self.b.const(clip.limit)
            return {name: self.b.op("Clip", g, low, high) for name, g in gradients.items()}
        norms = {
            name: self.b.op("ReduceL2", g, keepdims=0, shape=()) for name, g in gradients.items()
        }
        if clip.by == "norm":
            factors = {name: self._clip_factor(norm, clip) for name, norm in norms.items()}
        else:
            squares = [self.b.op("Mul", norm, norm) for norm in norms.values()]
            total = self.b.op("Sum", *squares, shape=()) if len(squares) > 1 else squares[0]
            factors = dict.fromkeys(norms, self._clip_factor(self.b.op("Sqrt", total), clip))
        return {name: self.b.op("Mul", g, factors[name]) for name, g in gradients.items()}

    def _clip_factor(self, norm: ir.Value, clip: ClipConfig) -> ir.Value:
        ratio = self.b.op(
            "Div", self.b.const(clip.limit), self.b.op("Add", norm, self.b.const(1e-6))
        )
        return self.b.op("Min", ratio, self.b.const(1.0))

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

    def _grown_scale(self) -> dict[str, ir.Value]:
        """Grow after `window` good steps; the host twin is :func:`ortboost.loss_scale.update`."""
        law, b = self.config.loss_scale, self.b
        if not isinstance(law, DynamicScaleConfig) or self.scale is None:
            return {}
        good = b.op("Add", self.inputs[names.GOOD_STEPS], b.const(1, _INT64))
        grow = b.op("GreaterOrEqual", good, b.const(law.window, _INT64), dtype=_BOOL)
        larger = b.op("Mul", self.scale, b.const(law.factor))
        if law.max_scale is not None:
            larger = b.op("Min", larger, b.const(law.max_scale))
        return {
            names.SCALE: b.op("Where", grow, larger, self.scale, dtype=_FLOAT),
            names.GOOD_STEPS: b.op("Where", grow, b.const(0, _INT64), good, dtype=_INT64),
        }

    def _shrunk_scale(self) -> dict[str, ir.Value]:
        """Shrink, but not below the minimum."""
        law, b = self.config.loss_scale, self.b
        if not isinstance(law, DynamicScaleConfig) or self.scale is None:
            return {}
        smaller = b.op("Mul", self.scale, b.const(np.float32(1.0) / np.float32(law.factor)))
        return {
            names.SCALE: b.op("Max", smaller, b.const(law.min_scale)),
            names.GOOD_STEPS: b.const(0, _INT64),
        }
