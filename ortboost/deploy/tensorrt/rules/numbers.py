"""Values that half precision cannot represent, and operators that lose precision in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.deploy.findings import Finding, info, warn
from ortboost.deploy.rewrites.clamp_infinite import FP16_MAX
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import all_tensors

__all__: list[str] = []

_FRAGILE: Final = (
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("LpNormalization", "Softmax", "LogSoftmax", "Exp", "Pow", "ReduceSum", "ReduceMean"),
    *("ReduceProd", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"),
)


@rule("TRT036", "infinities and values beyond float16")
def ranges(context: Context) -> Iterator[Finding]:
    """Masks of ``-inf`` or ``-1e12`` become NaN or -inf in half precision."""
    for value, _ in all_tensors(context.model):
        numbers = context.floats(value)
        if numbers is None or not numbers.size:
            continue
        if np.isnan(numbers).any():
            yield warn(value, "It contains NaN.", "Check how it was trained.")
        infinite = int(np.isinf(numbers).sum())
        if infinite:
            yield warn(
                value,
                f"It contains {infinite} infinite values: inf - inf and 0 * inf are NaN.",
                "Use -65504 in masks: ortboost check --fix does.",
                fixable=True,
            )
        finite = np.abs(numbers[np.isfinite(numbers)])
        if value.dtype == ir.DataType.FLOAT16:
            small = (finite > 0) & (finite < 2.0**-14)
            if small.any() and small.sum() * 2 > finite.size:
                yield warn(
                    value,
                    "More than half of it is subnormal in float16: precision is lost.",
                    "Keep this tensor and its operator in FLOAT.",
                )
        elif value.dtype != ir.DataType.BFLOAT16 and finite.size and finite.max() > FP16_MAX:
            yield info(
                value,
                f"Its largest value, {finite.max():.3g}, does not fit in float16.",
                "Keep its operator in FLOAT if the rest goes to float16.",
            )


@rule("TRT037", "operators that lose precision in float16")
def fragile(context: Context) -> Iterator[Finding]:
    """Normalizations, softmax, exp, pow and sums in half precision."""
    for node in context.standard(*_FRAGILE):
        first = next((value for value in node.inputs if value is not None), None)
        if first is None or first.dtype != ir.DataType.FLOAT16:
            continue
        yield warn(
            node,
            "It runs in float16, where it may overflow or lose precision.",
            "Keep it in FLOAT with casts around it: ortboost export --precision fp16 does.",
        )
