"""Roles of boosts: loss scaling, accumulation, line search, splitting of the update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import Boost, GraphContext, Stage, StepContext
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.weights.parameters import Parameter

__all__ = [
    "BOUNDARY",
    "EXCHANGED",
    "EXCHANGED_GRADIENT",
    "EXCHANGE_POINT",
    "FLUSHED",
    "MICRO_STEPS",
    "PART",
    "SCALE",
    "GradientAccumulator",
    "LineSearch",
    "LossScaler",
    "UpdateSplitter",
]

SCALE: Final = "ortboost/loss_scale"
"""Name of the state with the scale."""
FLUSHED: Final = "flushed"
"""Name of the output of a flush: whether there was anything to apply."""
BOUNDARY: Final = "ortboost/boundary"
"""Prefix of the values of a forward graph that pass from one loss scale to another."""
EXCHANGE_POINT: Final = "ortboost/to_exchange/"
"""Prefix of the values of a forward graph that several processes will sum."""
EXCHANGED: Final = "ortboost/exchange/"
"""Prefix of the values that several processes sum within a step."""
EXCHANGED_GRADIENT: Final = f"{EXCHANGED}gradient/"
"""Prefix of those among them that are gradients."""
MICRO_STEPS: Final = "ortboost/micro_steps"
"""Name of the state that counts the steps in a window."""
PART: Final = "ortboost/part"
"""Name of the state with the rank of a process and the number of processes, int64 ``[2]``.

In files it is ``[0, 1]``; each of several processes holds its own.
"""


class LossScaler(Boost, ABC):
    """Multiplies the loss by a scale, and decides how the scale changes.

    The step unscales the gradients, checks them, and uses :meth:`after_finite_step` or
    :meth:`after_overflow`.
    """

    stage: ClassVar[Stage] = "gradients"

    @property
    @abstractmethod
    def is_dynamic(self) -> bool:
        """Whether the scale depends on overflows, which requires the finite check."""

    @property
    def number(self) -> int:
        """Number of groups with separate scales; 0 for a single scale."""
        return 0

    @abstractmethod
    def start(self) -> NDArray[np.float32]:
        """The initial scale, float32 scalar or ``[number]``."""

    @abstractmethod
    def scale_loss(self, graph: GraphContext, scale: ir.Value) -> None:
        """Multiply the loss of a forward graph; ``graph.objective`` becomes the product.

        Args:
            graph: The forward graph; parameters are its inputs.
            scale: The graph input with the scale.
        """

    def groups(self, graph: GraphContext) -> Mapping[str, int] | None:
        """Name of a trained parameter to its group, from 1; ``None`` for a single scale."""
        return None

    def incoming(self, graph: GraphContext) -> Mapping[tuple[int, int], Sequence[ir.Value]]:
        """Map a group and one above it to the gradients that pass from the upper to the lower."""
        return {}

    def counters(self) -> dict[str, int]:
        """The int64 scalar states of the rule, and their initial values."""
        return {}

    @abstractmethod
    def after_finite_step(
        self, b: Builder, states: Mapping[str, ir.Value], scale: ir.Value, groups: Sequence[int]
    ) -> dict[str, ir.Value]:
        """The next scale and counters after a step with finite gradients.

        Args:
            b: Builder for new nodes.
            states: State name to its value before the step.
            scale: The scale of this step.
            groups: The groups that this graph trains.
        """

    @abstractmethod
    def after_overflow(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        scale: ir.Value,
        caused: Mapping[int, ir.Value],
    ) -> dict[str, ir.Value]:
        """The next scale and counters after a step that overflowed; see :meth:`after_finite_step`.

        Args:
            b: Builder for new nodes.
            states: State name to its value before the step.
            scale: The scale of this step.
            caused: Group that this graph trains, to a bool scalar: whether it caused the overflow.
        """


class GradientAccumulator(Boost, ABC):
    """Accumulates the gradients of a window of steps for one update.

    Attributes:
        steps: Steps per window. The host also counts them, to know which update comes next; in the
            graph the count is the state :data:`MICRO_STEPS`, one of ``states``.
    """

    steps: int
    stage: ClassVar[Stage] = "gradients"

    @abstractmethod
    def accumulate(
        self, step: StepContext, gradients: Callable[[], Mapping[str, ir.Value]]
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """The next values of its states, and a bool scalar: whether the window is full.

        Args:
            step: The step.
            gradients: Builds the unscaled gradients of the step.
        """

    @abstractmethod
    def accumulated(self, step: StepContext, states: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """The gradients of a full window by parameter, from the states of :meth:`accumulate`."""

    @abstractmethod
    def remainder(self, step: StepContext) -> tuple[ir.Value, Callable[[], dict[str, ir.Value]]]:
        """The graph parts of a flush, which applies an incomplete window.

        Returns:
            A bool scalar named :data:`FLUSHED`, whether a window has begun; and a function that
            builds the gradients of the incomplete window.
        """

    @abstractmethod
    def cleared(self, step: StepContext) -> dict[str, ir.Value]:
        """Its states after an update with the remainder of a window."""


class LineSearch(Boost, ABC):
    """Updates the parameters by a line search, in place of the optimizer.

    The graph ``step`` does not change the parameters; the host runs the graph ``trial`` at each of
    :attr:`rates` until one is accepted, then ``accept``.
    """

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """The rates to try, in order."""

    @property
    def exchanged(self) -> str | None:
        """Name of a tensor, linear in the gradients, that processes exchange in their place."""
        return None

    @abstractmethod
    def trial_states(self) -> tuple[str, ...]:
        """The states that a trial reads besides those of the forward pass."""

    @abstractmethod
    def trial_weights(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """The weights at a rate, and the term of the acceptance test.

        A trial is accepted if its loss is below the loss before the step plus this term.
        """

    @abstractmethod
    def accept_states(self, trained: Sequence[Parameter]) -> tuple[str, ...]:
        """The states that accepting reads or writes, other than parameters."""

    @abstractmethod
    def accepted(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> dict[str, ir.Value]:
        """The next states, including parameters, for the accepted rate; 0 if none was accepted."""


class UpdateSplitter(Boost, ABC):
    """Splits a step into several graphs, each of which trains a part of the parameters."""

    stage: ClassVar[Stage] = "graphs"
    separate_state: bool

    @abstractmethod
    def split(self, graph: GraphContext) -> tuple[Sequence[Sequence[str]], Report]:
        """The parameter names that each graph trains; the name of the first graph has no number."""

    @abstractmethod
    def schedule(self) -> NDArray[np.int64]:
        """The index of the graph of each update; the schedule then repeats."""
