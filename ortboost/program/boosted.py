"""Apply the boosts of a level, and single settings, to a program configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ortboost.core.errors import ConfigError, nearest, require_known
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
    "it combines the updates of several servers; one process has nothing to combine (--processes)"
)
SCALE_GROUPS_GIVEN = "the loss scale defines its own groups"


def boosted(config: ProgramConfig, boost: BoostConfig) -> tuple[ProgramConfig, Report]:
    """Add the enabled boosts to a configuration; the report says what became of each.

    Boosts that the configuration already has are kept: its freeze, accumulation or centralization.

    Raises:
        ConfigError: ``dim_reduce`` without components, or ``loss_scale_group`` without a grouped
            loss scale.

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
            report.kept[switch] = f"the configuration already has '{new.name}'"
        elif new.enabled:
            added.append(new)
            report.changed[switch] = str(new)
        else:
            report.kept[switch] = "grad_accumulation_step is 1"
    if boost.on.loss_scale_group:
        if not isinstance(config.loss_scale, GroupedScaleConfig):
            raise ConfigError(
                "The boost 'loss_scale_group' requires a grouped loss scale.",
                where=f"boost level {boost.level}, mode {boost.mode}",
                fix="Give one, for example --loss-scale grouped:4096,groups=4.",
            )
        report.kept["loss_scale_group"] = SCALE_GROUPS_GIVEN
    if boost.on.adasum:
        report.notes.append(f"adasum: {ADASUM_IDLE}")
    report.kept.update(boost.idle)
    return config.with_boosts(*added), report


def split_settings(
    sets: Iterable[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Split single settings into those of boosts and those of a :class:`ProgramConfig`.

    Raises:
        ConfigError: An unknown section; the nearest one is suggested.

    Example:
        >>> split_settings([("grad_freeze.freeze_p", 0.5), ("centralize.multiple_of", 1)])
        ([('grad_freeze.freeze_p', 0.5)], [('centralize.multiple_of', 1)])
    """
    of_boosts, of_program = list[tuple[str, Any]](), list[tuple[str, Any]]()
    for key, value in sets:
        section, dot, _ = key.partition(".")
        if dot:
            known = (*SECTIONS, *_PARTS)
            require_known(section, known, f"Unknown section {section!r}.", "settings", ConfigError)
        (of_program if section in _PARTS else of_boosts).append((key, value))
    return of_boosts, of_program


def with_settings(config: ProgramConfig, sets: Iterable[tuple[str, Any]]) -> ProgramConfig:
    """Set single keys of parts of a configuration; a missing part is created.

    Raises:
        ConfigError: An unknown part or key, or an invalid value.

    Example:
        >>> with_settings(ProgramConfig(), [("centralize.multiple_of", 1)]).centralize.multiple_of
        1
    """
    data, settings = config.to_dict(), list[str]()
    for key, value in sets:
        section, _, name = key.partition(".")
        if section not in _PARTS or not name:
            raise ConfigError(
                f"{key!r} does not name a part.", where="settings", fix=nearest(section, _PARTS)
            )
        data[section] = {**(data.get(section) or {}), name: value}
        settings.append(f"{key}={value!r}")
    try:
        return ProgramConfig.from_dict(data) if settings else config
    except TypeError as error:  # a part with missing keys, or a value of the wrong type
        raise ConfigError(
            f"The settings {', '.join(settings)} are invalid.",
            where=f"settings: {error}",
            fix="Give every key that a part requires, each with a value of the right type.",
        ) from error
