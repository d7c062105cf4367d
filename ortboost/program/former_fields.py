"""Former fields for boosts, from before boosts were objects.

``ProgramConfig(less_bn=True, accumulate=4)`` and configuration files with such fields continue to
work. A given field replaces the corresponding boost; reading a field gives the value for the
present boosts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ortboost.boosts.base import Boost
from ortboost.boosts.clip import Clip
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.full_norm_head import FullNormHead
from ortboost.boosts.grad_accumulation import GradAccumulation
from ortboost.boosts.grad_centralization import GradCentralization
from ortboost.boosts.grad_freeze import GradFreeze
from ortboost.boosts.group_loss_scale import GroupLossScale
from ortboost.boosts.less_bn import LessBN
from ortboost.boosts.loss_scale import LossScale, scale_from_dict
from ortboost.boosts.mixed_precision import MixedPrecision
from ortboost.boosts.roles import GradientAccumulator, LossScaler
from ortboost.boosts.table import arranged
from ortboost.core.errors import ArgumentTypeError, ConfigError, require_known
from ortboost.core.field_types import check_kinds, read_config, write_config
from ortboost.core.loss_scale import NO_SCALE, GroupedScaleConfig, ScaleConfig
from ortboost.transforms.precision import PrecisionConfig

__all__ = ["FORMER", "former_from_dict", "former_to_dict", "join_boosts", "with_former_fields"]

_C = TypeVar("_C", bound=type[Any])


@dataclass(frozen=True)
class _Values:
    """The former fields with their types, and as defaults their values without a boost."""

    less_bn: bool = False
    full_norm_head: bool = False
    centralize: GradCentralization | None = None
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    loss_scale: ScaleConfig = field(default_factory=lambda: LossScale().policy)
    accumulate: int = 1
    clip: Clip | None = None
    grad_freeze: FreezeConfig | None = None

    def __post_init__(self) -> None:
        check_kinds(self, "configuration")


@dataclass(frozen=True)
class _Former:
    """One former field.

    Args:
        boost: The corresponding boost.
        read: Boost to value.
        make: Value to boost, ``None`` for no boost.
        parse: JSON object to value.
    """

    boost: type[Boost]
    read: Callable[[Any], Any]
    make: Callable[[Any], Boost | None]
    parse: Callable[[Mapping[str, Any]], Any] | None = None


FORMER: Final[Mapping[str, _Former]] = {
    "less_bn": _Former(LessBN, lambda b: True, lambda v: LessBN() if v else None),
    "full_norm_head": _Former(
        FullNormHead, lambda b: True, lambda v: FullNormHead() if v else None
    ),
    "centralize": _Former(
        GradCentralization,
        lambda b: b,
        lambda v: v,
        GradCentralization.from_dict,
    ),
    "precision": _Former(
        MixedPrecision,
        lambda b: PrecisionConfig(**vars(b)),
        lambda v: None if v == PrecisionConfig() else MixedPrecision(**vars(v)),
        lambda data: read_config(PrecisionConfig, data, "precision"),
    ),
    "loss_scale": _Former(
        LossScaler,
        lambda b: getattr(b, "policy", NO_SCALE),
        lambda v: GroupLossScale(v) if isinstance(v, GroupedScaleConfig) else LossScale(v),
        scale_from_dict,
    ),
    "accumulate": _Former(
        GradientAccumulator, lambda b: b.steps, lambda v: None if v == 1 else GradAccumulation(v)
    ),
    "clip": _Former(Clip, lambda b: b, lambda v: v, Clip.from_dict),
    "grad_freeze": _Former(
        GradFreeze,
        lambda b: b.config,
        lambda v: None if v is None else GradFreeze.of(v),
        FreezeConfig.from_dict,
    ),
}
"""The former fields by name."""
_DEFAULTS: Final = _Values()


def with_former_fields(config: _C) -> _C:
    """Let a configuration with ``boosts`` accept the former fields as keywords, and read them.

    If the boosts have no loss scale, the default one is added: steps with overflowing gradients are
    skipped, not applied.
    """
    plain = config.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        known = [*(item.name for item in dataclasses.fields(self)), *FORMER]
        for name in keywords:
            what, where = f"Unknown argument '{name}'.", type(self).__name__
            require_known(name, known, what, where, ArgumentTypeError)
        given = {name: keywords.pop(name) for name in FORMER if name in keywords}
        boosts = keywords.get("boosts", ())
        plain(self, *args, **{**keywords, "boosts": join_boosts(boosts, given)})

    config.__init__ = init
    for name in FORMER:
        setattr(config, name, property(functools.partial(_read, name)))
    return config


def _read(name: str, config: Any) -> Any:
    former = FORMER[name]
    for boost in config.boosts:
        if isinstance(boost, former.boost):
            return former.read(boost)
    return getattr(_DEFAULTS, name)


def join_boosts(boosts: Iterable[Boost], given: Mapping[str, Any]) -> tuple[Boost, ...]:
    """All boosts in the order in which they act: boosts in any order, and former fields.

    A former field replaces the corresponding boost. If there is no loss scale, one is added.

    Raises:
        ConfigError: ``boosts`` contains other objects, or boosts that exclude each other.
    """
    if isinstance(boosts, (str, Mapping)) or not isinstance(boosts, Iterable):
        raise ConfigError(
            f"'boosts' is {boosts!r}.",
            where="configuration, boosts",
            fix="Give objects, such as boosts=(LessBN(), GradFreeze(p=0.4)).",
        )
    values = _Values(**given)
    replaced = tuple(FORMER[name].boost for name in given)
    kept = [boost for boost in boosts if not isinstance(boost, replaced)]
    made = [FORMER[name].make(getattr(values, name)) for name in given]
    found = kept + [boost for boost in made if boost is not None]
    if not any(isinstance(boost, LossScaler) for boost in found):
        found.append(LossScale())
    return arranged(found)


def former_to_dict(boosts: Iterable[Boost]) -> dict[str, Any]:
    """Boosts as JSON data: as former fields if possible, so that older versions can read them.

    All others are listed under ``boosts``, with their names.
    """
    values, rest = dataclasses.asdict(_DEFAULTS), list(boosts)
    # Absent means the default scale; a configuration without one has to say so.
    values["loss_scale"] = write_config(NO_SCALE)
    for boost in tuple(rest):
        for name, former in FORMER.items():
            # Only if nothing is lost: FullNormHead(if_present=True), for example, stays a boost.
            if isinstance(boost, former.boost) and former.make(former.read(boost)) == boost:
                value = former.read(boost)
                if name == "loss_scale":
                    value = write_config(value)  # with its kind
                elif dataclasses.is_dataclass(value):
                    value = dataclasses.asdict(value)  # type: ignore[arg-type]  # an instance
                values[name] = value
                rest.remove(boost)
    for name, former in FORMER.items():  # a field that is written replaces the listed boost
        if any(isinstance(boost, former.boost) for boost in rest):
            values.pop(name)
    return {**values, **({"boosts": [boost.to_dict() for boost in rest]} if rest else {})}


def former_from_dict(data: object) -> dict[str, Any]:
    """Read the former fields of plain data, as keywords of the configuration.

    Raises:
        ConfigError: The data is not a mapping, or a field is invalid.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{data!r} is not a configuration.",
            where="configuration",
            fix="Give an object with keys and values.",
        )
    found: dict[str, Any] = {name: data[name] for name in FORMER if name in data}
    for name, value in found.items():
        parse = FORMER[name].parse
        if parse is not None and isinstance(value, Mapping):
            found[name] = parse(value)
        elif parse is not None and isinstance(value, str | int | float):
            raise ConfigError(
                f"'{name}' is {value!r}; an object with keys and values is needed.",
                where=name,
                fix=f"See ProgramConfig.to_dict()['{name}'] of a configuration that has it.",
            )
    return found
