"""The configuration of a program: all settings that determine the step graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.base import Boost
from ortboost.boosts.clip import ClipConfig
from ortboost.boosts.loss_scale import scale_from_dict
from ortboost.boosts.roles import GradientAccumulator, LineSearch, LossScaler, UpdateSplitter
from ortboost.boosts.table import boost_from_dict
from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, require_known
from ortboost.core.field_types import Range, check_kinds, read_config, write_config
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.graph.weights.parameters import Parameter
from ortboost.optimizers import Momentum, Optimizer
from ortboost.program.former_fields import (
    FORMER,
    former_from_dict,
    former_to_dict,
    join_boosts,
    with_former_fields,
)
from ortboost.program.names import STEP_GRAPH
from ortboost.transforms.attach_loss import LossConfig

if TYPE_CHECKING:
    from ortboost.boosts.freeze_schedule import FreezeConfig
    from ortboost.boosts.grad_centralization import CentralizeConfig
    from ortboost.core.loss_scale import DynamicScaleConfig, ScaleConfig
    from ortboost.transforms.precision import PrecisionConfig

__all__ = [
    "ClipConfig",
    "DecayFilter",
    "ParameterGroup",
    "ProgramConfig",
    "decays",
    "scale_from_dict",
    "step_plan",
]

DecayFilter: TypeAlias = Literal["no-norm", "weights", "all"]
_TINY, _HUGE = 1e-37, 1e37  # they and their reciprocals fit into float32
_Decay: TypeAlias = Annotated[float, Range(0, below=_HUGE)]


@dataclass(frozen=True)
class ParameterGroup(Configuration):
    """Parameters with a separate learning rate or weight decay.

    Args:
        name: Name of the group, part of its input ``learning_rate/<name>``.
        patterns: Shell-style patterns of parameter names; the first group that matches wins.
        learning_rate: As that of the configuration; ``None`` for the common rate.
        weight_decay: Coefficient for these parameters, regardless of their role; ``None`` for the
            common coefficient and filter.

    Example:
        >>> head = ParameterGroup("head", ("fc*",), learning_rate="cosine:0.1", weight_decay=0.0)
        >>> ProgramConfig(learning_rate="0.01", groups=(head,)).groups[0].name
        'head'
    """

    name: str
    patterns: tuple[str, ...]
    learning_rate: str | float | None = None
    weight_decay: _Decay | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "parameter group")
        if not self.name or "/" in self.name:
            raise ConfigError(
                f"'{self.name}' cannot name a parameter group.",
                where="parameter group",
                fix="Use a short name without '/', for example head.",
            )


@with_former_fields
@dataclass(frozen=True)
class ProgramConfig:
    """The configuration of the conversion from a model to a training program.

    ``less_bn``, ``full_norm_head``, ``centralize``, ``precision``, ``loss_scale``, ``accumulate``,
    ``clip`` and ``grad_freeze`` are the former names of boosts: given as keywords, they replace the
    corresponding boost, and they can be read, see :mod:`ortboost.program.former_fields`.

    Args:
        boosts: The boosts, in any order; they are stored in the order in which they act. If there
            is no loss scale, :class:`~ortboost.boosts.loss_scale.LossScale` is added.
        loss: The loss, and the output that it is computed from.
        inputs: Lengths of dimensions, fixed values and batch axes of the inputs.
        optimizer: The update rule.
        learning_rate: Default for training: a number, or a schedule as text; see
            :mod:`ortboost.training.schedules`.
        weight_decay: Coefficient, 0 for none.
        decay: The parameters with weight decay: ``no-norm`` for all except the scale and shift of
            normalizations (like MindSpore's optimizers with a flat parameter list), ``weights`` to
            exclude biases too, ``all``.
        groups: Parameter groups.
        check_finite: Skip the update if a gradient is not finite. Otherwise the update is always
            applied.
        gate_buffers: In a skipped step, keep the running statistics too. MindSpore and PyTorch
            update them.
        gradient_divisor: Gradients are divided by this after unscaling (the ``loss_scale`` argument
            of MindSpore's optimizers).
        adapt: Patterns of the parameters that LARS adapts; ``None`` for those of role ``weight``.
        parameters: Name of a float tensor to whether it is trained; no other tensor is trained. If
            not given, parameters are inferred, see
            :func:`ortboost.graph.weights.parameters.find_parameters`.
        trainable: Patterns of names, in the file or in torch; if given, only matching parameters
            are trained.
        freeze: Such patterns of parameters that are not trained.
        padding_idx: Name of an embedding table to the row of its padding token, which lookups do
            not train (torch's ``padding_idx``); ``None`` to infer it from the file, ``{}`` for
            none.
        new_head: Number of outputs of a new last layer, or ``None``.
        frozen_norm: Patterns of BatchNormalization nodes (or of their parameters) that stay in
            inference mode.
        running_variance: ``unbiased`` as PyTorch and MindSpore, or ``onnx`` (biased).
        metrics: Metrics computed in the step, ``accuracy`` for sparse cross entropy.
        engine: The autodiff engine, ``auto`` for the first one that supports the model.
        seed: Seed of a new head.

    Raises:
        ConfigError: A value out of range.

    Example:
        >>> from ortboost.boosts import GradAccumulation, LessBN
        >>> config = ProgramConfig(boosts=(GradAccumulation(4), LessBN()), weight_decay=1e-4)
        >>> [boost.name for boost in config.boosts]  # in the order in which they act
        ['less-bn', 'loss-scale', 'grad-accumulation']
    """

    loss: LossConfig = field(default_factory=LossConfig)
    inputs: InputConfig = field(default_factory=InputConfig)
    optimizer: Optimizer = field(default_factory=Momentum)
    learning_rate: str | float = "0.01"
    weight_decay: _Decay = 0.0
    decay: DecayFilter = "no-norm"
    groups: tuple[ParameterGroup, ...] = ()
    check_finite: bool = True
    gate_buffers: bool = True
    gradient_divisor: Annotated[float, Range(above=_TINY, below=_HUGE)] = 1.0
    adapt: tuple[str, ...] | None = None
    parameters: Mapping[str, bool] | None = None
    trainable: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    padding_idx: Mapping[str, Annotated[int, Range(0)]] | None = None
    new_head: int | None = None
    frozen_norm: tuple[str, ...] = ()
    running_variance: Literal["unbiased", "onnx"] = "unbiased"
    metrics: tuple[Literal["accuracy"], ...] = ()
    engine: str = "auto"
    seed: Annotated[int, Range(0)] = 0
    boosts: tuple[Boost, ...] = ()
    if TYPE_CHECKING:  # the former names of boosts
        less_bn: bool = False
        full_norm_head: bool = False
        centralize: CentralizeConfig | None = None
        precision: PrecisionConfig = PrecisionConfig()
        loss_scale: ScaleConfig = DynamicScaleConfig()
        accumulate: int = 1
        clip: ClipConfig | None = None
        grad_freeze: FreezeConfig | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "configuration")
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"Two parameter groups have the name '{name}'.",
                    where="groups",
                    fix="Give each group its own name.",
                )
        if self.scaler is not None and self.scaler.is_dynamic and not self.check_finite:
            raise ConfigError(
                "A loss scale that changes requires the finite check.",
                where="check_finite",
                fix="Keep check_finite on, or use a fixed scale.",
            )
        for boost in self.enabled_boosts:
            others = [other for other in self.enabled_boosts if other is not boost]
            misfit = boost.misfit(self.optimizer, others)
            if misfit is not None:
                raise ConfigError(
                    f"The boost '{boost.name}' cannot be used here: {misfit}.",
                    where=f"boost '{boost.name}'",
                    fix=f"Leave out {boost.name}, or the other.",
                )

        search = self.line_search
        if search is not None and (self.gradient_divisor != 1 or self.loss.reduction != "mean"):
            raise ConfigError(
                f"The boost '{search.name}' requires the gradient of the mean loss.",
                where=f"gradient_divisor = {self.gradient_divisor}, reduction "
                f"'{self.loss.reduction}'",
                fix="Use a divisor of 1 and the reduction 'mean'.",
            )

    @property
    def enabled_boosts(self) -> tuple[Boost, ...]:
        """The boosts that have an effect, in the order in which they act."""
        return tuple(boost for boost in self.boosts if boost.enabled)

    @property
    def selects(self) -> bool:
        """Whether it says what is trained: by patterns, by a list, or by a boost that freezes."""
        freezing = any(boost.freezes_network for boost in self.enabled_boosts)
        return freezing or bool(self.trainable) or self.parameters is not None

    @property
    def scaler(self) -> LossScaler | None:
        """The boost that scales the loss."""
        return next((b for b in self.enabled_boosts if isinstance(b, LossScaler)), None)

    @property
    def accumulator(self) -> GradientAccumulator | None:
        """The boost that accumulates gradients over several steps."""
        return next((b for b in self.enabled_boosts if isinstance(b, GradientAccumulator)), None)

    @property
    def splitter(self) -> UpdateSplitter | None:
        """The boost that splits the update into several graphs."""
        return next((b for b in self.enabled_boosts if isinstance(b, UpdateSplitter)), None)

    @property
    def line_search(self) -> LineSearch | None:
        """The boost that takes the step in place of the optimizer."""
        return next((b for b in self.enabled_boosts if isinstance(b, LineSearch)), None)

    def with_boosts(self, *boosts: Boost) -> ProgramConfig:
        """A copy with these boosts; each replaces the one of the same name, or the loss scale.

        Example:
            >>> from ortboost.boosts import GradAccumulation, GroupLossScale
            >>> config = ProgramConfig().with_boosts(GroupLossScale(), GradAccumulation(2))
            >>> [boost.name for boost in config.boosts]
            ['group-loss-scale', 'grad-accumulation']
        """
        names = {boost.name for boost in boosts}
        # Every configuration has a loss scale, and two exclude each other: a new one replaces it.
        scaled = any(isinstance(boost, LossScaler) for boost in boosts)
        kept = [
            boost
            for boost in self.boosts
            if boost.name not in names and not (scaled and isinstance(boost, LossScaler))
        ]
        return dataclasses.replace(self, boosts=(*kept, *boosts))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, written into the manifest."""
        items = [item.name for item in dataclasses.fields(self) if item.name != "boosts"]
        data = {name: write_config(getattr(self, name)) for name in items}
        # Unknown to older versions.
        if self.padding_idx is None:
            del data["padding_idx"]
        for name in ("label_smoothing", "from_logits", "delta"):
            if data["loss"][name] is None:
                del data["loss"][name]
        return data | former_to_dict(self.boosts)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProgramConfig:
        """Rebuild from :meth:`to_dict`; absent keys keep their defaults.

        Raises:
            ConfigError: An unknown key (the nearest one is suggested), or a value of the wrong
                type.
        """
        former = former_from_dict(data)
        plain = {key: value for key, value in data.items() if key not in former}
        names = [*(item.name for item in dataclasses.fields(cls)), *FORMER]
        for key in plain:
            require_known(key, names, f"Unknown key '{key}'.", "configuration", ConfigError)
        boosts = plain.get("boosts", ())
        if isinstance(boosts, (list, tuple)):
            boosts = tuple(map(boost_from_dict, boosts))
        return read_config(cls, {**plain, "boosts": join_boosts(boosts, former)})


def decays(parameter: Parameter, decay: DecayFilter) -> bool:
    """Whether the common weight decay applies to a parameter."""
    if decay == "all":
        return True
    if decay == "weights":
        return parameter.role == "weight"
    return parameter.role not in ("norm_scale", "norm_shift")


def step_plan(config: ProgramConfig, graphs: Collection[str]) -> NDArray[np.int64]:
    """The index of the step graph for each update, int64 ``[period]``; the plan repeats.

    It is indexed by the number of applied updates: a resumed run continues with the same groups,
    and an overflow retries the same group. ``graphs`` are the names of the graphs of the program.

    Example:
        >>> step_plan(ProgramConfig(), ["step"])
        array([0])
    """
    splitter = config.splitter
    steps = [name for name in graphs if name.partition(".")[0] == STEP_GRAPH]
    return np.zeros(1, np.int64) if splitter is None or len(steps) < 2 else splitter.schedule()
