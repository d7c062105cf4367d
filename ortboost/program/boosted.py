"""From the boosts of a level, and single settings, to a program configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ortboost.core.errors import ConfigError, nearest
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.core.report import Report
from ortboost.program.boost_config import SECTIONS, BoostConfig
from ortboost.program.config import ProgramConfig

__all__ = [
    "ADASUM_IDLE",
    "SCALE_GROUPS_GIVEN",
    "boosted",
    "split_settings",
    "with_settings",
]

_PARTS: Final = ("loss", "optimizer", "loss_scale", "clip", "centralize", "precision")
ADASUM_IDLE = (
    "it joins the updates of several servers; one process has nothing to join (--processes)"
)
SCALE_GROUPS_GIVEN = "the loss scale names its groups itself"


def boosted(config: ProgramConfig, boost: BoostConfig) -> tuple[ProgramConfig, Report]:
    """Add the boosts that are on to a configuration.

    What the configuration has of its own stays as it is: its freeze, its window of accumulation, its
    centralization.

    Args:
        config: The configuration.
        boost: The boosts, see :func:`ortboost.program.boost_config.resolve_boost`.

    Returns:
        The new configuration, and the report: each boost with what it became.

    Raises:
        ConfigError: ``dim_reduce`` without components, or ``loss_scale_group`` without a loss scale that has
            groups.

    Example:
        >>> from ortboost.program.boost_config import resolve_boost
        >>> boosted(ProgramConfig(), resolve_boost("O1"))[0].less_bn
        True
    """
    report = Report("auto_boost")
    known = {own.name for own in config.boosts}
    added = []
    for switch, new in boost.boosts().items():
        if new.name in known:
            report.kept[switch] = f"the configuration has '{new.name}' of its own"
        elif new.enabled:
            added.append(new)
            report.changed[switch] = str(new)
        else:
            report.kept[switch] = "grad_accumulation_step is 1"
    if boost.on.loss_scale_group:
        if not isinstance(config.loss_scale, GroupedScaleConfig):
            raise ConfigError(
                "The boost 'loss_scale_group' needs a loss scale with groups.",
                where=f"boost level {boost.level}, mode {boost.mode}",
                fix="Give one, on the command line --loss-scale grouped:4096,groups=4.",
            )
        report.kept["loss_scale_group"] = SCALE_GROUPS_GIVEN
    if boost.on.adasum:
        report.notes.append(f"adasum: {ADASUM_IDLE}")
    report.kept.update(boost.idle)
    return config.with_boosts(*added), report


def split_settings(
    sets: Iterable[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Single settings in those of boosts and those of a :class:`ProgramConfig`.

    Raises:
        ConfigError: A section that neither has; the nearest is named.

    Example:
        >>> split_settings([("grad_freeze.freeze_p", 0.5), ("centralize.multiple_of", 1)])
        ([('grad_freeze.freeze_p', 0.5)], [('centralize.multiple_of', 1)])
    """
    found: tuple[list[tuple[str, Any]], list[tuple[str, Any]]] = ([], [])
    for key, value in sets:
        section, dot, _ = key.partition(".")
        if dot and section not in (*SECTIONS, *_PARTS):
            raise ConfigError(
                f"Unknown section {section!r}.",
                where="settings",
                fix=nearest(section, (*SECTIONS, *_PARTS)),
            )
        found[section in _PARTS].append((key, value))
    return found


def with_settings(config: ProgramConfig, sets: Iterable[tuple[str, Any]]) -> ProgramConfig:
    """Set single keys of the parts of a configuration.

    Args:
        config: The configuration.
        sets: Pairs such as ``("centralize.multiple_of", 1)``; a part that is not there is made.

    Raises:
        ConfigError: A part or key that is not known, or a value that makes no sense.

    Example:
        >>> with_settings(ProgramConfig(), [("centralize.multiple_of", 1)]).centralize.multiple_of
        1
    """
    data, said = config.to_dict(), list[str]()
    for key, value in sets:
        section, _, name = key.partition(".")
        if section not in _PARTS or not name:
            raise ConfigError(
                f"{key!r} names no part.", where="settings", fix=nearest(section, _PARTS)
            )
        data[section] = {**(data[section] or {}), name: value}
        said.append(f"{key}={value!r}")
    try:
        return ProgramConfig.from_dict(data) if said else config
    except TypeError as error:  # a part that needs more keys, or a value of another kind
        raise ConfigError(
            f"The settings {', '.join(said)} make no sense.",
            where=f"settings: {error}",
            fix="Give every key that a part needs, each with a value of its kind.",
        ) from error
