"""The text of ``--loss-scale`` to its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ortboost.cli.parse import parse_pairs, parse_value
from ortboost.core.errors import UsageError, nearest
from ortboost.core.loss_scale import ScaleConfig
from ortboost.program.config import scale_from_dict

__all__ = ["parse_loss_scale"]

_KINDS: Final = ("dynamic", "fixed", "grouped", "off")
_NAMES: Final = {
    "min": "min_scale",
    "max": "max_scale",
    "consecutive": "consecutive_hysteresis",
}
_WHOLE: Final = ("groups", "hysteresis", "window")
_LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "dynamic": ("max_scale",),
    "grouped": ("min_scale", "max_scale"),
}


def parse_loss_scale(text: str) -> ScaleConfig:
    """Read a loss scale: ``off``, ``fixed:1024``, ``dynamic:4096,window=1000``, ``grouped:4096,groups=4``.

    Groups are a number of layer ranges, or patterns of parameter names: ``;`` is between groups and ``|``
    between the patterns of one. Then ``init`` may have a number for each group, with ``;`` between them.

    Raises:
        UsageError, ConfigError: It makes no sense.

    Example:
        >>> parse_loss_scale("dynamic:init=4096,window=1000").window
        1000
        >>> parse_loss_scale("grouped:64;1024,groups=conv*|bn*;fc*").groups
        (('conv*', 'bn*'), ('fc*',))
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in _KINDS:
        raise UsageError(
            f"Unknown loss scale '{kind}'.",
            where="--loss-scale",
            fix=nearest(kind, _KINDS)
            + "; for example dynamic:init=4096,window=1000, fixed:1024 or grouped:4096,groups=4",
        )
    parts = [part for part in rest.split(",") if part]
    if parts and "=" not in parts[0] and kind != "off":
        parts[0] = f"{'scale' if kind == 'fixed' else 'init'}={parts[0]}"
    for part in parts:
        if "=" not in part:
            raise UsageError(
                f"'{part}' is not of the form KEY=VALUE.",
                where=f"--loss-scale {text}",
                fix="Write for example fixed:1024, dynamic:4096,window=1000 or grouped:4096,groups=4.",
            )
    pairs = parse_pairs(parts, "--loss-scale")
    found = {_NAMES.get(key, key): value for key, value in pairs.items()}
    for key, value in found.items():
        if kind == "grouped" and isinstance(value, str):
            found[key] = _per_group(key, value, text)
        _check_kind(kind, key, found[key], text)
    return scale_from_dict({"kind": kind, **found})


def _check_kind(kind: str, key: str, value: Any, text: str) -> None:
    """Refuse what is no number where one is needed, and the other way round."""
    fix = ""
    if key == "marks":
        fix = "Give marks in the file of --config, as [tensor, group before it, group after it]."
    elif key == "consecutive_hysteresis":
        fix = "" if isinstance(value, bool) else "Write consecutive=true or consecutive=false."
    elif isinstance(value, bool) or (value is None and key not in _LIMITS.get(kind, ())):
        fix = f"Give a number: {key}=2."
    elif key in _WHOLE and isinstance(value, float) and value != int(value):
        fix = f"Give a whole number: {key}=2."
    if fix:
        shown = "none" if value is None else str(value).lower()
        raise UsageError(f"'{key}' cannot be {shown}.", where=f"--loss-scale {text}", fix=fix)


def _per_group(key: str, value: str, text: str) -> Any:
    """One thing for each group: numbers for ``init``, lists of patterns for ``groups``."""
    members = value.split(";")
    if key == "groups":
        patterns = [[name for name in member.split("|") if name] for member in members]
        if all(patterns):
            return patterns
        fix = "Write a number, or patterns with '|' between them and ';' between groups."
    elif key == "init":
        numbers = [parse_value(member) for member in members]
        if all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
            return numbers
        fix = "Write a number, or one for each group with ';' between them: 64;1024."
    else:
        return value
    raise UsageError(f"'{key}' cannot be '{value}'.", where=f"--loss-scale {text}", fix=fix)
