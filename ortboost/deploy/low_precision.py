"""The precision of an exported graph: casts are inserted, and some parts stay in float32.

:mod:`ortboost.transforms.precision` places the casts, and :mod:`ortboost.deploy.int8` the
QuantizeLinear/DequantizeLinear pairs. This module adds the measured ranges, the opset that bfloat16
needs, and the treatment of constants beyond the range of float16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.int8.quantize import quantize_int8
from ortboost.deploy.pipeline import Step
from ortboost.deploy.rewrites.clamp_infinite import clamp_infinite
from ortboost.deploy.rewrites.guard_scales import guard_scales
from ortboost.deploy.rewrites.separate_transposes import separate_transposes
from ortboost.deploy.targets import BF16_OPSET, Target
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.transforms.precision import PrecisionConfig, place_precision

__all__ = ["LowPrecision", "precision_steps"]

_MARGIN = 2.0
"""Later data may exceed the ranges of the calibration data: twice the range has to fit."""


@dataclass(frozen=True)
class LowPrecision:
    """How to convert a graph to a lower precision.

    Args:
        precision: ``fp16``, ``bf16`` or ``int8``.
        keep_io_types: Keep inputs and outputs of the model in float32.
        ranges: Intermediate tensor to its largest magnitude on the calibration data.
        calibration: The calibration data, required for int8.
        int8: How to quantize; the target's defaults if not given.
    """

    precision: str
    keep_io_types: bool = True
    ranges: Mapping[str, float] = field(default_factory=dict)
    calibration: Sequence[Mapping[str, NDArray[Any]]] = ()
    int8: Int8Config | None = None


def precision_steps(how: LowPrecision, target: Target) -> list[Step]:
    """The steps that convert a graph to a lower precision.

    Raises:
        UsageError: int8 without calibration data.
    """
    if how.precision == "int8":
        if not how.calibration:
            raise UsageError(
                "int8 needs calibration data to measure the ranges of the activations.",
                where="--precision int8",
                fix="Give --calib DATA: a few hundred representative samples.",
            )
        int8 = how.int8 or Int8Config.for_target(target.name)
        return [Step("quantize_int8", lambda model: quantize_int8(model, how.calibration, int8))]
    config = PrecisionConfig(
        compute="bf16" if how.precision == "bf16" else "fp16", keep_io_types=how.keep_io_types
    )
    # 16-bit floats: the casts, then what they make necessary.
    ranges = {name: largest * _MARGIN for name, largest in how.ranges.items()}
    place = Step(
        "place_precision",
        lambda model: place_precision(model, config, weights="stored", ranges=ranges),
    )
    if how.precision == "bf16":
        return [Step("bf16_opset", _lift_for_bf16), place]
    return [
        place,
        Step("clamp_infinite", clamp_infinite),  # made by casting constants to float16
        Step("separate_transposes", separate_transposes),
        Step("guard_scales", guard_scales),
    ]


def _lift_for_bf16(model: ir.Model) -> Report:
    """Raise the opset: convolutions and most other operators accept bfloat16 from opset 22 on."""
    if model.opset_imports.get("", 0) >= BF16_OPSET:
        return Report("bf16_opset")
    report = convert_opset(model, range(BF16_OPSET, BF16_OPSET + 1))
    report.rewrite = "bf16_opset"
    return report
