"""The configuration of a program: everything that decides what the step graph looks like."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.errors import ConfigError, nearest
from ortboost.core.field_types import check_kinds
from ortboost.core.loss_scale import (
    DynamicScaleConfig,
    FixedScaleConfig,
    GroupedScaleConfig,
    NoScaleConfig,
    ScaleConfig,
)
from ortboost.graph.input_config import InputConfig
from ortboost.graph.parameters import Parameter
from ortboost.optimizers import (
    Momentum,
    Optimizer,
    optimizer_from_dict,
    optimizer_to_dict,
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
_SCALES: Final[Mapping[str, type[Any]]] = {
    "dynamic": DynamicScaleConfig,
    "fixed": FixedScaleConfig,
    "grouped": GroupedScaleConfig,
    "off": NoScaleConfig,
}
_PLAIN: Final = {
    "inputs": "'dims': {'height': 640}",
    "loss": "'name': 'mse'",
    "optimizer": "'name': 'adamw', 'beta1': 0.9",
    "loss_scale": "'kind': 'fixed', 'scale': 1024",
    "clip": "'by': 'global-norm', 'limit': 1.0",
    "centralize": "'multiple_of': 1",
    "grad_freeze": "'freeze_p': 0.7",
    "precision": "'compute': 'fp16'",
}
_DECAY_FILTERS = ("no-norm", "weights", "all")
_CLIPS = ("value", "norm", "global-norm")
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
    limit: float

    def __post_init__(self) -> None:
        check_kinds(self, "clip")
        if self.by not in _CLIPS:
            raise ConfigError(
                f"Unknown clipping '{self.by}'.", where="clip", fix=nearest(self.by, _CLIPS)
            )
        if not _TINY < self.limit < _HUGE:
            raise ConfigError(
                f"A clipping limit of {self.limit} makes no sense.",
                where=f"clip {self.by}",
                fix="Give a number above 0.",
            )


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
        self._check_kinds()
        check_kinds(self, "configuration")
        _check_decay(self.weight_decay, "weight_decay")
        if self.decay not in _DECAY_FILTERS:
            raise ConfigError(
                f"Unknown decay filter '{self.decay}'.",
                where="decay",
                fix=nearest(self.decay, _DECAY_FILTERS),
            )
        if self.running_variance not in ("unbiased", "onnx"):
            raise ConfigError(
                f"Unknown running variance '{self.running_variance}'.",
                where="running_variance",
                fix=nearest(self.running_variance, ("unbiased", "onnx")),
            )
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

    def _check_kinds(self) -> None:
        """Names and numbers as the command line takes them are no objects."""
        for key, kind in _PLAIN.items():
            value = getattr(self, key)
            if isinstance(value, (str, int, float, Mapping)):
                raise ConfigError(
                    f"'{key}' is {value!r}, plain data.",
                    where=key,
                    fix=f"Build the configuration of plain data: "
                    f"ProgramConfig.from_dict({{'{key}': {{{kind}}}}}).",
                )
        if not isinstance(self.learning_rate, str):
            raise ConfigError(
                f"The learning rate is {self.learning_rate!r}; it is written as a text.",
                where="learning_rate",
                fix=f"Write '{self.learning_rate}', or a schedule as 'cosine:0.05,warmup=100'.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, written into the manifest."""
        data: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if item.name == "optimizer":
                value = optimizer_to_dict(value)
            elif item.name == "loss_scale":
                value = scale_to_dict(value)
            elif item.name == "inputs":
                value = value.to_dict()
            elif item.name == "parameters":
                value = None if value is None else dict(value)
            elif item.name == "groups":
                value = [dataclasses.asdict(group) for group in value]
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = dataclasses.asdict(value)
            data[item.name] = value
        for key in ("weight", "pos_weight"):
            value = data["loss"][key]
            data["loss"][key] = value.tolist() if hasattr(value, "tolist") else value
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProgramConfig:
        """Rebuild from :meth:`to_dict`; keys may stay out.

        Raises:
            ConfigError: Unknown keys; the nearest one is named. Or a value of another kind.
        """
        try:
            return cls._from_dict(data)
        except TypeError as error:  # a part that needs more keys, a number where a list belongs
            raise ConfigError(
                "The configuration has a value of another kind than is needed.",
                where=f"configuration: {error}",
                fix="Give every key that a part needs, each with a value of its kind.",
            ) from error

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any]) -> ProgramConfig:
        arguments = _known(cls, data, "configuration")
        if isinstance(arguments.get("loss"), Mapping):
            loss = _known(LossConfig, arguments["loss"], "loss")
            if loss.get("label_shape") is not None:
                loss["label_shape"] = tuple(loss["label_shape"])
            arguments["loss"] = LossConfig(**loss)
        if isinstance(arguments.get("inputs"), Mapping):
            arguments["inputs"] = InputConfig(**_known(InputConfig, arguments["inputs"], "inputs"))
        if isinstance(arguments.get("optimizer"), Mapping):
            arguments["optimizer"] = optimizer_from_dict(arguments["optimizer"])
        if isinstance(arguments.get("clip"), Mapping):
            arguments["clip"] = ClipConfig(**_known(ClipConfig, arguments["clip"], "clip"))
        if isinstance(arguments.get("centralize"), Mapping):
            found = _known(CentralizeConfig, arguments["centralize"], "centralize")
            arguments["centralize"] = CentralizeConfig(**_listed(found, "patterns"))
        if isinstance(arguments.get("precision"), Mapping):
            found = _known(PrecisionConfig, arguments["precision"], "precision")
            arguments["precision"] = PrecisionConfig(**_listed(found, "keep_fp32", "force_low"))
        if isinstance(arguments.get("grad_freeze"), Mapping):
            arguments["grad_freeze"] = FreezeConfig.from_dict(arguments["grad_freeze"])
        if isinstance(arguments.get("loss_scale"), Mapping):
            arguments["loss_scale"] = scale_from_dict(arguments["loss_scale"])
        if "groups" in arguments:
            arguments["groups"] = tuple(
                ParameterGroup(**_listed(_known(ParameterGroup, group, "groups"), "patterns"))
                for group in arguments["groups"]
            )
        return cls(**_listed(arguments, "trainable", "freeze", "frozen_norm", "metrics", "adapt"))


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


def _known(cls: Any, data: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = [item.name for item in dataclasses.fields(cls)]
    for key in data:
        if key not in names:
            raise ConfigError(f"Unknown key '{key}'.", where=where, fix=nearest(key, names))
    return dict(data)


def _listed(arguments: dict[str, Any], *keys: str) -> dict[str, Any]:
    """JSON lists as tuples; one text stays one, to be refused."""
    lists = {key: tuple(v) for key, v in arguments.items() if key in keys and isinstance(v, list)}
    return {**arguments, **lists}


def scale_to_dict(scale: ScaleConfig) -> dict[str, Any]:
    """The loss scale as JSON data.

    Example:
        >>> scale_to_dict(NoScaleConfig())
        {'kind': 'off'}
    """
    kind = next(name for name, cls in _SCALES.items() if isinstance(scale, cls))
    return {"kind": kind, **dataclasses.asdict(scale)}


def scale_from_dict(data: Mapping[str, Any]) -> ScaleConfig:
    """Rebuild from :func:`scale_to_dict`.

    Raises:
        ConfigError: Unknown kind or key; the nearest one is named.
    """
    arguments = dict(data)
    kind = str(arguments.pop("kind", "dynamic"))
    if kind not in _SCALES:
        raise ConfigError(
            f"Unknown loss scale '{kind}'.", where="loss_scale, kind", fix=nearest(kind, _SCALES)
        )
    if kind == "grouped":
        for key in ("init", "groups", "marks"):
            if isinstance(arguments.get(key), list):
                arguments[key] = tuple(
                    tuple(item) if isinstance(item, list) else item for item in arguments[key]
                )
    scale: ScaleConfig = _SCALES[kind](**_known(_SCALES[kind], arguments, "loss_scale"))
    return scale
