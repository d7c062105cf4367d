"""Where an exported graph may run: one table of what each target accepts and likes.

A new target is a row of :data:`TARGETS`. If something can say what it will not accept, that is a function in
:data:`CHECKERS`.

The ranges of TensorRT are those of its release notes (10.x: opset 9 to 20; 11.x: 9 to 25, read with ONNX 1.20).
ONNX Runtime reads every opset up to that of its release; 21 is what all releases from 1.18 on read, newer ones
have to be asked for with ``--opset`` and are refused by an older runtime at the comparison.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import onnx

from ortboost.core.errors import UsageError, nearest

__all__ = [
    "BF16_OPSET",
    "CHECKERS",
    "GENERIC",
    "PRECISIONS",
    "TARGETS",
    "Target",
    "get_checker",
    "get_target",
    "ir_version_for",
]

PRECISIONS: Final = ("fp32", "fp16", "bf16", "int8")
BF16_OPSET: Final = 22
"""From here on Conv and most others take bfloat16."""


@dataclass(frozen=True)
class Target:
    """Where an exported graph is to run.

    Args:
        name: As it is given on the command line.
        opsets: Versions of the standard domain that it reads.
        usual: Newest opset that is chosen without being asked for.
        ir_version: Newest IR version that it reads.
        refused: Precision to the reason why it makes no sense there.
        lifts: Whether the opset may be raised, up to ``usual``, for an operator that saves nodes.
        orders: Whether to write patterns in the order that ONNX Runtime fuses.
        cpu: Whether it is the CPU of ONNX Runtime, which has fusions that do not pay.
        notes: What a user should know, shown with the export.
        int64_note: What else, if inputs or outputs are 64-bit integers.
        int8: Settings of :class:`ortboost.deploy.int8.config.Int8Config` that suit it.
    """

    name: str
    opsets: range
    usual: int
    ir_version: int
    refused: Mapping[str, str] = field(default_factory=dict)
    lifts: bool = False
    orders: bool = False
    cpu: bool = False
    notes: tuple[str, ...] = ()
    int64_note: str = ""
    int8: Mapping[str, bool] = field(default_factory=dict)

    def require(self, precision: str = "fp32", opset: int | None = None) -> None:
        """Refuse what does not go together.

        Raises:
            UsageError: The precision is unknown or makes no sense on the target, or the opset is out
                of its range.
        """
        if precision not in PRECISIONS:
            raise UsageError(
                f"Unknown precision '{precision}'.",
                where="precision",
                fix=nearest(precision, PRECISIONS),
            )
        reason = self.refused.get(precision)
        if reason is not None:
            raise UsageError(
                f"The target '{self.name}' cannot have precision {precision}: {reason}",
                where=f"--target {self.name} --precision {precision}",
                fix=f"Use {' or '.join(p for p in PRECISIONS if p not in self.refused)}, or another target.",
            )
        if opset is not None and opset not in self.opsets:
            raise UsageError(
                f"The target '{self.name}' does not read opset {opset}.",
                where=f"--target {self.name} --opset {opset}",
                fix=f"Use opset {self.opsets[0]} to {self.opsets[-1]}, or another target.",
            )
        if precision == "bf16" and (opset or BF16_OPSET) < BF16_OPSET:
            raise UsageError(
                f"Opset {opset} has no bfloat16 convolutions.",
                where="--precision bf16",
                fix=f"Use --opset {BF16_OPSET} or newer.",
            )


# Weights of 7 bits answer alike on x86 processors with and without VNNI; a GPU takes all 8.
_CPU_INT8: Final = {"reduce_range": True}
_GPU_INT8: Final = {"reduce_range": False}
_TENSORRT: Final[dict[str, Any]] = {
    "lifts": True,
    "int64_note": "TensorRT keeps INT64 inputs and outputs: bind int64 arrays to them.",
    "int8": {**_GPU_INT8, "residual": True},
}

GENERIC: Final = Target("generic", range(7, 26), usual=21, ir_version=13, int8=_CPU_INT8)

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        Target(
            "onnxruntime",
            range(7, 26),
            usual=20,
            ir_version=10,
            refused={"bf16": "the CPU of ONNX Runtime has no bfloat16 kernels for most operators."},
            lifts=True,
            orders=True,
            cpu=True,
            int8={**_CPU_INT8, "symmetric": False, "outputs": True, "quantize_bias": True},
        ),
        Target(
            "onnxruntime-gpu",
            range(7, 26),
            usual=20,
            ir_version=10,
            lifts=True,
            orders=True,
            int8=_GPU_INT8,
        ),
        Target(
            "tensorrt=10",
            range(9, 21),
            usual=20,
            ir_version=10,
            refused={
                "bf16": f"it needs opset {BF16_OPSET} for convolutions, and TensorRT 10 reads up to 20.",
            },
            **_TENSORRT,
        ),
        Target(
            "tensorrt=11",
            range(9, 26),
            usual=22,
            ir_version=13,
            notes=(
                "TensorRT 11 is strongly typed: the precision is the one written into this file.",
            ),
            **_TENSORRT,
        ),
        GENERIC,
    )
}
"""Name to target; ``tensorrt`` alone is the newest."""

CHECKERS: Final = {
    "cuda": "ortboost.deploy.check_cuda:check_cuda",
    "onnxruntime": "ortboost.deploy.check_runtime:check_onnxruntime",
    "tensorrt": "ortboost.deploy.tensorrt.checker:check_release",
}
"""Target, without its version, to the function that lists what it will not accept.

The function takes the model, the target's name and the shape profiles.
"""
_SHORT: Final = {"ort": "onnxruntime", "trt": "tensorrt"}


def get_target(name: str) -> Target:
    """A target by name.

    Raises:
        UsageError: There is no such target; the nearest is named.

    Example:
        >>> get_target("tensorrt").name
        'tensorrt=11'
    """
    full = _SHORT.get(name, name)
    full = "tensorrt=11" if full == "tensorrt" else full
    if full not in TARGETS:
        raise UsageError(
            f"Unknown target '{name}'.", where="target", fix=nearest(full, (*TARGETS, "tensorrt"))
        )
    return TARGETS[full]


def get_checker(name: str) -> Callable[..., Any]:
    """The checker of a target, see :data:`CHECKERS`; any version of it may be named.

    Raises:
        UsageError: Nothing checks for it.
    """
    family = name.strip().lower().partition("=")[0]
    family = _SHORT.get(family, family)
    if family not in CHECKERS:
        raise UsageError(
            f"Nothing can check for the target '{name}'.",
            where="target",
            fix=nearest(family, CHECKERS),
        )
    module, _, function = CHECKERS[family].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def ir_version_for(opset: int, present: int, newest: int) -> int:
    """The IR version to write: what the opset needs, not above ``newest`` if that is enough."""
    needed = int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))
    return max(needed, min(present, newest))
