"""Schedules in the syntax of the command line: ``cosine:0.1,steps=1000,warmup=50``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from ortboost.core.errors import ConfigError, nearest, require_known
from ortboost.training.schedules import (
    Constant,
    Cosine,
    LinearWarmup,
    MultiStep,
    PerStep,
    Polynomial,
    Schedule,
    StepDecay,
)

__all__ = ["SCHEDULE_FORMS", "parse_schedule", "schedule_text"]

SCHEDULE_FORMS = {
    "constant": "constant:0.1",
    "cosine": "cosine:0.1,steps=1000,min=0.001",
    "linear": "linear:0.1,steps=1000,min=0.001",
    "polynomial": "polynomial:0.1,power=0.9,steps=1000,min=0.001",
    "step": "step:0.1,every=500,gamma=0.1",
    "multistep": "multistep:0.1,at=500/800,gamma=0.1",
    "list": "list:0.1/0.1/0.05/0.01",
}
"""Each kind with an example; all also accept ``warmup=STEPS`` and ``warmup-factor=0.1``."""


def _steps(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("/"))


_Options: TypeAlias = dict[str, tuple[str, Callable[[str], Any]]]
_FALLING: Final[_Options] = {"steps": ("total_steps", int), "min": ("min_lr", float)}
_KINDS: Final[dict[str, tuple[Callable[..., Schedule], _Options]]] = {
    "constant": (Constant, {}),
    "cosine": (Cosine, _FALLING),
    "linear": (Polynomial, _FALLING),
    "polynomial": (Polynomial, {**_FALLING, "power": ("power", float)}),
    "step": (StepDecay, {"every": ("every", int), "gamma": ("gamma", float)}),
    "multistep": (MultiStep, {"at": ("milestones", _steps), "gamma": ("gamma", float)}),
    "list": (PerStep, {}),
}
"""Kind to its class and options; option to its argument and the conversion of its value."""
_WARMUP: Final[_Options] = {"warmup": ("steps", int), "warmup-factor": ("start_factor", float)}
_SPANS: Final = ("cosine", "linear", "polynomial")  # by default over the whole run
_REQUIRED: Final = {**dict.fromkeys(_SPANS, "steps"), "step": "every", "multistep": "at"}


def parse_schedule(text: str | float, *, total_steps: int | None = None) -> Schedule:
    """Parse a schedule.

    Args:
        text: A number, or ``kind:rate,option=value,...`` as in :data:`SCHEDULE_FORMS`.
        total_steps: Applied updates of all epochs; the default of ``steps`` (less the warm-up).

    Raises:
        ConfigError: A kind or option is unknown, or a value is missing or invalid.

    Example:
        >>> parse_schedule("0.1")
        Constant(lr=0.1)
        >>> parse_schedule("cosine:0.1,warmup=50", total_steps=1050)
        LinearWarmup(after=Cosine(lr=0.1, total_steps=1000, min_lr=0.0), steps=50, start_factor=0.1)
    """
    text = text if isinstance(text, str) else repr(float(text))
    kind, colon, rest = text.strip().partition(":")
    if not colon and _is_number(kind):
        kind, rest = "constant", kind
    require_known(kind, SCHEDULE_FORMS, f"Unknown schedule '{kind}'.", f"'{text}'", ConfigError)
    make, known = _KINDS[kind]
    rate, *pairs = [part.strip() for part in rest.split(",")]
    if not rate or "=" in rate:
        raise _bad(text, kind, "The rate is missing.")
    # Every kind has the options of a warm-up.
    options = _read(text, kind, [pair for pair in pairs if not pair.startswith("warmup")], known)
    warmup = _read(text, kind, [pair for pair in pairs if pair.startswith("warmup")], _WARMUP)
    if warmup and "steps" not in warmup:
        raise _bad(text, kind, "'warmup' is missing.")
    if warmup.get("steps", 0) < 0:  # the schedule would name its own argument, 'steps'
        raise _bad(text, kind, f"'warmup' is {warmup['steps']}; 0 or more is needed.")
    if kind in _SPANS and total_steps is not None:
        options.setdefault("total_steps", max(1, total_steps - warmup.get("steps", 0)))
    needed = _REQUIRED.get(kind)
    if needed is not None and known[needed][0] not in options:
        unknown = ", since the data do not tell the length of the run" if kind in _SPANS else ""
        raise _bad(text, kind, f"'{needed}' is missing{unknown}.")
    if kind == "list":
        after = make(tuple(_number(text, kind, part) for part in rate.split("/")))
    else:
        after = make(_number(text, kind, rate), **options)
    return LinearWarmup(after, **warmup) if warmup.get("steps") else after


def schedule_text(schedule: Schedule) -> str:
    """The text from which :func:`parse_schedule` makes a schedule, with all numbers of steps.

    Example:
        >>> schedule_text(LinearWarmup(Cosine(0.1, total_steps=1000), steps=50))
        'cosine:0.1,steps=1000,warmup=50'
    """
    if isinstance(schedule, LinearWarmup):
        return schedule_text(schedule.after) + _pairs(schedule, _WARMUP)
    kind = next(name for name, (make, _) in _KINDS.items() if type(schedule) is make)
    if isinstance(schedule, Polynomial) and schedule.power != 1:
        kind = "polynomial"
    rate = schedule.values if isinstance(schedule, PerStep) else schedule.lr
    return f"{kind}:{_value(rate)}{_pairs(schedule, _KINDS[kind][1])}"


def _pairs(schedule: Schedule, options: _Options) -> str:
    """The options that have no default, or another value."""
    defaults = {field.name: field.default for field in dataclasses.fields(schedule)}
    values = {name: getattr(schedule, argument) for name, (argument, _) in options.items()}
    return "".join(
        f",{name}={_value(value)}"
        for name, value in values.items()
        if value != defaults[options[name][0]]
    )


def _value(value: float | Sequence[float]) -> str:
    return "/".join(map(_value, value)) if isinstance(value, Sequence) else str(value)


def _read(text: str, kind: str, pairs: Sequence[str], known: _Options) -> dict[str, Any]:
    """Convert options to keyword arguments."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in known:
            raise ConfigError(
                f"A '{kind}' schedule has no option '{name}'.",
                where=f"'{text}'",
                fix=nearest(name, {**known, **_WARMUP}),
            )
        argument, convert = known[name]
        if argument in arguments:
            raise _bad(text, kind, f"'{name}' is given twice.")
        try:
            arguments[argument] = convert(value)
        except ValueError:
            raise _bad(text, kind, f"'{name}' has no valid value ('{value}').") from None
    return arguments


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, kind: str, value: str) -> float:
    if not _is_number(value):
        raise _bad(text, kind, f"The rate '{value}' is not a number.")
    return float(value)


def _bad(text: str, kind: str, what: str) -> ConfigError:
    return ConfigError(what, where=f"schedule '{text}'", fix=f"Write it as {SCHEDULE_FORMS[kind]}")
