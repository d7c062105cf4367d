"""The targets of exported graphs: one table of what each accepts and prefers.

A new target is a row of :data:`TARGETS`. A function that lists what it would reject goes into
:data:`CHECKERS`.

The ranges of TensorRT are those of its release notes (10.x: opset 9 to 20; 11.x: 9 to 25, read with
ONNX 1.20). ONNX Runtime reads every opset up to that of its release. All releases from 1.18 on read
21; newer opsets must be requested with ``--opset``, and an older runtime rejects them at the
comparison.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import onnx

from ortboost.core.errors import UsageError, require_known

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
"""Precisions of an exported file."""
BF16_OPSET: Final = 22
"""First opset in which Conv and most other operators accept bfloat16."""


@dataclass(frozen=True)
class Target:
    """A runtime or device that an exported graph is made for.

    Args:
        name: Name on the command line.
        opsets: Supported versions of the standard domain.
        ir_version: Newest supported IR version.
        lifts_to: Newest opset that a model may be raised to for an operator that saves nodes; 0 to
            keep its opset.
        refused: Precision to the reason why it is refused.
        keeps_fused: Whether it runs the fused operators of ``com.microsoft``; for others they are
            written out.
        guards_pads: Whether a Pad must be guarded against wrong fusions of ONNX Runtime.
        orders_gelu: Whether to write Gelu in the order of operands that ONNX Runtime fuses.
        cpu: Whether it is the CPU of ONNX Runtime, which has fusions that do not pay off.
        notes: Advice shown with the export.
        int64_note: Further advice if inputs or outputs are 64-bit integers.
        int8: Defaults of :class:`ortboost.deploy.int8.config.Int8Config` for it, ``reduce_range``
            among them.
    """

    name: str
    opsets: range
    ir_version: int
    lifts_to: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)
    keeps_fused: bool = False
    guards_pads: bool = True
    orders_gelu: bool = False
    cpu: bool = False
    notes: tuple[str, ...] = ()
    int64_note: str = ""
    int8: Mapping[str, bool] = field(default_factory=dict)

    def require(self, precision: str = "fp32", opset: int | None = None) -> None:
        """Refuse incompatible options.

        Raises:
            UsageError: The precision is unknown or refused by the target, or the opset is out of
                range.
        """
        require_known(precision, PRECISIONS, f"Unknown precision '{precision}'.", "precision")
        reason = self.refused.get(precision)
        if reason is not None:
            raise UsageError(
                f"The target '{self.name}' does not support precision {precision}: {reason}",
                where=f"--target {self.name} --precision {precision}",
                fix=f"Use {' or '.join(p for p in PRECISIONS if p not in self.refused)}, or "
                "another target.",
            )
        if opset is not None and opset not in self.opsets:
            raise UsageError(
                f"The target '{self.name}' does not support opset {opset}.",
                where=f"--target {self.name} --opset {opset}",
                fix=f"Use opset {self.opsets[0]} to {self.opsets[-1]}, or another target.",
            )
        if precision == "bf16" and (opset or BF16_OPSET) < BF16_OPSET:
            raise UsageError(
                f"Opset {opset} has no bfloat16 convolutions.",
                where="--precision bf16",
                fix=f"Use --opset {BF16_OPSET} or newer.",
            )


# 7-bit weights give the same results on x86 processors with and without VNNI; GPUs use 8 bits.
_CPU_INT8: Final = {"reduce_range": True}
_GPU_INT8: Final = {"reduce_range": False}
_TENSORRT: Final[dict[str, Any]] = {
    "guards_pads": False,
    "int64_note": "TensorRT keeps INT64 inputs and outputs: bind int64 arrays to them.",
    "int8": {**_GPU_INT8, "residual": True},
}

GENERIC: Final = Target("generic", range(7, 26), ir_version=13, int8=_CPU_INT8)

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        Target(
            "onnxruntime",
            range(7, 26),
            ir_version=10,
            lifts_to=20,
            refused={"bf16": "the CPU of ONNX Runtime has no bfloat16 kernels for most operators."},
            keeps_fused=True,
            orders_gelu=True,
            cpu=True,
            int8={
                **_CPU_INT8,
                **dict.fromkeys(("outputs", "quantize_bias", "recurrent"), True),
                "symmetric": False,
            },
        ),
        Target(
            "onnxruntime-gpu",
            range(7, 26),
            ir_version=10,
            lifts_to=20,
            keeps_fused=True,
            orders_gelu=True,
            int8=_GPU_INT8,
        ),
        Target(
            "tensorrt=10",
            range(9, 21),
            ir_version=10,
            lifts_to=20,
            refused={
                "bf16": f"it needs opset {BF16_OPSET} for convolutions, and TensorRT 10 supports "
                "up to 20."
            },
            **_TENSORRT,
        ),
        Target(
            "tensorrt=11",
            range(9, 26),
            ir_version=13,
            lifts_to=22,
            notes=(
                "TensorRT 11 is strongly typed: the precision is the one written into this file.",
            ),
            **_TENSORRT,
        ),
        GENERIC,
    )
}
"""Name to target; plain ``tensorrt`` is the newest."""

CHECKERS: Final = {
    "cuda": "ortboost.deploy.check_cuda:check_cuda",
    "onnxruntime": "ortboost.deploy.check_runtime:check_onnxruntime",
    "tensorrt": "ortboost.deploy.tensorrt.checker:check_tensorrt",
}
"""Target without version to the function that lists what it would reject.

The arguments are the model, the name of the target and the shape profiles.
"""
_ALIASES: Final = {"ort": "onnxruntime", "trt": "tensorrt=11", "tensorrt": "tensorrt=11"}


def get_target(name: str) -> Target:
    """Look up a target by name.

    Raises:
        UsageError: The target is unknown; the message suggests the nearest.

    Example:
        >>> get_target("tensorrt").name
        'tensorrt=11'
    """
    full = _ALIASES.get(name, name)
    require_known(full, (*TARGETS, "tensorrt"), f"Unknown target '{name}'.", "target")
    return TARGETS[full]


def get_checker(name: str) -> Callable[..., Any]:
    """Look up the checker of a target (see :data:`CHECKERS`), of any version.

    Raises:
        UsageError: The target has no checker.
    """
    short = name.strip().lower().partition("=")[0]
    family = _ALIASES.get(short, short).partition("=")[0]
    require_known(family, CHECKERS, f"The target '{name}' has no checker.", "target")
    module, _, function = CHECKERS[family].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def ir_version_for(opset: int, present: int, newest: int) -> int:
    """The IR version to write: what the opset needs, not above ``newest`` if that is enough."""
    needed = int(onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))
    return max(needed, min(present, newest))
