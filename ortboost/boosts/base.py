r"""What a boost is: its settings, where it acts, and what it does there.

A boost is a frozen dataclass. Its fields are its settings; the pipeline of :mod:`ortboost.program` calls its
methods at the stages of a conversion, for all boosts in the order of :mod:`ortboost.boosts.table`:

    ==========================  ====================================================================
    ``opsets``                  before the model is normalized
    ``rewrite_network``         the network as the file has it, without a loss: training and inference
    ``rewrite_forward``         the training graph with its loss: training only
    ``rewrite_decomposed``      the same, with its layers taken apart and parameters as inputs
    ``watched``                 before a graph is differentiated: which inner values it needs
    ``rewrite_gradients``       each differentiated graph, *in reverse order*: what was put in last is
                                resolved first
    ``states``                  the state that the update keeps for it
    ``batch_means``             before the finite check: what the update needs of the batch besides gradients
    ``observe``                 with accumulation: each step that is not skipped
    ``transform_gradients``     within the update: un-scaled, finite gradients
    ``after_decay``             within the update: each gradient, after the weight decay
    ==========================  ====================================================================

Each does nothing unless a boost defines it. Three jobs are for one boost at most, and have classes
of their own in :mod:`ortboost.boosts.roles`: to scale the loss, to gather gradients over several steps, and
to split the update into several graphs.

The names follow Composer (an algorithm is an object with settings that acts at given events) and optax (a
gradient transformation is a pure function of gradients and a state).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.field_types import check_kinds, read_config
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.parameters import Parameter

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Boost", "GraphContext", "Stage", "State", "StepContext", "UpdateContext"]

Stage: TypeAlias = Literal["forward", "gradients", "update", "graphs"]
"""Where a boost mainly acts; for people who read the list. The order is that of the table."""


@dataclass(frozen=True)
class State:
    """A state tensor that a boost adds to the step.

    Args:
        name: Name of the graph input; begins with ``ortboost/``.
        initial: The first value, which decides shape and dtype.
        kind: ``counter``, or ``slot`` for what belongs to a parameter.
        role: What a slot holds.
        moves: When it gets a new value: with each ``update``; at each ``step`` that is not skipped, also within a
            window of accumulation; or ``never`` in this graph, which only reads it.
    """

    name: str
    initial: NDArray[np.generic]
    kind: Literal["counter", "slot"] = "counter"
    role: str = ""
    moves: Literal["update", "step", "never"] = "update"


@dataclass
class GraphContext:
    """A graph to rewrite, and what is known of it at this stage.

    Args:
        model: The graph, changed in place.
        output: Name of the output that the loss is taken of; ``None`` for the only or first one.
        frozen_norm: Says of a BatchNormalization whether it stays in inference mode.
        prediction: Name of the tensor that the loss reads. Empty in ``rewrite_network``, as all below.
        objective: Name of the loss that is differentiated.
        parameters: All float tensors by name.
        trained: What is trained; in ``rewrite_gradients`` what this graph trains.
        fp32_operators: Operators that the engine has only in float32, with the reason.
        memory: What a boost found at one stage and needs at a later one, by its name. Only the boost
            knows the type.
        number: Which of the step graphs it is, as the boost that splits the update numbers them.
        window: Steps of an update: 1 without accumulation.
    """

    model: ir.Model
    output: str | None = None
    frozen_norm: Callable[[ir.Node], bool] = lambda _: False
    prediction: str = ""
    objective: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    trained: Sequence[Parameter] = ()
    fp32_operators: Mapping[str, str] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    window: int = 1


@dataclass
class StepContext:
    """What a boost may read in a step, after the gradients.

    Args:
        b: Gets the nodes.
        trained: What this graph trains.
        states: State name to its value before the step: parameters, slots, what ``states`` declared;
            and the inputs called ``learning_rate``.
        memory: See :class:`GraphContext`.
        number: See :class:`GraphContext`.
        window: See :class:`GraphContext`.
        means: What the boosts made in ``batch_means``, of the batch of all processes.
        unscale: What un-scales a gradient by multiplication, float32 scalar; ``None`` for 1, and where
            each group of layers has a scale of its own.
    """

    b: Builder
    trained: Sequence[Parameter]
    states: Mapping[str, ir.Value]
    memory: Mapping[str, Any]
    number: int = 0
    window: int = 1
    unscale: ir.Value | None = None
    means: Mapping[str, ir.Value] = field(default_factory=dict)


@dataclass
class UpdateContext(StepContext):
    """What a boost may read and write within the update.

    Args:
        step: float64 scalar, the number of this update, 1 for the first.
        next_of: State name to its next value. A boost adds those of its own states that move; the
            others keep their value, and on a skipped step all do.
    """

    step: ir.Value = field(kw_only=True)
    next_of: dict[str, ir.Value] = field(kw_only=True)


class Boost:
    """Base of all boosts; see the module for when its methods are called.

    A subclass is a frozen dataclass with a ``name``. That its settings are of the right types is checked here;
    ranges it checks itself, in ``__post_init__``.

    Attributes:
        name: Its name in documents, on the command line and in the table: ``grad-freeze``.
        stage: Where it acts.
        card: Name of its card in ``docs/cards``; ``None`` if it has none.
        excludes: Name of a boost that it does not go together with, to the reason.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    card: ClassVar[str | None] = None
    excludes: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __post_init__(self) -> None:
        check_kinds(self, f"boost '{self.name}'")

    @property
    def enabled(self) -> bool:
        """Whether it does anything with these settings."""
        return True

    @property
    def needs_one_process(self) -> str | None:
        """Why it cannot train with several processes, as a sentence; ``None`` if it can."""
        if type(self).watched is Boost.watched or type(self).batch_means is not Boost.batch_means:
            return None
        return "It gathers inner values of a part of the batch, which processes do not share."

    def to_dict(self) -> dict[str, Any]:
        """Name and settings as JSON data."""
        return {"name": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`, with or without the name; settings may stay out.

        Raises:
            ConfigError: An unknown setting (the nearest is named), a missing one, or a wrong value.
        """
        settings = {key: value for key, value in data.items() if key != "name"}
        return read_config(cls, settings, f"boost '{cls.name}'")

    def opsets(self, opsets: range) -> range:
        """The opset versions that it can work with, of those that the engine can."""
        return opsets

    def rewrite_network(self, graph: GraphContext) -> Report | None:
        """Rewrite the network before it has a loss; what is done here is part of the exported model."""
        return None

    def rewrite_forward(self, graph: GraphContext) -> Report | None:
        """Rewrite the training graph, with its loss, before it is taken apart and differentiated."""
        return None

    def rewrite_decomposed(self, graph: GraphContext) -> Report | None:
        """Rewrite the training graph when its layers are taken apart, before the engine prepares it.

        Parameters and buffers are inputs of the graph now.
        """
        return None

    def watched(self, graph: GraphContext) -> tuple[Sequence[str], Sequence[str]]:
        """Inner values that the graph of gradients must keep, and those whose gradients are wanted.

        ``rewrite_gradients`` finds them among the outputs, the gradient of `v` as ``v_grad``.
        """
        return (), ()

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Rewrite a graph of gradients: its outputs are the loss and ``X_grad`` for each trained `X`."""

    def states(self, trained: Sequence[Parameter]) -> Sequence[State]:
        """The states that the update keeps for it.

        Args:
            trained: What the graph trains.
        """
        return ()

    def states_of(self, graph: GraphContext) -> Sequence[State]:
        """The same, for a boost whose states depend on what it found in the graph."""
        return self.states(graph.trained)

    def batch_means(self, step: StepContext) -> Mapping[str, ir.Value]:
        """Means over the batch that the update needs besides gradients, by a name of its own for each.

        They are made before the finite check, float32, of shapes that are known, and found again in ``means`` of the
        contexts that follow. With several processes each makes them of its part, and they are averaged
        with the same weights as the gradients of a mean loss: the samples, or the labels that count.
        """
        return {}

    def observe(self, step: StepContext) -> Mapping[str, ir.Value]:
        """The next values of its states that move at each step; with accumulation only."""
        return {}

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Parameter name to gradient: un-scaled, finite, gathered; before the weight decay."""
        return gradients

    def after_decay(
        self, update: UpdateContext, parameter: Parameter, gradient: ir.Value
    ) -> ir.Value:
        """A gradient after the weight decay, before the optimizer's own algebra."""
        return gradient
