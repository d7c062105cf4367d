"""The inputs that an update adds to a graph: learning rates, and states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.build import Builder
from ortboost.program.catalogue import StateEntry
from ortboost.program.names import next_name

__all__ = ["StepState"]


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
        """Declare a state.

        Args:
            name: Its name.
            kind: See :class:`~ortboost.program.catalogue.StateEntry`.
            initial: Its initial value.
            role: See :class:`~ortboost.program.catalogue.StateEntry`.
            sharded: Whether each process holds some of the rows.
        """
        array = np.asarray(initial)
        shape = (None, *array.shape[1:]) if sharded else array.shape
        self.input(name, ir.DataType.from_numpy(array.dtype), shape)
        self.initial[name] = array
        self.entries.append(
            StateEntry(name, kind, array.dtype, array.shape, next_name(name), role, sharded)
        )
