r"""THOR: gradients preconditioned with the inverse Fisher matrix of each layer.

    F  ~  s A (x) G                           from a layer's inputs and output gradients
    u  =  G^-1  dL/dW  A^-1                   damped, in blocks; see ortboost.boosts.thor_factors
    u  <- u min(1, sqrt(k / (lr^2 sum(u dL/dW))))         with kl_clip = k, the sum over all layers
    u  <- u + wd w,   u <- u min(1, 1/|u|)    with clip
    v  <- mu v + u,   w <- w - lr v           the optimizer: Momentum for MindSpore's `nn.thor`

Factors and inverses are computed at every ``frequency``-th update, by a separate graph
(``step.onnx``); the updates in between use the stored inverses and cost little more than a plain
step (``step.1.onnx``). The number of applied updates selects the graph, so that a step that
overflows is retried with the same graph.

An inverse that is not accurate is discarded: its block keeps the previous inverse, initially the
identity, and is counted in the state ``ortboost/thor/kept_blocks``.

Each of several processes computes all inverses, or with ``distribute_inverses`` those of its share;
see :mod:`ortboost.boosts.thor_shares`.

Sources: see :mod:`ortboost.boosts.thor_factors`; MindSpore 2.10's `nn.thor` for the arguments;
Martens and Grosse, 2015, sections 5 and 6.3, for the running average and the correction `pi` of the
damping; Ba, Grosse and Martens, "Distributed second-order optimization using Kronecker-factored
approximations", ICLR 2017, for the bound on the change of the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.boosts.base import GraphContext, Key, Stage, State, StepContext, UpdateContext
from ortboost.boosts.roles import MICRO_STEPS, PART, UpdateSplitter
from ortboost.boosts.thor_factors import FactorMaker, precondition
from ortboost.boosts.thor_layers import Layer, find_layers
from ortboost.boosts.thor_refresh import KEPT, LAYERS, Refresh
from ortboost.boosts.thor_sides import Sides, cost_words, layer_cost, mean_name, state_name
from ortboost.boosts.thor_terms import TERMS, count_terms, loss_terms
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range
from ortboost.core.report import Report
from ortboost.graph.formulas import Term
from ortboost.graph.query import known_shape
from ortboost.graph.reach import values_by_name
from ortboost.graph.weights.parameters import Parameter

__all__ = ["Thor"]

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_Damping = Annotated[float, Range(above=0, below=1e30)]
LEARNING_RATE: Final = "learning_rate"
"""Name of the input with the learning rate."""
_IS_MEAN = Key[bool]("whether the loss is a mean")
_VALUES = Key[dict[str, ir.Value]]("watched values of the gradient graph")


@dataclass(frozen=True)
class Thor(UpdateSplitter):
    """THOR.

    Args:
        damping: Added to the spectrum of `F`; one value, or one per update, the last of which is
            used for all further updates.
        damping_decay: Factor that multiplies the damping at each update.
        frequency: Updates between computations of factors and inverses.
        mode: ``paper``, or ``mindspore`` for the factors that MindSpore computes on a GPU.
        batch_size: Number of terms that the loss is the mean of; ``None`` to count them. Required
            with ``mindspore``.
        block: Maximum rows of a diagonal block to invert; 0 to invert whole factors.
        factor_decay: Weight of the previous factors in a running average; 0 for no average.
        pi: Divide the damping between the two factors according to their mean eigenvalues.
        kl_clip: Bound on the change of the network's outputs by one update, as a KL divergence to
            second order; 0 for no bound. It limits the first updates, whose factors are poor
            estimates; 0.001 is usual.
        clip: Clip each update, including weight decay, to a norm of 1.
        distribute_inverses: Let each of several processes invert only some of the blocks, and send
            the inverses to the others. The results are the same.

    Raises:
        ConfigError: A value out of range; or ``mindspore`` without a batch size, or with a running
            average or ``pi``.

    Example:
        >>> Thor(frequency=3).schedule()
        array([0, 1, 1])
    """

    damping: _Damping | tuple[_Damping, ...] = 0.03
    damping_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    frequency: Annotated[int, Range(1, below=2**31)] = 100
    mode: Literal["paper", "mindspore"] = "paper"
    batch_size: Annotated[int, Range(1)] | None = None
    block: Annotated[int, Range(0)] = 128
    factor_decay: Annotated[float, Range(0, below=1)] = 0.0
    pi: bool = False
    kl_clip: Annotated[float, Range(0, below=1e30)] = 0.0
    clip: bool = False
    distribute_inverses: bool = False

    name: ClassVar[str] = "thor"
    stage: ClassVar[Stage] = "update"
    card: ClassVar[str] = "thor"
    separate_state: ClassVar[bool] = False  # type: ignore[misc]  # no setting here
    excludes: ClassVar[Mapping[str, str]] = {
        "grad-freeze": "parameters frozen at a second-order update would get no factors; both "
        "split the update",
        "group-loss-scale": "factors are unscaled with a single scale for all layers",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping == ():
            raise ConfigError(
                "The damping is empty.", where="boost 'thor', damping", fix="Give a value above 0."
            )
        if self.mode == "mindspore" and (self.batch_size is None or self.factor_decay or self.pi):
            raise ConfigError(
                "MindSpore's factors need the batch size, and support neither running averages nor "
                "pi.",
                where="boost 'thor', mode=mindspore",
                fix="Set batch_size, and leave factor_decay and pi out.",
            )

    @property
    def _sides(self) -> Sides:
        return Sides(self.mode, self.block)

    @property
    def _refresh(self) -> Refresh:
        return Refresh(
            self._sides,
            damping=self.damping,
            damping_decay=self.damping_decay,
            pi=self.pi,
            factor_decay=self.factor_decay,
            distribute_inverses=self.distribute_inverses,
        )

    # ---- graphs -------------------------------------------------------------------------------

    def split(self, graph: GraphContext) -> tuple[Sequence[Sequence[str]], Report]:
        """Two graphs with all parameters: the first computes factors, the second reuses them."""
        names = [parameter.name for parameter in graph.trained]
        report = Report("thor_graphs")
        if self.frequency == 1:
            return [names], report
        report.changed["step.onnx"] = f"factors and inverses, every {self.frequency}th update"
        report.changed["step.1.onnx"] = "the updates in between"
        return [names, names], report

    def schedule(self) -> NDArray[np.int64]:
        """The graph of each update in a cycle: the first refreshes the factors."""
        return (np.arange(self.frequency) > 0).astype(np.int64)

    def rewrite_forward(self, graph: GraphContext) -> Report:
        """Find the layers, and count the terms of the loss."""
        layers, plain = find_layers(graph.model, graph.trained)
        for layer in [*layers] if self.mode == "mindspore" else ():  # a copy: `layers` shrinks
            if isinstance(layer, Layer) and layer.kind == "conv" and not _known_to_mindspore(layer):
                layers.remove(layer)
                plain[layer.weight] = "MindSpore has factors only for plain 2-d convolutions"
        graph.memory[LAYERS] = layers
        report = Report("thor", kept=plain)
        values = values_by_name(graph.model.graph)
        for layer in layers:
            # Tensors of a factor's size: inverse, running average, mean of a window.
            kept = 1 + bool(self.factor_decay) + (graph.window > 1)
            cost = layer_cost(layer, self._sides, kept, values.get(layer.output))
            report.changed[layer.weight] = cost_words(cost)
            report.table[layer.weight] = cost
        objective = values.get(graph.objective)
        if objective is not None and layers:
            found = loss_terms(objective)
            graph.memory[_IS_MEAN] = found.mean
            data = values.get(graph.prediction)
            # A scalar, or a tensor of unknown rank, has no axis that counts the samples.
            if data is None or not known_shape(data):
                data = graph.model.graph.inputs[0]
            report.notes.append(count_terms(graph.model, found, data, self.batch_size))
        return report

    def watched(self, graph: GraphContext) -> tuple[Sequence[str], Sequence[str]]:
        """The inputs and output gradients of all layers, in the second-order graph."""
        layers = graph.memory[LAYERS]
        # Graph 0 is of second order, see `split`; the other one only applies stored inverses.
        if graph.number or not layers:
            return (), ()
        seen = [layer.source for layer in layers if self._sides.of(layer)]
        outputs = [layer.output for layer in layers if self._sides.of(layer)]
        return [*dict.fromkeys([*seen, TERMS])], [*dict.fromkeys(outputs)]

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Store the watched values in the memory of the conversion."""
        seen, outputs = self.watched(graph)
        values = values_by_name(graph.model.graph)
        names = [*seen, *(f"{name}_grad" for name in outputs)]
        graph.memory[_VALUES] = {name: values[name] for name in names}

    # ---- states -------------------------------------------------------------------------------

    def states_of(self, graph: GraphContext) -> list[State]:
        """The inverses, and the factors of a running average or an accumulation window."""
        layers = graph.memory[LAYERS]
        if graph.window > 1 and self.mode == "mindspore":
            raise ConfigError(
                "MindSpore's factors are computed from a single batch.",
                where="boosts 'thor' with mode=mindspore and 'grad-accumulation'",
                fix="Use mode=paper, whose factors are averaged over the window.",
            )
        # Only the second-order graph, number 0, writes them.
        changes: Literal["update", "never"] = "never" if graph.number else "update"
        found = []
        for layer, side in self._sides.all(layers):
            shape = self._sides.shape(layer, side)
            # The identity, which stays where the first inverse is not accurate.
            unit = np.ones(shape)
            if len(shape) == 3 and side != "f":
                unit *= np.eye(shape[1])
            start = unit.astype(np.float32)
            name = state_name("inverse", side, layer.weight)
            found.append(State(name, start, "slot", "inverse", changes))
            if self.factor_decay:
                name = state_name("factor", side, layer.weight)
                found.append(State(name, np.zeros_like(start), "slot", "factor", changes))
            if graph.window > 1:
                name = state_name("window", side, layer.weight)
                often: Literal["step", "never"] = "never" if graph.number else "step"
                found.append(State(name, np.zeros_like(start), "slot", "factor", often))
        if found:
            found.append(State(KEPT, np.zeros((), np.int64), "slot", "kept blocks", changes))
        if found and self.distribute_inverses and not graph.number:
            found.append(State(PART, np.array([0, 1]), changes_at="never"))
        return found

    # ---- the update ---------------------------------------------------------------------------

    def observe(self, step: StepContext) -> dict[str, ir.Value]:
        """Update the running mean of the factors in an accumulation window."""
        if step.number:
            return {}
        b, found = step.b, {}
        done = Term(b, step.states[MICRO_STEPS])
        # mean <- mean + (new - mean) / count, restarted by the first micro-batch of a window
        first, count = done.call("Equal", 0), (done + 1).cast(_FLOAT)
        for (name, side), new in self._refresh.factors(step).items():
            state = state_name("window", side, name)
            old = Term(b, step.states[state])
            found[state] = first.where(new, old + (Term(b, new) - old) / count).value
        return found

    def partial_sums(self, update: UpdateContext, applies: ir.Value | None) -> dict[str, ir.Value]:
        """The inverses of this process, in the second-order graph, with ``distribute_inverses``."""
        if update.number or not (self.distribute_inverses and update.memory[LAYERS]):
            return {}
        return self._refresh.parts(update, applies)

    def transform_gradients(
        self, update: UpdateContext, gradients: Mapping[str, ir.Value]
    ) -> Mapping[str, ir.Value]:
        """Refresh the inverses in the second-order graph, and precondition the gradients."""
        layers = update.memory[LAYERS]
        states = {
            (layer.weight, side): update.states[state_name("inverse", side, layer.weight)]
            for layer, side in self._sides.all(layers)
        }
        # Fresh inverses take effect in the update that computes them.
        if not update.number and states:
            states = self._refresh.refreshed(update, states)
        b, steps = update.b, dict[str, ir.Value]()
        for layer in layers:
            name, gradient = layer.weight, gradients[layer.weight]
            if isinstance(layer, Layer):
                inverses = states[name, "a"], states[name, "g"]
                steps[name] = precondition(b, layer, gradient, *inverses, self._sides)
            elif self.mode == "paper":  # diagonal: the stored inverse is 1 / (f + sqrt(d))
                steps[name] = b.op("Mul", gradient, states[name, "f"])
            else:
                # MindSpore's f = (dL/dw)^2 / B is that of this step: nothing is stored.
                root = b.cast(self._refresh.root(update), _FLOAT)
                g = Term(b, gradient)
                steps[name] = (g / (g * g / float(self.batch_size or 1) + root)).value
        if self.kl_clip and steps:
            factor = self._trusted(update, gradients, steps)
            steps = {name: b.op("Mul", step, factor) for name, step in steps.items()}
        return {**gradients, **steps}

    def _trusted(
        self,
        update: UpdateContext,
        gradients: Mapping[str, ir.Value],
        steps: Mapping[str, ir.Value],
    ) -> ir.Value:
        """`min(1, sqrt(k / (lr^2 sum(u dL/dW))))`, with the default learning rate `lr`."""
        b = update.b
        products = [
            b.op("ReduceSum", b.op("Mul", step, gradients[name]), keepdims=0, shape=())
            for name, step in steps.items()
        ]
        total = b.combined("Sum", products)
        rate = Term(b, update.states[LEARNING_RATE])
        # No division by zero: without a change, the factor is 1.
        change = (rate * rate * total).call("Max", 1e-30)
        return (Term(b, b.const(self.kl_clip)) / change).call("Sqrt").call("Min", 1.0).value

    def after_decay(
        self, update: UpdateContext, parameter: Parameter, gradient: ir.Value
    ) -> ir.Value:
        """Clip each tensor separately after weight decay; MindSpore's ``enable_clip_grad``."""
        if not self.clip:
            return gradient
        b = update.b
        norm = b.op("Max", b.op("ReduceL2", gradient, keepdims=0, shape=()), b.const(1.0))
        return b.op("Div", gradient, norm)

    @property
    def needs_one_process(self) -> str | None:
        """Why these settings do not support several processes, or ``None``."""
        if self.mode == "mindspore":
            return "MindSpore's factors of a convolution are not means over the parts of a batch."
        if self.batch_size is not None:
            return "The batch_size of THOR is that of the whole batch; a process has only a part."
        return None

    def batch_means(self, step: StepContext) -> dict[str, ir.Value]:
        """The batch means that the factors are computed from, in the second-order graph."""
        if step.number or not step.memory[LAYERS]:
            return {}
        b = step.b
        values = step.memory[_VALUES]
        number = b.cast(values[TERMS], _FLOAT)
        mindspore = self.mode == "mindspore"
        terms = number if mindspore or step.memory[_IS_MEAN] else b.const(1.0)
        size = self.batch_size if mindspore else None
        maker = FactorMaker(b, values, step.unscale, terms, number, self._sides, size)
        found = {}
        for layer in step.memory[LAYERS]:
            for side, value in maker.of(layer).items() if self._sides.of(layer) else ():
                # `gain` and `share` are scalars.
                shape = self._sides.shape(layer, side) if side in "agf" else ()
                value.shape = ir.Shape(shape)
                found[mean_name(side, layer.weight)] = value
        return found


def _known_to_mindspore(layer: Layer) -> bool:
    """Whether a convolution is two-dimensional, without groups and dilation."""
    dilations = (layer.attributes or {}).get("dilations")
    dilated = dilations is not None and any(d != 1 for d in dilations.as_ints())
    return len(layer.kernel) == 2 and layer.groups == 1 and not dilated
