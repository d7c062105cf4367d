"""Boost levels: MindSpore's AutoBoost configuration, resolved to boosts.

A level enables boosts, a dictionary (or a JSON file of the same form) can override this, and every
boost has a section with its hyper-parameters::

    {
      "boost": {"mode": "manual", "less_bn": false},
      "less_bn": {"fn_flag": true, "gc_flag": true},
      "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
      "grad_accumulation": {"grad_accumulation_step": 4}
    }

Modes, under ``boost``:

- ``auto`` (the default): the level decides, and other keys under ``boost`` are ignored;
- ``manual``: the keys under ``boost`` override the level;
- ``enable_all``, ``disable_all``: all boosts on or off, regardless of the level.

Names, defaults and modes are those of MindSpore Boost 2.10. In contrast to MindSpore, an unknown
level, mode, section or key is an error, values are checked, and configurations do not share state.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from ortboost.boosts import (
    AdaSum,
    Boost,
    DimReduce,
    FullNormHead,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    LessBN,
)
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.core.errors import ConfigError, nearest, require_known
from ortboost.core.field_types import Range, check_kinds, read_config
from ortboost.core.files import read_json

__all__ = [
    "LEVELS",
    "MODES",
    "SECTIONS",
    "AccumulationSection",
    "BoostConfig",
    "CommonSection",
    "DimReduceSection",
    "LessBnSection",
    "Switches",
    "read_boost_config",
    "resolve_boost",
]

_Count: TypeAlias = Annotated[int, Range(0, below=2**31)]
_Positive: TypeAlias = Annotated[int, Range(1, below=2**31)]
_Fraction: TypeAlias = Annotated[float, Range(0, below=1)]
LEVELS: Final = ("O0", "O1", "O2")
MODES: Final = ("auto", "manual", "enable_all", "disable_all")
_ON: Final[Mapping[str, tuple[str, ...]]] = {
    "O0": (),
    "O1": ("less_bn", "grad_freeze"),
    "O2": ("less_bn", "grad_freeze", "adasum"),
}


class _Section:
    """Base of sections: checks the types and ranges of the fields."""

    NAME: ClassVar[str]

    def __post_init__(self) -> None:
        check_kinds(self, self.NAME)


@dataclass(frozen=True)
class Switches(_Section):
    """The boosts that are enabled."""

    NAME = "boost"

    less_bn: bool = False
    grad_freeze: bool = False
    adasum: bool = False
    grad_accumulation: bool = False
    dim_reduce: bool = False
    loss_scale_group: bool = False


@dataclass(frozen=True)
class CommonSection(_Section):
    """Settings shared by several boosts.

    Args:
        gradient_split_groups: Positions in the list of parameters where a new ``comm_fusion``
            starts; ``None`` for one in the middle. It has no effect on training: the exchange
            between processes forms its own groups.
        device_number: Number of devices per server, for AdaSum.
    """

    NAME = "common"

    gradient_split_groups: tuple[_Count, ...] | None = None
    device_number: _Positive = 8


@dataclass(frozen=True)
class LessBnSection(_Section):
    """LessBN and the boosts that accompany it.

    Args:
        fn_flag: Turn the last fully connected layer into a full-normalization head.
        gc_flag: Centralize the gradients of weights.
        gc_multiple_of: Centralize only weights whose number of inputs is a multiple of this (an
            addition; MindSpore uses 16 without documenting it).
    """

    NAME = "less_bn"

    fn_flag: bool = True
    gc_flag: bool = True
    gc_multiple_of: _Positive = 16


@dataclass(frozen=True)
class AccumulationSection(_Section):
    """Gradient accumulation.

    Args:
        grad_accumulation_step: Number of micro-batches per update; 1 for no accumulation.
    """

    NAME = "grad_accumulation"

    grad_accumulation_step: _Positive = 1


@dataclass(frozen=True)
class DimReduceSection(_Section):
    """The settings of :class:`~ortboost.boosts.dim_reduce.DimReduce`, and two of AutoBoost alone.

    Args:
        weight_load_dir: Checkpoints to compute the components from; for AutoBoost only, a program
            uses those of ``ortboost pca --checkpoints``.
        timeout: No effect, as the report says: no process waits for the file of another.
    """

    NAME = "dim_reduce"

    rho: _Fraction = 0.55
    gamma: _Fraction = 0.9
    alpha: _Fraction = 0.001
    sigma: _Fraction = 0.4
    n_components: _Positive = 32
    pca_mat_path: str | None = None
    weight_load_dir: str | None = None
    timeout: _Count = 1800


@dataclass(frozen=True)
class BoostConfig:
    """A resolved boost configuration.

    Args:
        level: ``O0``, ``O1`` or ``O2``.
        mode: ``auto``, ``manual``, ``enable_all`` or ``disable_all``.
        on: The boosts that are on; the fields that follow are the sections with their settings.
        idle: Settings that have no effect, with the reason.
    """

    level: str = "O0"
    mode: str = "auto"
    on: Switches = field(default_factory=Switches)
    common: CommonSection = field(default_factory=CommonSection)
    less_bn: LessBnSection = field(default_factory=LessBnSection)
    grad_freeze: FreezeConfig = field(default_factory=FreezeConfig)
    grad_accumulation: AccumulationSection = field(default_factory=AccumulationSection)
    dim_reduce: DimReduceSection = field(default_factory=DimReduceSection)
    idle: Mapping[str, str] = field(default_factory=dict)

    def boosts(self) -> dict[str, Boost]:
        """The enabled boosts, by the switch or flag that enabled them.

        A grouped loss scale is not among them: it is a setting of the loss scale.
        """
        found: dict[str, Boost] = {}
        if self.on.less_bn:
            found["less_bn"] = LessBN()
            if self.less_bn.fn_flag:
                found["less_bn.fn_flag"] = FullNormHead(if_present=True)
            if self.less_bn.gc_flag:
                multiple = self.less_bn.gc_multiple_of
                found["less_bn.gc_flag"] = GradCentralization(multiple_of=multiple)
        if self.on.grad_freeze:
            found["grad_freeze"] = GradFreeze.of(self.grad_freeze)
        if self.on.grad_accumulation:
            steps = self.grad_accumulation.grad_accumulation_step
            found["grad_accumulation"] = GradAccumulation(steps)
        if self.on.dim_reduce:
            found["dim_reduce"] = self._dim_reduce()
        if self.on.adasum:
            found["adasum"] = AdaSum(self.common.device_number)
        return found

    def _dim_reduce(self) -> DimReduce:
        section = self.dim_reduce
        if section.pca_mat_path is None:
            raise ConfigError(
                "Dimension reduction needs the principal components.",
                where="dim_reduce, pca_mat_path",
                fix="Compute them with 'ortboost pca RUN -o p.npy' (pass weight_load_dir to "
                "--checkpoints), and set dim_reduce.pca_mat_path.",
            )
        same = ("pca_mat_path", "n_components", "rho", "gamma", "alpha", "sigma")
        return DimReduce(**{name: getattr(section, name) for name in same})


_SECTIONS: Final[Mapping[str, type[Any]]] = {
    "common": CommonSection,
    "less_bn": LessBnSection,
    "grad_freeze": FreezeConfig,
    "grad_accumulation": AccumulationSection,
    "dim_reduce": DimReduceSection,
}
_SWITCHES: Final = tuple(item.name for item in fields(Switches))
SECTIONS: Final = ("boost", *_SECTIONS)
"""Names of the sections of a configuration."""


def read_boost_config(source: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Read a configuration from a dictionary or a JSON file; empty if none is given.

    Raises:
        FileError: The file is missing or is not JSON.
        ConfigError: The configuration is not a dictionary of dictionaries.

    Example:
        >>> read_boost_config("")
        {}
    """
    if source is None or (isinstance(source, str) and not source):
        return {}
    where = "boost configuration"
    if isinstance(source, str | os.PathLike):
        where = str(Path(source))
        source = read_json(source)
    if not isinstance(source, Mapping):
        raise ConfigError(
            f"The boost configuration is of type {type(source).__name__}.",
            where=where,
            fix="Give a dictionary such as {'boost': {'mode': 'auto'}}, or a JSON file of one.",
        )
    for name, section in source.items():
        if not isinstance(section, Mapping):
            raise ConfigError(
                f"The section {name!r} is {section!r}, not a dictionary.",
                where=where,
                fix=f"Sections contain keys and values; {nearest(str(name), SECTIONS)}.",
            )
        for key in section:
            if not isinstance(key, str):
                raise ConfigError(
                    f"The key {key!r} is not a string.",
                    where=f"{where}, {name}",
                    fix=f"Write '{key}' if it is the name of a setting.",
                )
    return {str(name): dict(section) for name, section in source.items()}


def resolve_boost(
    level: str = "O0",
    source: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    sets: Iterable[tuple[str, Any]] = (),
) -> BoostConfig:
    """Resolve a level, a dictionary and single settings to a boost configuration.

    Args:
        level: ``O0``, ``O1`` or ``O2``.
        source: See :func:`read_boost_config`; it is not changed.
        sets: Pairs such as ``("grad_freeze.freeze_p", 0.5)``, which override the dictionary. One
            that turns a boost on or off sets the mode to ``manual``, if no mode is given.

    Raises:
        ConfigError: An unknown level, mode, section or key (the nearest is suggested), or an
            invalid value.
        FileError: The file cannot be read.

    Example:
        >>> found = resolve_boost("O1", {"boost": {"mode": "manual", "less_bn": False}})
        >>> found.on.less_bn, found.on.grad_freeze
        (False, True)
        >>> resolve_boost("O1", sets=[("grad_freeze.freeze_p", 0.5)]).grad_freeze.freeze_p
        0.5
    """
    if level not in LEVELS:
        raise ConfigError(
            f"Unknown boost level {level!r}.",
            where="boost level",
            fix=nearest(str(level).upper(), LEVELS),
        )
    data = read_boost_config(source)
    for key, value in sets:
        section, name = _split(key)
        data.setdefault(section, {})[name] = value
        if section == "boost" and name != "mode":  # in mode auto it would have no effect
            data["boost"].setdefault("mode", "manual")
    for name in data:
        what = f"Unknown section {name!r}."
        require_known(name, SECTIONS, what, "boost configuration", ConfigError)
    mode, on, idle = _switches(level, data.pop("boost", {}))
    sections = {name: _section(name, data.get(name, {})) for name in _SECTIONS}
    for name in data:
        if name != "common" and not getattr(on, name):
            idle[name] = f"settings of a boost that is off ({_because(level, mode)})"
    common = data.get("common", {})
    if "gradient_split_groups" in common:
        idle["common.gradient_split_groups"] = "the exchange of gradients forms its own groups"
    if "device_number" in common and not on.adasum:
        idle["common.device_number"] = f"adasum is off ({_because(level, mode)})"
    if "timeout" in data.get("dim_reduce", {}):
        idle["dim_reduce.timeout"] = "no process waits for the file of another"
    return BoostConfig(level=level, mode=mode, on=on, idle=idle, **sections)


def _switches(level: str, given: dict[str, Any]) -> tuple[str, Switches, dict[str, str]]:
    """The mode, the enabled boosts, and settings without effect."""
    mode = given.pop("mode", "auto")
    require_known(mode, MODES, f"Unknown boost mode {mode!r}.", "boost, mode", ConfigError)
    read_config(Switches, given, "boost")  # for its errors, in every mode
    if mode in ("enable_all", "disable_all"):
        on = Switches(**dict.fromkeys(_SWITCHES, mode == "enable_all"))
        return mode, on, {}
    on = Switches(**dict.fromkeys(_ON[level], True))
    if mode == "manual":
        return mode, dataclasses.replace(on, **given), {}
    idle = {
        f"boost.{name}": f"ignored: in mode auto the level ({level}) decides; set boost.mode=manual"
        for name, value in given.items()
        if value != getattr(on, name)
    }
    return mode, on, idle


def _section(name: str, given: Mapping[str, Any]) -> Any:
    points = given.get("gradient_split_groups")  # a list, or a single position
    if points is not None:
        if not isinstance(points, list | tuple | int) or isinstance(points, bool):
            raise ConfigError(
                f"gradient_split_groups = {points!r} is not a list.",
                where="common, gradient_split_groups",
                fix="Give positions in the list of parameters, for example [50, 100].",
            )
        points = (points,) if isinstance(points, int) else points
        given = {**given, "gradient_split_groups": points}
    return read_config(_SECTIONS[name], given, name)


def _split(key: str) -> tuple[str, str]:
    section, dot, name = key.partition(".")
    if not dot or not name:
        homes = [
            f"{s}.{key}" for s, kind in _SECTIONS.items() if key in [f.name for f in fields(kind)]
        ]
        homes += [f"boost.{key}"] if key in ("mode", *_SWITCHES) else []
        raise ConfigError(
            f"{key!r} does not name a section.",
            where="boost settings",
            fix=f"Write {homes[0]}=..."
            if homes
            else "Write SECTION.KEY=VALUE, for example grad_freeze.param_groups=4; other settings "
            "have their own options.",
        )
    return section, name


def _because(level: str, mode: str) -> str:
    return f"level {level}" if mode == "auto" else f"level {level}, mode {mode}"
