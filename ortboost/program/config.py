"""The configuration of a program: everything that decides what the step graph looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_types import Range, check_kinds, read_config, write_config
from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    GroupedScaleConfig,
    ScaleConfig,
)
from ortboost.graph.input_config import InputConfig
from ortboost.graph.parameters import Parameter
from ortboost.optimizers import (
    Momentum,
    Optimizer,
)
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.precision import PrecisionConfig

__all__ = [
    "ClipConfig",
    "DecayFilter",
    "ParameterGroup",
    "ProgramConfig",
    "decays",
    "scale_from_dict",
    "scale_to_dict",
]

DecayFilter: TypeAlias = Literal["no-norm", "weights", "all"]
_METRICS = ("accuracy",)
_LONGEST: Final = 2**31  # micro-batches
_TINY, _HUGE = 1e-37, 1e37  # they and their reciprocals are of the range of float32


@dataclass(frozen=True)
class ClipConfig:
    """Gradient clipping, after un-scaling and before the optimizer.

    - ``value``: `g <- min(max(g, -c), c)` elementwise;
    - ``norm``: `g <- g min(1, c / (|g| + 1e-6))` for each tensor by itself;
    - ``global-norm``: the same with the norm of all gradients together
      (Pascanu et al., 2013; the 1e-6 is that of `torch.nn.utils.clip_grad_norm_`).

    Args:
        by: ``value``, ``norm`` or ``global-norm``.
        limit: The bound `c`, above 0.

    Raises:
        ConfigError: Unknown kind, or a limit that is not positive.
    """

    by: Literal["value", "norm", "global-norm"]
    limit: Annotated[float, Range(above=_TINY, below=_HUGE)]

    def __post_init__(self) -> None:
        check_kinds(self, "clip")


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with a learning rate or weight decay of their own.

    Args:
        name: Name of the group, part of its input ``learning_rate/<name>``.
        patterns: Shell-style patterns of parameter names; the first group that matches wins.
        learning_rate: Schedule as text, see :mod:`ortboost.training.schedules`; ``None`` for the
            rate of all others.
        weight_decay: Coefficient for exactly these parameters, whatever their role; ``None`` for
            that of all others with the common filter.
    """

    name: str
    patterns: tuple[str, ...]
    learning_rate: str | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "parameter group")
        if not self.name or "/" in self.name:
            raise ConfigError(
                f"'{self.name}' cannot name a parameter group.",
                where="parameter group",
                fix="Use a short name without '/', for example head.",
            )
        _check_decay(self.weight_decay, f"parameter group '{self.name}'")


@dataclass(frozen=True)
class ProgramConfig:
    """How a model becomes a training program.

    Args:
        loss: Which loss, over which output.
        inputs: Lengths of dimensions, fixed values and batch axes of the inputs.
        optimizer: The update rule.
        learning_rate: Schedule as text, the default at training; see
            :mod:`ortboost.training.schedules`.
        weight_decay: Coefficient, 0 for none.
        decay: Which parameters decay: ``no-norm`` all but the scale and shift of normalizations (as
            MindSpore's optimizers with a flat parameter list), ``weights`` neither biases, ``all``.
        groups: Parameter groups.
        loss_scale: Dynamic, fixed, or :data:`ortboost.core.loss_scale.NO_SCALE`.
        check_finite: Skip the update when a gradient is not finite. Without it a step updates
            whatever comes.
        gate_buffers: On a skipped step, running statistics keep their values too. MindSpore and
            PyTorch let them move.
        gradient_divisor: Gradients are divided by this after un-scaling (the ``loss_scale`` argument
            of MindSpore's optimizers).
        clip: Gradient clipping.
        accumulate: Micro-batches an update; the update is with the mean of their gradients.
        centralize: Gradient centralization, or ``None``.
        grad_freeze: Train a part of the network only at some updates, or ``None``.
        adapt: Patterns of the parameters that LARS adapts; ``None`` for those of role ``weight``.
        parameters: Names of float tensors and whether they are trained; no other tensor is. Without it the
            graph decides, see :func:`ortboost.graph.parameters.find_parameters`.
        trainable: Patterns; if any, only matching parameters are trained.
        freeze: Patterns of parameters that are not trained.
        new_head: Number of outputs of a fresh last layer, or ``None``.
        less_bn: Remove the normalizations that the blocks make redundant, see
            :mod:`ortboost.boosts.less_bn`.
        full_norm_head: Make the last layer a full-normalization head, see
            :mod:`ortboost.boosts.full_norm_head`.
        frozen_norm: Patterns of BatchNormalization nodes (or of their parameters) that stay in
            inference mode.
        precision: The number format in which the network computes; parameters stay in float32.
        running_variance: ``unbiased`` as PyTorch and MindSpore, or ``onnx`` (biased).
        metrics: Metrics computed in the step, ``accuracy`` for sparse cross entropy.
        engine: Engine of the gradients, ``auto`` for the first that can run.
        seed: Seed of a new head.

    Raises:
        ConfigError: A value out of range.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    inputs: InputConfig = field(default_factory=InputConfig)
    optimizer: Optimizer = field(default_factory=Momentum)
    learning_rate: str = "0.01"
    weight_decay: float = 0.0
    decay: DecayFilter = "no-norm"
    groups: tuple[ParameterGroup, ...] = ()
    loss_scale: ScaleConfig = field(default_factory=lambda: DynamicScaleConfig(init=2.0**16))
    check_finite: bool = True
    gate_buffers: bool = True
    gradient_divisor: float = 1.0
    clip: ClipConfig | None = None
    accumulate: int = 1
    centralize: CentralizeConfig | None = None
    grad_freeze: FreezeConfig | None = None
    adapt: tuple[str, ...] | None = None
    parameters: Mapping[str, bool] | None = None
    trainable: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    new_head: int | None = None
    less_bn: bool = False
    full_norm_head: bool = False
    frozen_norm: tuple[str, ...] = ()
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    running_variance: Literal["unbiased", "onnx"] = "unbiased"
    metrics: tuple[str, ...] = ()
    engine: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, str):
            raise ConfigError(
                f"The learning rate is {self.learning_rate!r}; it is written as a text.",
                where="learning_rate",
                fix=f"Write '{self.learning_rate}', or a schedule as 'cosine:0.05,warmup=100'.",
            )
        check_kinds(self, "configuration")
        _check_decay(self.weight_decay, "weight_decay")
        for metric in self.metrics:
            if metric not in _METRICS:
                raise ConfigError(
                    f"Unknown metric '{metric}'.", where="metrics", fix=nearest(metric, _METRICS)
                )
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    f"Two parameter groups are called '{name}'.",
                    where="groups",
                    fix="Give each group its own name.",
                )
        if not 1 <= self.accumulate < _LONGEST:
            raise ConfigError(
                f"accumulate = {self.accumulate} makes no sense.",
                where="accumulate",
                fix="Give the number of micro-batches of an update, 1 for no accumulation, "
                f"below {_LONGEST}.",
            )
        if not _TINY < self.gradient_divisor < _HUGE:
            raise ConfigError(
                f"gradient_divisor = {self.gradient_divisor} makes no sense.",
                where="gradient_divisor",
                fix="Give a number above 0; it and its reciprocal must be of the range of float32.",
            )
        moving = isinstance(self.loss_scale, (DynamicScaleConfig, GroupedScaleConfig))
        if moving and not self.check_finite:
            raise ConfigError(
                "A loss scale that moves needs the finite check.",
                where="check_finite",
                fix="Leave check_finite on, or use a fixed scale.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, written into the manifest."""
        return write_config(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProgramConfig:
        """Rebuild from :meth:`to_dict`; keys may stay out.

        Raises:
            ConfigError: Unknown keys; the nearest one is named. Or a value of another kind.
        """
        return read_config(cls, data)


def decays(parameter: Parameter, decay: DecayFilter) -> bool:
    """Whether the common weight decay applies to a parameter."""
    if decay == "all":
        return True
    if decay == "weights":
        return parameter.role == "weight"
    return parameter.role not in ("norm_scale", "norm_shift")


def _check_decay(value: float | None, where: str) -> None:
    if value is not None and not 0 <= value < _HUGE:
        raise ConfigError(
            f"A weight decay of {value} makes no sense.", where=where, fix="Give 0 or more."
        )


def scale_to_dict(scale: ScaleConfig) -> dict[str, Any]:
    """The loss scale as JSON data.

    Example:
        >>> scale_to_dict(DynamicScaleConfig(window=10))["kind"]
        'dynamic'
    """
    return write_config(scale)


def scale_from_dict(data: Mapping[str, Any]) -> ScaleConfig:
    """Rebuild from :func:`scale_to_dict`.

    Raises:
        ConfigError: Unknown kind or key; the nearest one is named.
    """
    scale: ScaleConfig = read_config(ScaleConfig, data, "loss_scale")  # type: ignore[arg-type]
    return scale
