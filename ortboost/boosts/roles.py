"""Jobs that one boost of a program can have: scale the loss, gather gradients, split the update, take the step."""

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
from ortboost.graph.parameters import Parameter

__all__ = [
    "FLUSHED",
    "MICRO_STEPS",
    "SCALE",
    "GradientGatherer",
    "LossScaler",
    "StepTaker",
    "UpdateSplitter",
]

SCALE: Final = "ortboost/loss_scale"
"""Name of the state with the scale."""
FLUSHED: Final = "flushed"
"""Name of the output of a flush that says whether there was anything to apply."""
MICRO_STEPS: Final = "ortboost/micro_steps"
"""Name of the state that counts the steps of a window."""


class LossScaler(Boost, ABC):
    """Multiplies the loss by a scale, and decides how the scale moves.

    The step un-scales the gradients, checks them, and calls :meth:`passed` or :meth:`skipped`.
    """

    stage: ClassVar[Stage] = "gradients"

    @property
    @abstractmethod
    def moves(self) -> bool:
        """Whether the scale depends on overflows, so that the finite check must be on."""

    @property
    def number(self) -> int:
        """Number of groups with a scale each; 0 for one scale."""
        return 0

    @abstractmethod
    def start(self) -> NDArray[np.float32]:
        """The first scale, float32 scalar or ``[number]``."""

    @abstractmethod
    def scale_loss(self, graph: GraphContext, scale: ir.Value) -> None:
        """Multiply the loss of a forward graph; ``graph.objective`` becomes the product.

        Args:
            graph: The forward graph; parameters are its inputs.
            scale: Its input with the scale.
        """

    def groups(self, graph: GraphContext) -> Mapping[str, int] | None:
        """Trained parameter to its group, from 1; ``None`` for one scale."""
        return None

    def incoming(self, graph: GraphContext) -> Mapping[tuple[int, int], Sequence[ir.Value]]:
        """A group and the one above it, to the gradients that come from there into it."""
        return {}

    def counters(self) -> dict[str, int]:
        """The int64 scalars that the rule keeps, and where they start."""
        return {}

    @abstractmethod
    def passed(
        self, b: Builder, states: Mapping[str, ir.Value], scale: ir.Value, groups: Sequence[int]
    ) -> dict[str, ir.Value]:
        """Next scale and counters after a step whose gradients are finite.

        Args:
            b: Gets the nodes.
            states: State name to its value before the step.
            scale: The scale of this step.
            groups: The groups that this graph trains.
        """

    @abstractmethod
    def skipped(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        scale: ir.Value,
        blamed: Mapping[int, ir.Value],
    ) -> dict[str, ir.Value]:
        """Next scale and counters after a step that overflowed; as :meth:`passed`.

        Args:
            b: Gets the nodes.
            states: State name to its value before the step.
            scale: The scale of this step.
            blamed: Group that this graph trains, to a bool scalar: it overflowed.
        """


class GradientGatherer(Boost, ABC):
    """Gathers the gradients of a window of steps for one update.

    Attributes:
        steps: Steps of a window. The host counts them, too, to know which update comes next; in the graph the
            count is the state :data:`MICRO_STEPS`, one of ``states``.
    """

    steps: int
    stage: ClassVar[Stage] = "gradients"

    @abstractmethod
    def gather(
        self, step: StepContext, gradients: Callable[[], Mapping[str, ir.Value]]
    ) -> tuple[dict[str, ir.Value], ir.Value]:
        """The next values of its states, and whether the window is full: bool scalar.

        Args:
            step: The graph.
            gradients: Makes the un-scaled gradients of the step.
        """

    @abstractmethod
    def gathered(self, step: StepContext, states: Mapping[str, ir.Value]) -> dict[str, ir.Value]:
        """Parameter name to the gradient of a full window, from the states of :meth:`gather`."""

    @abstractmethod
    def remainder(self, step: StepContext) -> tuple[ir.Value, Callable[[], dict[str, ir.Value]]]:
        """What a flush needs.

        Returns:
            Whether a window has begun, a bool scalar called :data:`FLUSHED`, and what makes the gradients of
            what there is.
        """

    @abstractmethod
    def cleared(self, step: StepContext) -> dict[str, ir.Value]:
        """Its states after an update with the remainder."""


class StepTaker(Boost, ABC):
    """Moves the parameters itself, after trials of how far, in place of the optimizer.

    The graph ``step`` leaves the parameters where they are; the host runs the graph ``trial`` at each of
    :attr:`rates` until one is accepted, then ``accept``.
    """

    @property
    @abstractmethod
    def rates(self) -> tuple[float, ...]:
        """The rates to try, in order."""

    @property
    def travels(self) -> str | None:
        """A tensor that is linear in the gradients and travels between processes in their place."""
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
        """The weights at a rate; and what must be added to the loss before, to be above that of the trial."""

    @abstractmethod
    def accept_states(self, trained: Sequence[Parameter]) -> tuple[str, ...]:
        """The states that accepting reads or writes, parameters aside."""

    @abstractmethod
    def accepted(
        self,
        b: Builder,
        states: Mapping[str, ir.Value],
        rate: ir.Value,
        trained: Sequence[Parameter],
    ) -> dict[str, ir.Value]:
        """The next states, parameters among them, with the rate that was accepted, 0 for none."""


class UpdateSplitter(Boost, ABC):
    """Makes several graphs of a step, each of which trains a part of the parameters."""

    stage: ClassVar[Stage] = "graphs"
    separate_state: bool

    @abstractmethod
    def split(self, graph: GraphContext) -> tuple[Sequence[Sequence[str]], Report]:
        """The names that each graph trains; the first graph is the one without a number."""

    @abstractmethod
    def schedule(self) -> NDArray[np.int64]:
        """The graph of each update; after the last one it starts again."""
