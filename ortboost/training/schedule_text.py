"""Schedules as the command line writes them: ``cosine:0.1,steps=1000,warmup=50``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortboost.core.errors import ConfigError, nearest
from ortboost.training.schedules import (
    Constant,
    Cosine,
    LinearWarmup,
    MultiStep,
    PerStep,
    Schedule,
    StepDecay,
)

__all__ = ["SCHEDULE_FORMS", "parse_schedule"]

SCHEDULE_FORMS = {
    "constant": "constant:0.1",
    "cosine": "cosine:0.1,steps=1000,min=0.001",
    "step": "step:0.1,every=500,gamma=0.1",
    "multistep": "multistep:0.1,at=500/800,gamma=0.1",
    "list": "list:0.1/0.1/0.05/0.01",
}
"""Each kind with an example; all of them take ``warmup=STEPS`` and ``warmup-factor=0.1`` too."""

_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "constant": {},
    "cosine": {"steps": int, "min": float},
    "step": {"every": int, "gamma": float},
    "multistep": {"at": str, "gamma": float},
    "list": {},
}
_WARMUP: dict[str, Callable[[str], Any]] = {"warmup": int, "warmup-factor": float}
_REQUIRED = {"step": "every", "multistep": "at"}


def parse_schedule(text: str, *, total_steps: int | None = None) -> Schedule:
    """Read a schedule from its text form.

    Args:
        text: A number, or ``kind:rate,option=value,...`` as in :data:`SCHEDULE_FORMS`.
        total_steps: Applied updates of the whole run; ``cosine`` ends there (less the warm-up)
            when the text names no ``steps``.

    Raises:
        ConfigError: An unknown kind or option (the nearest is named), a missing or bad value.

    Example:
        >>> parse_schedule("0.1")
        Constant(lr=0.1)
        >>> parse_schedule("cosine:0.1,warmup=50", total_steps=1050)
        LinearWarmup(after=Cosine(lr=0.1, total_steps=1000, min_lr=0.0), steps=50, start_factor=0.1)
    """
    kind, colon, rest = text.strip().partition(":")
    if not colon and _is_number(kind):
        kind, rest = "constant", kind
    if kind not in SCHEDULE_FORMS:
        raise ConfigError(
            f"There is no schedule '{kind}'.", where=f"'{text}'", fix=nearest(kind, SCHEDULE_FORMS)
        )
    rate, options = _split(text, kind, rest)
    warmup = options.pop("warmup", 0)
    factor = options.pop("warmup-factor", 0.1)
    if kind in _REQUIRED and _REQUIRED[kind] not in options:
        raise _bad(text, kind, f"'{_REQUIRED[kind]}' is missing.")
    after = _build(text, kind, rate, options, None if total_steps is None else total_steps - warmup)
    return LinearWarmup(after, warmup, factor) if warmup else after


def _build(
    text: str, kind: str, rate: str, options: dict[str, Any], total_steps: int | None
) -> Schedule:
    if kind == "list":
        return PerStep(tuple(_number(text, kind, part) for part in rate.split("/")))
    lr = _number(text, kind, rate)
    if kind == "constant":
        return Constant(lr)
    if kind == "step":
        return StepDecay(lr, **options)
    if kind == "multistep":
        try:
            milestones = tuple(int(part) for part in options.pop("at").split("/"))
        except ValueError:
            raise _bad(text, kind, "'at' lists step numbers, parted by '/'.") from None
        return MultiStep(lr, milestones, **options)
    steps = options.get("steps", total_steps)
    if steps is None:
        raise _bad(text, kind, "'steps' is missing.")
    return Cosine(lr, max(1, steps), options.get("min", 0.0))


def _split(text: str, kind: str, rest: str) -> tuple[str, dict[str, Any]]:
    """The rate and the options, converted."""
    rate, *pairs = [part.strip() for part in rest.split(",")]
    known = {**_OPTIONS[kind], **_WARMUP}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in known:
            raise ConfigError(
                f"A '{kind}' schedule has no option '{name}'.",
                where=f"'{text}'",
                fix=nearest(name, known),
            )
        try:
            options[name] = known[name](value)
        except ValueError:
            raise _bad(text, kind, f"'{name}' has no valid value ('{value}').") from None
    return rate, options


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, kind: str, value: str) -> float:
    if not _is_number(value):
        raise _bad(text, kind, f"The rate '{value}' is no number.")
    return float(value)


def _bad(text: str, kind: str, what: str) -> ConfigError:
    return ConfigError(what, where=f"schedule '{text}'", fix=f"Write it as {SCHEDULE_FORMS[kind]}")
