"""Parse the options that describe settings: boosts, optimizers, loss scales, groups, inputs.

Their form is that of :mod:`ortboost.cli.grammar`; in addition ``;`` separates the items of a list,
and ``|`` the patterns of one item. The configuration classes check the values, and raise a
``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args, get_origin, get_type_hints

from ortboost.boosts.base import Boost
from ortboost.boosts.table import boost_from_dict, find_boost
from ortboost.cli.grammar import parse_kind, parse_pairs, parse_value, split_pairs
from ortboost.core.arrays import read_npy
from ortboost.core.errors import ConfigError, FileError, UsageError, nearest, require_known
from ortboost.core.field_types import read_config
from ortboost.core.loss_scale import SCALES, ScaleConfig
from ortboost.deploy.int8.config import Int8Config
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.optimizers import OPTIMIZERS, Optimizer, optimizer_from_dict
from ortboost.program.config import ClipConfig, ParameterGroup, scale_from_dict

__all__ = [
    "parse_axes",
    "parse_boost",
    "parse_class_weights",
    "parse_clip",
    "parse_groups",
    "parse_inputs",
    "parse_int8",
    "parse_loss_scale",
    "parse_mapping",
    "parse_optimizer",
    "parse_padding",
    "parse_precision",
    "parse_settings",
    "parse_shapes",
    "parse_tolerances",
]

_SCALE_KEYS: Final = {
    "min": "min_scale",
    "max": "max_scale",
    "consecutive": "consecutive_hysteresis",
}


def parse_boost(text: str) -> Boost:
    """Parse ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``; ``|`` separates the items of a list.

    Example:
        >>> parse_boost("grad-freeze:p=0.4,by=cost").by
        'cost'
        >>> parse_boost("grad-centralization:patterns=fc*|conv*").patterns
        ('fc*', 'conv*')
    """
    name, _, rest = text.strip().partition(":")
    pairs = parse_pairs([part for part in rest.split(",") if part], f"--boost {name}")
    hints = get_type_hints(find_boost(name))
    for key, value in pairs.items():
        kinds = {get_origin(hint) for hint in (hints.get(key), *get_args(hints.get(key)))}
        if isinstance(value, str) and tuple in kinds:
            pairs[key] = [parse_value(item) for item in value.split("|") if item]
    return boost_from_dict({"name": name, **pairs})


def parse_optimizer(
    text: str, further: Mapping[str, Any] | None = None
) -> tuple[Optimizer, tuple[Boost, ...]]:
    """Parse ``NAME`` or ``NAME:KEY=VALUE,...``; ``thor`` is Momentum with the boost of that name.

    Example:
        >>> rule, (boost,) = parse_optimizer("thor:frequency=50,momentum=0.8")
        >>> rule.momentum, boost.frequency
        (0.8, 50)
    """
    name, found = parse_kind(text, "--optimizer", "thor:frequency=100,damping=0.03")
    found |= further or {}
    if name != "thor":
        if name not in OPTIMIZERS:
            raise ConfigError(
                f"Unknown optimizer '{name}'.",
                where="--optimizer",
                fix=f"{nearest(name, [*OPTIMIZERS, 'thor'])}; a custom optimizer needs "
                "ORTBOOST_PLUGINS, see docs/own_boost.md.",
            )
        return optimizer_from_dict({"name": name, **found}), ()
    # Momentum's own settings go to the optimizer, all others to the boost.
    rule: dict[str, Any] = {"name": "momentum"}
    rule |= {key: found.pop(key) for key in ("momentum", "nesterov") if key in found}
    return optimizer_from_dict(rule), (boost_from_dict({"name": name, **found}),)


def parse_settings(texts: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse ``SECTION.KEY=VALUE`` arguments.

    Example:
        >>> parse_settings(["grad_freeze.freeze_p=0.5", "common.gradient_split_groups=[2, 4]"])
        [('grad_freeze.freeze_p', 0.5), ('common.gradient_split_groups', [2, 4])]
    """
    form = "--set", "SECTION.KEY=VALUE", "--set grad_freeze.freeze_p=0.7"
    return [pair for text in texts for pair in parse_pairs([text], *form).items()]


def parse_mapping(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``INPUT=KEY`` arguments.

    Example:
        >>> parse_mapping(["x=images"])
        {'x': 'images'}
    """
    return split_pairs(texts, "--map", "INPUT=KEY", "--map x=images")


def parse_inputs(
    dims: Sequence[str] | None, values: Sequence[str] | None, axes: Sequence[str] | None
) -> InputConfig:
    """Parse ``--dim``, ``--input`` and ``--batch-axis``.

    Example:
        >>> parse_inputs(["x:2=640"], ["sr=16000"], ["state=1", "sr=none"]).batch_axes
        {'state': 1, 'sr': None}
    """
    lengths = split_pairs(dims, "--dim", "NAME=VALUE", "--dim height=640")
    constants = split_pairs(values, "--input", "NAME=VALUE", "--input sr=16000")
    batch = split_pairs(axes, "--batch-axis", "NAME=VALUE", "--batch-axis state=1")
    return InputConfig(
        {name: parse_value(text) for name, text in lengths.items()},
        {name: _constant(text) for name, text in constants.items()},
        {name: parse_value(text) for name, text in batch.items()},
    )


def parse_axes(texts: Sequence[str]) -> Mapping[str, int | None]:
    """Parse ``--batch-axis`` alone."""
    return parse_inputs(None, None, texts).batch_axes


def parse_padding(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``--padding-idx``, ``NAME=ROW`` arguments or ``none``."""
    return {} if list(texts) == ["none"] else parse_pairs(texts, "--padding-idx")


def parse_shapes(texts: Sequence[str] | None) -> list[str]:
    """Parse ``--shape INPUT:Nx3x224x224`` into arguments of ``--dim``; ``N`` leaves one open.

    Example:
        >>> parse_shapes(["ids:Nx128"])
        ['ids:1=128']
    """
    found = []
    for text in texts or ():
        name, _, shape = text.rpartition(":")
        dims = shape.split("x")
        if not name or not all(d == "N" or (d.isdecimal() and int(d) > 0) for d in dims):
            raise UsageError(
                f"'{text}' is not the shape of an input.",
                where="--shape",
                fix="Write INPUT:8x3x32x32, or INPUT:Nx3x32x32 where N is the batch size.",
            )
        found += [f"{name}:{axis}={d}" for axis, d in enumerate(dims) if d != "N"]
    return found


def _constant(text: str) -> Any:
    """Parse a value, or load the array of a .npy file."""
    if not text.endswith(".npy"):
        return parse_value(text)
    try:
        return read_npy(text)
    except (OSError, ValueError) as error:
        raise FileError(
            "Cannot read the array of an input.",
            where=f"--input {text}: {error}",
            fix="Save it with numpy.save.",
        ) from error


def parse_tolerances(texts: Sequence[str], option: str) -> tuple[float | None, dict[str, float]]:
    """Parse tolerances: ``1e-3`` for all outputs, ``OUTPUT:1e-4`` for one.

    Example:
        >>> parse_tolerances(["1e-3", "boxes:0.5"], "--atol")
        (0.001, {'boxes': 0.5})
    """
    general: float | None = None
    single: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition(":")
        value = parse_value(number)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
            raise UsageError(
                f"'{text}' is not a tolerance.",
                where=option,
                fix=f"Write {option} 1e-3 for all outputs, or {option} OUTPUT:1e-4 for one.",
            )
        if name:
            single[name] = float(value)
        else:
            general = float(value)
    return general, single


def parse_class_weights(text: str) -> tuple[float, ...]:
    """Parse ``NUMBER,NUMBER,...``, or read the vector in a ``.npy`` file.

    Example:
        >>> parse_class_weights("1,0.5")
        (1.0, 0.5)
    """
    try:
        numbers = text.split(",") if not text.endswith(".npy") else read_npy(text).tolist()
        return tuple(float(number) for number in numbers)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"'{text}' is not a list of numbers: {error}.",
            where="--class-weights",
            fix="Write --class-weights 1,1,2.5, or name a .npy file with a vector.",
        ) from error


def parse_precision(text: str) -> dict[str, Any]:
    """Parse a precision: ``fp16``, ``bf16``, ``fp16:policy=all,keep_batchnorm=false``.

    Example:
        >>> parse_precision("fp16:policy=all")
        {'compute': 'fp16', 'policy': 'all'}
    """
    known = ("policy", "keep_batchnorm")
    compute, pairs = parse_kind(text, "--precision", "fp16:policy=all")
    for key in pairs:
        require_known(key, known, f"Unknown precision setting '{key}'.", f"--precision {text}")
    return {"compute": compute, **pairs}


def parse_clip(text: str) -> ClipConfig:
    """Parse gradient clipping: ``value:1``, ``norm:1`` or ``global-norm:1``.

    Example:
        >>> parse_clip("global-norm:1.0")
        Clip(by='global-norm', limit=1.0)
    """
    by, pairs = parse_kind(text, "--clip", "global-norm:1.0", first="limit")
    if not isinstance(pairs.get("limit"), int | float):
        raise UsageError(
            f"Invalid gradient clipping '{text}'.",
            where="--clip",
            fix="For example: --clip global-norm:1.0.",
        )
    return read_config(ClipConfig, {"by": by, **pairs}, f"--clip {text}")


def parse_groups(texts: Sequence[str]) -> tuple[ParameterGroup, ...]:
    """Parse parameter groups: ``NAME:PATTERN[|PATTERN]:lr=0.01,weight_decay=0``.

    The learning rate may be any schedule; ``;`` may replace its commas, as in earlier versions.

    Example:
        >>> [group.patterns for group in parse_groups(["head:fc*:lr=0.01,weight_decay=0"])]
        [('fc*',)]
    """
    return tuple(map(_group, texts))


def _group(text: str) -> ParameterGroup:
    name, _, rest = text.partition(":")
    patterns, colon, settings = rest.partition(":")
    if not colon or not patterns:
        raise UsageError(
            f"'{text}' is not a parameter group.",
            where="--group",
            fix="Write NAME:PATTERN:lr=0.01,weight_decay=0, for example head:fc*:lr=0.01.",
        )
    known = {"lr": "learning_rate", "weight_decay": "weight_decay"}
    parts: list[str] = []
    for part in settings.split(","):
        # What follows a schedule with a kind belongs to it, unless it is a setting of the group.
        scheduled = bool(parts) and parts[-1].startswith("lr=") and ":" in parts[-1]
        if scheduled and part.partition("=")[0] not in known:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    pairs = split_pairs(parts, f"--group {text}", "KEY=VALUE", "head:fc*:lr=0.01")
    values: dict[str, Any] = {"name": name, "patterns": patterns.split("|")}
    for key, value in pairs.items():
        require_known(
            key, known, f"Unknown setting '{key}' of a parameter group.", f"--group {text}"
        )
        # The rate stays text: it may be a schedule.
        values[known[key]] = value.replace(";", ",") if key == "lr" else parse_value(value)
    return read_config(ParameterGroup, values, f"--group {text}")


def parse_loss_scale(text: str) -> ScaleConfig:
    """Parse a loss scale: ``off``, ``fixed:1024``, ``dynamic:4096`` or ``grouped:4096,groups=4``.

    Groups are a number of layer ranges, or patterns of parameter names: ``;`` separates groups and
    ``|`` the patterns of one group. ``init`` may then have one value per group, separated by ``;``.

    Example:
        >>> parse_loss_scale("dynamic:init=4096,window=1000").scale_window
        1000
        >>> parse_loss_scale("grouped:64;1024,groups=conv*|bn*;fc*").groups
        (('conv*', 'bn*'), ('fc*',))
    """
    first = {"dynamic": "init", "fixed": "scale", "grouped": "init"}
    example = "dynamic:4096,window=1000, fixed:1024 or grouped:4096,groups=4"
    kind, pairs = parse_kind(text, "--loss-scale", example, first=first)
    if kind not in SCALES:
        raise UsageError(
            f"Unknown loss scale '{kind}'.",
            where="--loss-scale",
            fix=f"{nearest(kind, SCALES)}; for example {example}",
        )
    found = {_SCALE_KEYS.get(key, key): value for key, value in pairs.items()}
    if "marks" in found:
        raise UsageError(
            "Marks cannot be given on the command line.",
            where=f"--loss-scale {text}",
            fix="Give them in a JSON file with --config, as [tensor, group before it, group after "
            "it].",
        )
    if kind == "grouped" and isinstance(found.get("groups"), str):
        found["groups"] = [group.split("|") for group in found["groups"].split(";")]
        if not all(name for group in found["groups"] for name in group):
            raise UsageError(
                "A group has an empty pattern.",
                where=f"--loss-scale {text}",
                fix="Give a number, or patterns separated by '|', with ';' between groups.",
            )
    if kind == "grouped" and isinstance(found.get("init"), str):
        found["init"] = [parse_value(start) for start in found["init"].split(";")]
    return scale_from_dict({"kind": kind, **found})


def parse_int8(target: str, ranges: str, **settings: Any) -> Int8Config:
    """Parse an int8 calibration: ``minmax``, ``entropy``, ``percentile`` or ``percentile:99.9``.

    Example:
        >>> parse_int8("tensorrt=11", "percentile:99.9", skip=("head*",)).percentile
        99.9
    """
    example = "minmax, percentile, percentile:99.9 or entropy"
    name, share = parse_kind(ranges, "--calibration", example, first={"percentile": "percentile"})
    number = isinstance(share.get("percentile", 0.0), int | float)
    # Only percentile takes a number, and a colon without one is a slip.
    invalid = set(share) - {"percentile"} or (share and name != "percentile")
    if invalid or not number or ranges.endswith(":"):
        raise UsageError(
            f"Unknown calibration '{ranges}'.", where="--calibration", fix=f"Use {example}."
        )
    return Int8Config.for_target(target, calibration=name, **settings, **share)
