r"""Gradient accumulation: one update with the mean gradient of several micro-batches.

With a window of `N` micro-batches, the unscaled gradient `g` and the number `k` of micro-batches
seen:

    a <- g / N              if k = 0
    a <- a + g / N          otherwise
    k <- k + 1;   if k = N:  update with a;  k <- 0

A micro-batch that overflows is skipped and does not count; the learning rate is per update. An
incomplete window can be applied as the mean over its `k` micro-batches.

Source: MindSpore Boost 2.10, ``GradientAccumulation`` (also a mean); ``MultiSteps`` of optax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import State, StepContext
from ortboost.boosts.roles import FLUSHED, MICRO_STEPS, GradientAccumulator
from ortboost.core.field_types import Range
from ortboost.graph.weights.parameters import Parameter

__all__ = ["GradAccumulation", "accumulator_name"]

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


def accumulator_name(parameter: str) -> str:
    """Name of the state that accumulates the gradients of a window.

    Example:
        >>> accumulator_name("fc1.weight")
        'ortboost/accumulated/fc1.weight'
    """
    return f"ortboost/accumulated/{parameter}"


@dataclass(frozen=True)
class GradAccumulation(GradientAccumulator):
    """Gradient accumulation.

    Args:
        steps: Micro-batches per update, below 2**31; 1 means no accumulation.

    Raises:
        ConfigError: The number is out of range.

    Example:
        >>> GradAccumulation(4).to_dict()
        {'name': 'grad-accumulation', 'steps': 4}
    """

    steps: Annotated[int, Range(1, below=2**31)]

    name: ClassVar[str] = "grad-accumulation"
    card: ClassVar[str] = "grad-accumulation"

    @property
    def enabled(self) -> bool:
        """Whether there is more than one micro-batch per update."""
        return self.steps > 1

    def states(self, trained: Sequence[Parameter]) -> list[State]:
        """The partial means, and the number of micro-batches in them."""
        means = [
            State(accumulator_name(p.name), np.zeros(p.shape, p.dtype.numpy()), "slot", "mean")
            for p in trained
        ]
        return [*means, State(MICRO_STEPS, np.zeros((), np.int64))]

    def accumulate(
        self, step: StepContext, gradients: Callable[[], Mapping[str, ir.Value]]
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """Add a micro-batch to the window; the module docstring has the algebra."""
        b, done = step.b, step.states[MICRO_STEPS]
        # `keep` clears the sums of the last window: an update does not write them.
        started = b.op("Greater", done, b.const(0, _INT64))
        count = b.op("Add", done, b.const(1, _INT64))
        full = b.op("GreaterOrEqual", count, b.const(self.steps, _INT64), shape=())
        keep = b.cast(started, _FLOAT)
        divisor = b.const(float(self.steps))
        found = {}
        for name, grad in gradients().items():
            state = accumulator_name(name)
            old = b.op("Mul", step.states[state], keep)
            found[state] = b.op("Add", old, b.op("Div", grad, divisor))
        found[MICRO_STEPS] = b.op("Where", full, b.const(0, _INT64), count)
        return found, full

    def accumulated(self, step: StepContext, states: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """The mean gradients."""
        return {p.name: states[accumulator_name(p.name)] for p in step.trained}

    def remainder(self, step: StepContext) -> tuple[ir.Value, Callable[[], dict[str, ir.Value]]]:
        """The mean over the `k` micro-batches of an incomplete window: `a N / k`."""
        b, done = step.b, step.states[MICRO_STEPS]
        some = b.op("Greater", done, b.const(0, _INT64), name=FLUSHED, shape=())
        share = b.cast(done, _FLOAT)
        factor = b.op("Div", b.const(float(self.steps)), share)

        def means() -> dict[str, ir.Value]:
            sums = self.accumulated(step, step.states)
            return {name: b.op("Mul", value, factor) for name, value in sums.items()}

        return some, means

    def cleared(self, step: StepContext) -> dict[str, ir.Value]:
        """The states of an empty window."""
        return {MICRO_STEPS: step.b.const(0, _INT64)}
