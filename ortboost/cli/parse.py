"""Text of command-line options to configuration objects: ``kind:key=value,key=value``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortboost.boosts.base import Boost
from ortboost.boosts.table import boost_from_dict
from ortboost.core.errors import FileError, UsageError, nearest
from ortboost.deploy.int8.config import Int8Config
from ortboost.graph.input_config import InputConfig
from ortboost.program.config import ClipConfig, ParameterGroup

__all__ = [
    "parse_boost",
    "parse_clip",
    "parse_group",
    "parse_inputs",
    "parse_int8",
    "parse_mapping",
    "parse_pairs",
    "parse_precision",
    "parse_settings",
    "parse_tolerances",
    "parse_value",
]


def parse_pairs(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Read ``key=value`` texts; values are numbers, true, false or none where they look so.

    Example:
        >>> parse_pairs(["momentum=0.9", "nesterov=true"], "--optimizer-arg")
        {'momentum': 0.9, 'nesterov': True}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"'{text}' is not of the form KEY=VALUE.",
                where=option,
                fix=f"Write for example {option} momentum=0.9.",
            )
        found[key.strip().replace("-", "_")] = parse_value(value.strip())
    return found


def parse_boost(text: str) -> Boost:
    """Read ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``; a list has ``|`` between its items, or at its end.

    Raises:
        UsageError: A part has another form.
        ConfigError: An unknown boost or setting, or a value that makes no sense.

    Example:
        >>> parse_boost("grad-freeze:p=0.4,by=cost").by
        'cost'
        >>> parse_boost("grad-centralization:patterns=fc*|").patterns
        ('fc*',)
    """
    name, _, rest = text.strip().partition(":")
    pairs = parse_pairs([part for part in rest.split(",") if part], f"--boost {name}")
    for key, value in pairs.items():
        if isinstance(value, str) and "|" in value:
            pairs[key] = [parse_value(item) for item in value.split("|") if item]
    return boost_from_dict({"name": name, **pairs})


def parse_settings(texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Read ``SECTION.KEY=VALUE`` texts; a value may be a JSON list too.

    Example:
        >>> parse_settings(["grad_freeze.freeze_p=0.5", "common.gradient_split_groups=[2, 4]"])
        [('grad_freeze.freeze_p', 0.5), ('common.gradient_split_groups', [2, 4])]
    """
    found: list[tuple[str, Any]] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"'{text}' is not of the form SECTION.KEY=VALUE.",
                where="--set",
                fix="Write for example --set grad_freeze.freeze_p=0.7.",
            )
        found.append((key.strip().replace("-", "_"), _list(value.strip())))
    return found


def parse_mapping(texts: Sequence[str]) -> dict[str, str]:
    """Read ``INPUT=KEY`` texts.

    Example:
        >>> parse_mapping(["x=images"])
        {'x': 'images'}
    """
    found = {}
    for text in texts:
        name, equals, key = text.partition("=")
        if not (name and equals and key):
            raise UsageError(
                f"'{text}' is not of the form INPUT=KEY.",
                where="--map",
                fix="Write the model's input first: --map x=images.",
            )
        found[name] = key
    return found


def parse_inputs(
    dims: Sequence[str] | None, values: Sequence[str] | None, axes: Sequence[str] | None
) -> InputConfig:
    """Read ``--dim``, ``--input`` and ``--batch-axis``.

    Raises:
        UsageError: One is not of its form.
        FileError: A .npy file cannot be read.

    Example:
        >>> parse_inputs(["x:2=640"], ["sr=16000"], ["state=1", "sr=none"]).batch_axes
        {'state': 1, 'sr': None}
    """
    lengths = {n: parse_value(v) for n, v in _split(dims, "--dim", "height=640").items()}
    constants = {n: _constant(v) for n, v in _split(values, "--input", "sr=16000").items()}
    batch = {n: parse_value(v) for n, v in _split(axes, "--batch-axis", "state=1").items()}
    return InputConfig(lengths, constants, batch)


def _split(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """``NAME=TEXT`` to name and text; names may have a ``=`` no more than those of ONNX have."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise UsageError(
                f"'{text}' is not of the form NAME=VALUE.",
                where=option,
                fix=f"Write for example {option} {example}.",
            )
        found[name.strip()] = value.strip()
    return found


def _constant(text: str) -> Any:
    """A number, true or false, a JSON list, or the array of a .npy file."""
    if not text.endswith(".npy"):
        return _list(text)
    try:
        return np.load(text, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(
            "The array of an input cannot be read.",
            where=f"--input {text}: {error}",
            fix="Save it with numpy.save.",
        ) from error


def parse_tolerances(texts: Sequence[str], option: str) -> tuple[float | None, dict[str, float]]:
    """Read tolerances: ``1e-3`` for all outputs, ``OUTPUT:1e-4`` for one.

    Example:
        >>> parse_tolerances(["1e-3", "boxes:0.5"], "--atol")
        (0.001, {'boxes': 0.5})
    """
    general: float | None = None
    single: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise UsageError(
                f"'{text}' is not a tolerance.",
                where=option,
                fix=f"Write {option} 1e-3 for all outputs, or {option} OUTPUT:1e-4 for one.",
            )
        if name:
            single[name] = value
        else:
            general = value
    return general, single


def parse_precision(text: str) -> dict[str, Any]:
    """Read a precision: ``fp16``, ``bf16``, ``fp16:policy=all,keep_batchnorm=false``.

    Example:
        >>> parse_precision("fp16:policy=all")
        {'compute': 'fp16', 'policy': 'all'}
    """
    compute, _, rest = text.strip().partition(":")
    known = ("policy", "keep_batchnorm")
    pairs = parse_pairs([part for part in rest.split(",") if part], "--precision")
    for key in pairs:
        if key not in known:
            raise UsageError(
                f"A precision has no '{key}'.", where=f"--precision {text}", fix=nearest(key, known)
            )
    return {"compute": compute, **pairs}


def parse_clip(text: str) -> ClipConfig:
    """Read a clipping: ``value:1``, ``norm:1`` or ``global-norm:1``.

    Example:
        >>> parse_clip("global-norm:1.0")
        Clip(by='global-norm', limit=1.0)
    """
    by, colon, limit = text.strip().partition(":")
    number = parse_value(limit)
    if not colon or isinstance(number, (str, bool)) or number is None:
        raise UsageError(
            f"'{text}' is not a clipping.", where="--clip", fix="Write --clip global-norm:1.0."
        )
    return ClipConfig(by, float(number))  # type: ignore[arg-type]  # checked by ClipConfig


def parse_group(text: str) -> ParameterGroup:
    """Read a parameter group: ``NAME:PATTERN[|PATTERN]:lr=0.01,weight_decay=0``.

    The learning rate may be any schedule; its own commas are written as ``;``.

    Example:
        >>> parse_group("head:fc*:lr=0.01,weight_decay=0").patterns
        ('fc*',)
    """
    parts = text.split(":", 2)
    if len(parts) != 3 or not parts[1]:
        raise UsageError(
            f"'{text}' is not a parameter group.",
            where="--group",
            fix="Write NAME:PATTERN:lr=0.01,weight_decay=0, for example head:fc*:lr=0.01.",
        )
    name, patterns, rest = parts
    raw: dict[str, str] = {}
    for part in rest.split(","):
        key, _, value = part.partition("=")
        if key not in ("lr", "weight_decay"):
            raise UsageError(
                f"A parameter group has no '{key}'.",
                where=f"--group {text}",
                fix=nearest(key, ("lr", "weight_decay")),
            )
        raw[key] = value.replace(";", ",")
    decay = parse_value(raw["weight_decay"]) if "weight_decay" in raw else None
    if isinstance(decay, (str, bool)):
        raise UsageError(
            f"'{raw['weight_decay']}' is not a number.",
            where=f"--group {text}",
            fix="Give 0 or more.",
        )
    return ParameterGroup(name, tuple(patterns.split("|")), raw.get("lr"), decay)


def _list(text: str) -> Any:
    """A JSON list if it is one, else as :func:`parse_value`."""
    if text.startswith("["):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return parse_value(text)


def parse_value(text: str) -> Any:
    """A number, true, false or none if it is one, else the text.

    Example:
        >>> parse_value("2**10"), parse_value("none"), parse_value("fc*")
        (1024.0, None, 'fc*')
    """
    words: Mapping[str, Any] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    base, power, exponent = text.partition("**")
    if power and base.isdigit() and exponent.isdigit() and int(exponent) < 128:
        return float(int(base) ** int(exponent))
    try:
        number = json.loads(text)
    except json.JSONDecodeError:
        try:
            return float(text)
        except ValueError:
            return text
    return number if isinstance(number, (int, float)) else text


def parse_int8(
    target: str,
    calibration: str,
    skip: Sequence[str],
    full_range: bool = False,
    samples: int = 512,
) -> Int8Config:
    """Read ``minmax``, ``entropy``, ``percentile`` or ``percentile:99.9`` for a target.

    Example:
        >>> parse_int8("tensorrt=11", "percentile:99.9", ["head*"]).percentile
        99.9
    """
    name, colon, share = calibration.partition(":")
    try:
        percentile = float(share) if colon else 99.99
    except ValueError:
        percentile = -1.0
    if colon and (name != "percentile" or percentile < 0):
        raise UsageError(
            f"'{calibration}' is no calibration.",
            where="--calibration",
            fix="Write minmax, percentile, percentile:99.9 or entropy.",
        )
    return Int8Config.for_target(
        target,
        calibration=name,
        percentile=percentile,
        skip=tuple(skip),
        full_range=full_range,
        samples=samples,
    )
