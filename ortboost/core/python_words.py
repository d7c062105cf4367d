"""Translation of command-line options in messages to Python arguments.

Messages are written once, with options; callers from Python see the same message with arguments:

    Continue it with --resume.            Continue it with resume=True.
    Use --device cpu.                     Use device='cpu'.
    Use --engine portable.                Use ProgramConfig(engine='portable').
    Name it: --map x=pixels               Name it: mapping={'x': 'pixels'}

Commands that a message tells the user to type stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["ARGUMENTS", "ONLY_OPTIONS", "in_python"]

_SAME_NAME: Final = (  # except for hyphens
    "around atol augment batch-size before check-sync checkpoint checkpoint-every checkpoints "
    "components data debug-overflow device early-stop exchange-dtype graph ignore-index images "
    "keep max-drop max-nodes min-sqnr opset out precision rtol segments split target timeout "
    "update-bn val-split validate-every verify"
)
ARGUMENTS: Final[Mapping[str, str]] = {
    **{name: name.replace("-", "_") for name in _SAME_NAME.split()},
    "batch-axis": "batch_axes",
    "bisect": "bisect=True",
    "calib": "calibration",
    "calibration": "Int8Config.calibration",
    "class-axis": "LossConfig.class_axis",
    "class-weights": "LossConfig.weight",
    "dense-labels": "LossConfig.sparse=False",
    "dim": "InputConfig.dims",
    "emulate": "PrecisionConfig.emulate=True",
    "engine": "ProgramConfig.engine",
    "for": "target",
    "force-low": "MixedPrecision.force_low",
    "freeze": "ProgramConfig.freeze",
    "frozen-bn": "ProgramConfig.frozen_norm",
    "input": "InputConfig.values",
    "keep-fp32": "MixedPrecision.keep_fp32",
    "labels": "LossConfig.labels",
    "loss": "LossConfig.name",
    "loss-scale": "ProgramConfig.loss_scale",
    "map": "mapping",
    "metric": "metrics",
    "new-head": "ProgramConfig.new_head",
    "no-cuda-graph": "cuda_graph=False",
    "no-optimize": "optimize=False",
    "output": "LossConfig.output",
    "overwrite": "overwrite=True",
    "parameters": "ProgramConfig.parameters",
    "resume": "resume=True",
    "shape": "shapes",
    "shift-labels": "LossConfig.shift_labels=True",
    "skip": "Int8Config.skip",
    "slim": "slim=True",
    "trainable": "ProgramConfig.trainable",
    "val": "validation",
    "whole": "whole=True",
}
"""Option to argument, with its class if it is a field, and its value if the option has none."""

ONLY_OPTIONS: Final = frozenset(
    {"boost", "explain", "fix", "max-restarts", "print-config", "processes", "workspace"}
)
"""Options without a corresponding argument; messages keep them."""

_PAIRS: Final = frozenset({"mapping", "batch_axes", "dims", "values"})  # NAME=VALUE is a dict
_LISTS: Final = frozenset(
    {"force_low", "freeze", "frozen_norm", "keep_fp32", "metrics", "skip", "trainable"}
)  # tuples of the patterns or names that an option takes one by one
_COMMAND = r"'(?:ortboost|torchrun|pip) [^']*'|\b(?:ortboost|torchrun|pip|trtexec) [a-z-][^;,()]*"
# What may follow an option: a quoted text, a placeholder (NAME=LENGTH), a word with a digit or a
# path in it, or one of these names. Any other word belongs to the sentence.
_VALUE = (
    r"'[^']*'|[A-Z][A-Z_]*(?:=\w+)?(?![\w'=])|[\w./*-]*[=:\d][^\s;)]*"
    r"|(?:cpu|cuda|portable|native|output|mse|last|initial|fp16|bf16|softmax-cross-entropy)\b"
)
_OPTION: Final = re.compile(
    rf"(?P<command>{_COMMAND})|(?<![\w-])--(?P<name>[a-z][a-z0-9-]*)(?:[ =](?P<value>{_VALUE}))?"
)
# Two arguments of one class in a row: ProgramConfig(a=1) ProgramConfig(b=2).
_SAME: Final = re.compile(r"\b(\w+)\(([^()]+)\) \1\(")


def in_python(text: str) -> str:
    """Rewrite a message for callers from Python.

    Example:
        >>> in_python("Continue it with --resume, or start over with --overwrite.")
        'Continue it with resume=True, or start over with overwrite=True.'
        >>> in_python("Use --engine portable, see 'ortboost inspect MODEL --params'.")
        "Use ProgramConfig(engine='portable'), see 'ortboost inspect MODEL --params'."
    """
    return _SAME.sub(r"\1(\2, ", _OPTION.sub(_argument, text)) if "--" in text else text


def _argument(found: re.Match[str]) -> str:
    argument, value = ARGUMENTS.get(found["name"] or ""), found["value"]
    if argument is None:  # a command, or an option without an argument
        return found[0]
    home, _, name = argument.rpartition(".")
    if "=" in name:
        text, end = name, f" {value}" if value else ""
    elif not value:
        return f"{name} of {home}" if home else name
    else:
        # Punctuation at the end is that of the sentence.
        end = value[len(value.rstrip(".,:")) :] if not value.endswith("...") else ""
        text = f"{name}={_literal(name, value.removesuffix(end))}"
    return (f"{home}({text})" if home else text) + end


def _literal(name: str, value: str) -> str:
    key, equals, item = value.partition("=")
    if name in _PAIRS and equals:
        item = "None" if item == "none" else item
        return f"{{{_literal('', key)}: {_literal('', item)}}}"
    if name == "shapes":
        return f"[{value!r}]"
    if name in _LISTS:
        return f"({_literal('', value)},)"
    plain = value.replace("_", "").isupper() or value in ("None",) or value.startswith("'")
    return value if plain or re.fullmatch(r"-?[\d.]+", value) else repr(value)
