"""The inputs that an update adds to a graph, and the optimizer's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, UpdateContext
from ortboost.graph.build import Builder
from ortboost.graph.reach import values_by_name
from ortboost.graph.weights.parameters import Parameter, match_parameters
from ortboost.optimizers import UpdateInputs
from ortboost.program import names
from ortboost.program.catalogue import StateEntry
from ortboost.program.config import ProgramConfig, decays

__all__ = ["ParameterUpdate", "StepState"]


class StepState:
    """Declares inputs and states of a step.

    Args:
        builder: Builder of the graph that receives the inputs.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self.inputs = {value.name or "": value for value in builder.graph.inputs}
        """All inputs of the graph by name: data, parameters, states and rates."""
        self.entries: list[StateEntry] = []
        """The added states."""
        self.initial: dict[str, NDArray[np.generic]] = {}
        """Their initial values."""

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | None]) -> ir.Value:
        """Declare an input, or set the shape of one that a rewrite of the gradients declared."""
        if name in self.inputs:
            self.inputs[name].shape = ir.Shape(shape)
            return self.inputs[name]
        value = ir.val(self._builder.unique(name), dtype, shape)
        self._builder.graph.inputs.append(value)
        self.inputs[name] = value
        return value

    def add(
        self,
        name: str,
        kind: str,
        initial: NDArray[np.generic] | np.generic,
        role: str = "",
        *,
        sharded: bool = False,
    ) -> None:
        """Declare a :class:`~ortboost.program.catalogue.StateEntry` and its initial value."""
        array = np.asarray(initial)
        shape = (None, *array.shape[1:]) if sharded else array.shape
        self.input(name, ir.DataType.from_numpy(array.dtype), shape)
        self.initial[name] = array
        self.entries.append(
            StateEntry(name, kind, array.dtype, array.shape, names.next_name(name), role, sharded)
        )


class ParameterUpdate:
    """Updates parameters and slots, with the rate and decay of each parameter group.

    Learning rates and slots are declared when it is created.

    Args:
        builder: Receives the nodes.
        graph: The context of the graph, with the trained parameters.
        config: The configuration.
        state: Receives the inputs and states.
        group: Number of the freeze group that has slots of its own; 0 if they are shared.
    """

    def __init__(
        self,
        builder: Builder,
        graph: GraphContext,
        config: ProgramConfig,
        state: StepState,
        group: int,
    ) -> None:
        self._b, self._config, self._group = builder, config, group
        self._inputs = state.inputs
        self._trained = graph.trained
        # With a line search, a boost takes the step in place of the optimizer.
        self._slots = config.optimizer.slots if config.line_search is None else ()
        # A rewrite of the gradients has computed the row numbers of each sparse gradient.
        values = values_by_name(builder.graph) if graph.rows else {}
        self._rows = {
            p.name: values[graph.rows[p.name]] for p in self._trained if p.name in graph.rows
        }
        own_rates = [group.name for group in config.groups if group.learning_rate is not None]
        self.rates = {
            name: state.input(name, ir.DataType.FLOAT, ())
            for name in map(names.learning_rate_name, [None, *own_rates])
        }
        """The learning-rate inputs."""
        for parameter in self._trained:
            for slot, name in self._slots_of(parameter).items():
                zeros = np.zeros(parameter.shape, parameter.dtype.numpy())
                state.add(name, "slot", zeros, slot)

    @property
    def states(self) -> list[str]:
        """Names of the parameters and slots that :meth:`updated` changes."""
        return [
            name
            for parameter in self._trained
            for name in (parameter.name, *self._slots_of(parameter).values())
        ]

    def updated(
        self, context: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> dict[str, ir.Value]:
        """Append the updates; next values of parameters and slots.

        Args:
            context: The context of the update.
            gradients: Parameter name to its gradient, after all boosts.
        """
        found: dict[str, ir.Value] = {}
        for parameter in self._trained if self._config.line_search is None else ():
            rate, decay = self._rate_and_decay(parameter)
            slots = self._slots_of(parameter)
            update = self._config.optimizer.update(
                self._b,
                UpdateInputs(
                    weight=self._read(parameter.name, parameter),
                    grad=gradients[parameter.name],
                    slots={slot: self._read(name, parameter) for slot, name in slots.items()},
                    learning_rate=rate,
                    step=context.step,
                    weight_decay=decay,
                    adapt=self._adapts(parameter),
                    after_decay=partial(self._after_decay, context, parameter),
                ),
            )
            values = {parameter.name: update.weight}
            values |= {slots[slot]: value for slot, value in update.slots.items()}
            found |= {name: self._written(name, parameter, v) for name, v in values.items()}
        return found

    def _slots_of(self, parameter: Parameter) -> dict[str, str]:
        """Slot to its state."""
        return {s: names.slot_name(s, parameter.name, self._group) for s in self._slots}

    def _rate_and_decay(self, parameter: Parameter) -> tuple[ir.Value, float]:
        rate = self.rates[names.LEARNING_RATE]
        decay = self._config.weight_decay if decays(parameter, self._config.decay) else 0.0
        for group in self._config.groups:
            if match_parameters([parameter], group.patterns)[0]:
                if group.learning_rate is not None:
                    rate = self.rates[names.learning_rate_name(group.name)]
                return rate, decay if group.weight_decay is None else group.weight_decay
        return rate, decay

    def _adapts(self, parameter: Parameter) -> bool:
        """Whether LARS adapts the rate of a parameter."""
        if self._config.adapt is None:
            return parameter.role == "weight"
        return bool(match_parameters([parameter], self._config.adapt)[0])

    def _after_decay(
        self, context: UpdateContext, parameter: Parameter, gradient: ir.Value
    ) -> ir.Value:
        for boost in self._config.enabled_boosts:
            gradient = boost.after_decay(context, parameter, gradient)
        return gradient

    def _read(self, state: str, parameter: Parameter) -> ir.Value:
        """A state of a parameter; of a table with a sparse gradient, its rows of this batch."""
        value, rows = self._inputs[state], self._rows.get(parameter.name)
        return value if rows is None else self._b.op("Gather", value, rows, axis=0)

    def _written(self, state: str, parameter: Parameter, value: ir.Value) -> ir.Value:
        """The next value of a state from what replaces :meth:`_read`."""
        old, rows = self._inputs[state], self._rows.get(parameter.name)
        if rows is None:
            return value
        b = self._b
        # ScatterND needs coordinates, here one for each row: [rows] -> [rows, 1].
        places = b.shared(("places", rows.name), lambda: b.op("Unsqueeze", rows, b.ints(1)))
        return b.op("ScatterND", old, places, value, shape=old.shape)
