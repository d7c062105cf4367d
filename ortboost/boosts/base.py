r"""The base class of boosts, and the contexts that their methods receive.

A boost is a frozen dataclass whose fields are its settings. The pipeline of :mod:`ortboost.program`
calls its methods at the stages of a conversion, for all boosts in the order of
:mod:`ortboost.boosts.table`:

    ==========================  ====================================================================
    ``opsets``                  before the model is normalized
    ``rewrite_network``         the network of the file, without a loss: training and inference
    ``rewrite_forward``         the training graph with its loss: training only
    ``rewrite_decomposed``      the same, with layers decomposed and parameters as inputs
    ``watched``                 before a graph is differentiated: the intermediate values it needs
    ``rewrite_gradients``       each differentiated graph, *in reverse order*: the last insertion is
                                resolved first
    ``states``                  the state that the update keeps for it
    ``batch_means``             before the finite check: batch statistics that the update needs
    ``observe``                 with accumulation: each step that is not skipped
    ``partial_sums``            before the branches of the update: what processes compute in parts
    ``transform_gradients``     within the update: unscaled, finite gradients
    ``after_decay``             within the update: each gradient, after the weight decay
    ``after_update``            within the update: after the optimizer
    ``evaluated``               the evaluation graph: states that it reads in place of parameters
    ==========================  ====================================================================

By default each does nothing. Some roles can be taken by one boost at most, and have their own base
classes in :mod:`ortboost.boosts.roles`: scaling the loss, accumulating gradients over several
steps, replacing the optimizer by a line search, and splitting the update into several graphs.

The design follows Composer (an algorithm is an object with settings that acts at given events) and
optax (a gradient transformation is a pure function of gradients and a state).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.arguments import Configuration
from ortboost.core.field_types import check_kinds, read_config
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.weights.parameters import Parameter

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Boost",
    "GraphContext",
    "Key",
    "Memory",
    "Stage",
    "State",
    "StepContext",
    "UpdateContext",
]

_T = TypeVar("_T")

Stage: TypeAlias = Literal["forward", "gradients", "update", "graphs"]
"""Where a boost mainly acts; informative only. The order is that of the table."""


@dataclass(frozen=True)
class State:
    """A state tensor that a boost adds to the step.

    Args:
        name: Name of the graph input; begins with ``ortboost/``.
        initial: The initial value, which determines shape and dtype.
        kind: ``counter``, or ``slot`` for state of a parameter.
        role: What a slot contains.
        changes_at: When it gets a new value: at each ``update``; with accumulation, at each
            ``step`` that is not skipped (``observe``); or ``never`` in this graph, which only reads
            it.
        sharded: Whether each of several processes holds only some of its rows; it must never
            change, and the graph must work for any number of rows.
    """

    name: str
    initial: NDArray[np.generic]
    kind: Literal["counter", "slot"] = "counter"
    role: str = ""
    changes_at: Literal["update", "step", "never"] = "update"
    sharded: bool = False


@dataclass(frozen=True, eq=False)
class Key(Generic[_T]):
    """A key of :class:`Memory`, with the type of its value; a constant of the boost's module.

    Args:
        name: For error messages and the debugger.
    """

    name: str


class Memory:
    """What boosts pass from one stage of a conversion to a later one.

    Example:
        >>> AXES = Key[dict[str, int]]("axes")
        >>> memory = Memory()
        >>> memory[AXES] = {"fc.weight": 1}
        >>> memory[AXES]["fc.weight"]
        1
    """

    def __init__(self) -> None:
        self._values: dict[Key[Any], Any] = {}

    def __getitem__(self, key: Key[_T]) -> _T:
        value: _T = self._values[key]
        return value

    def __setitem__(self, key: Key[_T], value: _T) -> None:
        self._values[key] = value

    def copy(self) -> Memory:
        """A memory with the same values, for one of several graphs."""
        other = Memory()
        other._values.update(self._values)
        return other


@dataclass
class GraphContext:
    """A graph to rewrite, and the information available at this stage.

    Args:
        model: The graph, modified in place.
        output: Name of the output that the loss is computed from; ``None`` for the only or first
            one.
        frozen_norm: In ``rewrite_network``, whether a BatchNormalization stays in inference mode.
        new_weights: In ``rewrite_network``, names of weights that the file does not have: those of
            a new head. Weights that boosts add there are found without it.
        prediction: Name of the tensor that the loss reads. This and all fields below are empty in
            ``rewrite_network``.
        objective: Name of the loss to differentiate.
        parameters: All float tensors by name.
        trained: The trained parameters; in ``rewrite_gradients`` those that this graph trains.
        fp32_operators: Operators that the engine supports only in float32, with the reason.
        memory: What boosts pass from one stage to a later one.
        number: Index of the step graph, as numbered by the boost that splits the update.
        window: Steps per update: 1 without accumulation.
        values: Initial values of parameters and buffers by name; from ``rewrite_gradients`` on.
        rows: Name of a table with a sparse gradient to the name of the tensor with the numbers of
            the rows that the batch reads, int64 ``[rows]``, each once. In ``rewrite_gradients``,
            the gradient of the table is ``[rows, ...]``.
    """

    model: ir.Model
    output: str | None = None
    frozen_norm: Callable[[ir.Node], bool] = lambda _: False
    new_weights: Collection[str] = ()
    prediction: str = ""
    objective: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    trained: Sequence[Parameter] = ()
    fp32_operators: Mapping[str, str] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    number: int = 0
    window: int = 1
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows: dict[str, str] = field(default_factory=dict)


@dataclass
class StepContext:
    """What a boost may read in a step, once the gradients are computed.

    Args:
        b: Builder for new nodes.
        trained: The parameters that this graph trains.
        states: State name to its value before the step: parameters, slots, the states declared by
            ``states``, and the learning-rate inputs.
        memory: See :class:`GraphContext`.
        number: See :class:`GraphContext`.
        window: See :class:`GraphContext`.
        batch_means: Results of the method ``batch_means``, over the batch of all processes.
        sums: Results of the method ``partial_sums``, summed over all processes; only in the update.
        unscale: Factor that unscales a gradient, float32 scalar; ``None`` for 1, and if each group
            of layers has its own scale.
    """

    b: Builder
    trained: Sequence[Parameter]
    states: Mapping[str, ir.Value]
    memory: Memory
    number: int = 0
    window: int = 1
    unscale: ir.Value | None = None
    batch_means: Mapping[str, ir.Value] = field(default_factory=dict)
    sums: Mapping[str, ir.Value] = field(default_factory=dict)


@dataclass
class UpdateContext(StepContext):
    """What a boost may read and write within the update.

    Args:
        step: Number of this update, from 1; float64 scalar.
        next_of: State name to its next value. A boost adds those of its states that change; the
            others keep their value, as all do on a skipped step.
    """

    step: ir.Value = field(kw_only=True)
    next_of: dict[str, ir.Value] = field(kw_only=True)


class Boost(Configuration):
    """Base class of all boosts; the module docstring says when the methods are called.

    A subclass is a frozen dataclass with a ``name``. This class checks the types of its settings;
    the subclass checks their ranges in ``__post_init__``.

    Attributes:
        name: Its name in configurations, on the command line and in the table: ``grad-freeze``.
        stage: Where it acts.
        card: Name of its card in ``docs/cards``; ``None`` if it has none.
        excludes: Names of boosts that it cannot be combined with, and the reasons.
        freezes_network: Whether the weights of the network are frozen unless the user selects them:
            only new ones (:attr:`GraphContext.new_weights`) are trained.
        row_wise: Whether its changes of gradients are also right for the gradient of the distinct
            rows that a batch reads of a table, ``[rows, ...]``; see
            :mod:`ortboost.boosts.sparse_embedding`.

    Example:
        >>> from ortboost.boosts import Clip
        >>> isinstance(Clip("global-norm", 1.0), Boost)  # docs/own_boost.md shows how to write one
        True
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    card: ClassVar[str | None] = None
    excludes: ClassVar[Mapping[str, str]] = {}
    freezes_network: ClassVar[bool] = False
    row_wise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_kinds(self, f"boost '{self.name}'")

    @property
    def enabled(self) -> bool:
        """Whether it has any effect with these settings."""
        return True

    @property
    def needs_one_process(self) -> str | None:
        """Why it cannot train with several processes, as a sentence; ``None`` if it can."""
        if type(self).watched is Boost.watched or type(self).batch_means is not Boost.batch_means:
            return None
        return "It uses intermediate values of the local batch, which processes do not share."

    def misfit(self, optimizer: object, others: Sequence[Boost]) -> str | None:
        """Why it cannot be used with an optimizer, or with other boosts; ``None`` if it can.

        For what :attr:`excludes` does not name, such as boosts of other packages. The reason
        follows a colon in the error: no capital, no full stop.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Name and settings as JSON data."""
        return {"name": self.name, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`, with or without the name; settings may be omitted.

        Raises:
            ConfigError: A setting is unknown (the nearest is suggested), missing, or invalid.
        """
        settings = {key: value for key, value in data.items() if key != "name"}
        return read_config(cls, settings, f"boost '{cls.name}'")

    def opsets(self, opsets: range) -> range:
        """The opset versions that it supports, among those of the engine."""
        return opsets

    def rewrite_network(self, graph: GraphContext) -> Report | None:
        """Rewrite the network before the loss is added; exported models include these changes."""
        return None

    def rewrite_forward(self, graph: GraphContext) -> Report | None:
        """Rewrite the training graph with its loss, before decomposition and differentiation."""
        return None

    def rewrite_decomposed(self, graph: GraphContext) -> Report | None:
        """Rewrite the training graph after layers are decomposed, before the engine prepares it.

        Parameters and buffers are inputs of the graph at this stage.
        """
        return None

    def watched(self, graph: GraphContext) -> tuple[Sequence[str], Sequence[str]]:
        """Intermediate values to keep in the gradient graph, and those whose gradients are needed.

        They are outputs of the graph in ``rewrite_gradients``, the gradient of `v` as ``v_grad``.
        """
        return (), ()

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Rewrite a gradient graph; it outputs the loss and ``X_grad`` for each trained `X`."""

    def states(self, trained: Sequence[Parameter]) -> Sequence[State]:
        """The states that the update keeps for this boost.

        Args:
            trained: The parameters that the graph trains.
        """
        return ()

    def states_of(self, graph: GraphContext) -> Sequence[State]:
        """Like :meth:`states`, for a boost whose states depend on the graph."""
        return self.states(graph.trained)

    def batch_means(self, step: StepContext) -> Mapping[str, ir.Value]:
        """Means over the batch that the update needs besides gradients, by unique names.

        They are float32 of static shape, computed before the finite check, and available as
        ``batch_means`` of the later contexts. With several processes each computes them on its
        part of the batch, and they are averaged with the weights of the gradients of a mean loss:
        the number of samples, or of the labels that count.
        """
        return {}

    def observe(self, step: StepContext) -> Mapping[str, ir.Value]:
        """The next values of its states that change at each step; only with accumulation."""
        return {}

    def partial_sums(
        self, update: UpdateContext, applies: ir.Value | None
    ) -> Mapping[str, ir.Value]:
        """Tensors that the update needs, as sums of parts that the processes compute.

        They are float32 of static shape, by unique names, and available as ``sums`` of the update.
        The state :data:`~ortboost.boosts.roles.PART` says which part a process computes. The nodes
        run before all branches, in every step: those that cost much belong in an ``If``.

        Args:
            update: The context of the update. Next values of states can be set already.
            applies: bool scalar, whether there will be an update; ``None`` if there always is.
        """
        return {}

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Transform the unscaled, finite, accumulated gradients before the weight decay."""
        return gradients

    def after_decay(
        self, update: UpdateContext, parameter: Parameter, gradient: ir.Value
    ) -> ir.Value:
        """Transform a gradient after the weight decay, before the optimizer's algebra."""
        return gradient

    def after_update(self, update: UpdateContext) -> None:
        """Set the next values of its states from those of parameters, in ``update.next_of``."""

    def evaluated(self, trained: Sequence[Parameter]) -> Mapping[str, str]:
        """Parameter to the state that validation, evaluation and export use in its place.

        The state has the shape and type of the parameter, the kind ``slot``, and the name
        ``ortboost/slot/WORD/PARAMETER``, from which an export restores the parameter's name.
        """
        return {}
