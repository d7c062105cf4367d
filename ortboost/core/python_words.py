"""Options of the command line as arguments of Python.

Messages are written once, in options; who calls from Python reads the same message with arguments:

    Continue it with --resume.            Continue it with resume=True.
    Use --device cpu.                     Use device='cpu'.
    Take --engine portable.               Take ProgramConfig(engine='portable').
    Say which: --map x=pixels             Say which: mapping={'x': 'pixels'}

Commands that a message tells to type stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["ARGUMENTS", "ONLY_OPTIONS", "in_python"]

ARGUMENTS: Final[Mapping[str, str]] = {
    "around": "around",
    "atol": "atol",
    "augment": "augment",
    "batch-axis": "batch_axes",
    "batch-size": "batch_size",
    "bisect": "bisect=True",
    "calib": "calibration",
    "calibration": "Int8Config.calibration",
    "checkpoint": "checkpoint",
    "checkpoint-every": "checkpoint_every",
    "checkpoints": "checkpoints",
    "class-axis": "LossConfig.class_axis",
    "data": "data",
    "debug-overflow": "debug_overflow",
    "dense-labels": "LossConfig.sparse=False",
    "device": "device",
    "dim": "InputConfig.dims",
    "emulate": "PrecisionConfig.emulate=True",
    "engine": "ProgramConfig.engine",
    "exchange-dtype": "exchange_dtype",
    "for": "target",
    "freeze": "ProgramConfig.freeze",
    "frozen-bn": "ProgramConfig.frozen_norm",
    "graph": "graph",
    "images": "images",
    "ignore-index": "LossConfig.ignore_index",
    "input": "InputConfig.values",
    "keep": "keep",
    "labels": "LossConfig.labels",
    "loss": "LossConfig.name",
    "loss-scale": "ProgramConfig.loss_scale",
    "map": "mapping",
    "max-drop": "max_drop",
    "max-nodes": "max_nodes",
    "metric": "metrics",
    "min-sqnr": "min_sqnr",
    "new-head": "ProgramConfig.new_head",
    "no-optimize": "optimize=False",
    "opset": "opset",
    "out": "out",
    "output": "LossConfig.output",
    "overwrite": "overwrite=True",
    "parameters": "ProgramConfig.parameters",
    "precision": "precision",
    "resume": "resume=True",
    "rtol": "rtol",
    "shape": "shapes",
    "shift-labels": "LossConfig.shift_labels=True",
    "skip": "Int8Config.skip",
    "slim": "slim=True",
    "target": "target",
    "timeout": "timeout",
    "trainable": "ProgramConfig.trainable",
    "update-bn": "update_bn",
    "val": "validation",
    "val-split": "val_split",
    "verify": "verify",
}
"""Option to its argument, after the class that it is a field of; with a value where the option has none."""

ONLY_OPTIONS: Final = frozenset(
    {"boost", "explain", "fix", "max-restarts", "print-config", "processes", "set", "workspace"}
)
"""Options without an argument of that meaning; messages keep them."""

_PAIRS: Final = frozenset({"mapping", "batch_axes", "dims", "values"})
_COMMAND = r"'(?:ortboost|torchrun|pip) [^']*'|\b(?:ortboost|torchrun|pip|trtexec) [a-z-][^;,()]*"
_VALUE = (
    r"'[^']*'|[A-Z][A-Z_]*(?:=[A-Z]+)?(?![\w'])|[\w./*-]*[=:\d][^\s;)]*"
    r"|(?:cpu|cuda|portable|native|output|mse|last|initial|fp16|bf16|softmax-cross-entropy)\b"
)
_OPTION: Final = re.compile(
    rf"(?P<command>{_COMMAND})|(?<![\w-])--(?P<name>[a-z][a-z-]*)(?:[ =](?P<value>{_VALUE}))?"
)
_SAME: Final = re.compile(r"\b(\w+)\(([^()]+)\) \1\(")


def in_python(text: str) -> str:
    """A message for those who call from Python.

    Example:
        >>> in_python("Continue it with --resume, or start anew with --overwrite.")
        'Continue it with resume=True, or start anew with overwrite=True.'
        >>> in_python("Take --engine portable, see 'ortboost inspect MODEL --params'.")
        "Take ProgramConfig(engine='portable'), see 'ortboost inspect MODEL --params'."
    """
    return _SAME.sub(r"\1(\2, ", _OPTION.sub(_argument, text)) if "--" in text else text


def _argument(found: re.Match[str]) -> str:
    argument, value = ARGUMENTS.get(found["name"] or ""), found["value"]
    if argument is None:  # a command, or an option that is nothing else
        return found[0]
    home, _, name = argument.rpartition(".")
    if "=" in name:
        said, end = name, f" {value}" if value else ""
    elif not value:
        return f"{name} of {home}" if home else name
    else:
        end = value[len(value.rstrip(".,:")) :] if not value.endswith("...") else ""
        said = f"{name}={_literal(name, value.removesuffix(end))}"
    return (f"{home}({said})" if home else said) + end


def _literal(name: str, value: str) -> str:
    key, equals, item = value.partition("=")
    if name in _PAIRS and equals:
        item = "None" if item == "none" else item
        return f"{{{_literal('', key)}: {_literal('', item)}}}"
    if name == "shapes":
        return f"[{value!r}]"
    plain = value.replace("_", "").isupper() or value in ("None",) or value.startswith("'")
    return value if plain or re.fullmatch(r"-?[\d.]+", value) else repr(value)
