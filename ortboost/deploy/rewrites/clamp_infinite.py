"""Replace infinities in stored tensors by +-65504, the largest finite float16.

Masks contain ``-inf``, or the lowest float32, which float16 cannot represent. ``-65504`` has the
same effect without ``inf - inf``. A fully masked row of scores then averages where it gave NaN
before; the comparison after the export shows it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import all_tensors

__all__ = ["FP16_MAX", "clamp_infinite"]

FP16_MAX: Final = 65504.0
"""Largest finite value of float16."""


def clamp_infinite(
    model: ir.Model, dtypes: Collection[ir.DataType] = (ir.DataType.FLOAT16,)
) -> Report:
    """Replace infinities in stored tensors of the given types, in place; NaN is kept."""
    report = Report("clamp_infinite")
    for value, tensor in list(all_tensors(model)):
        if tensor.dtype not in dtypes:
            continue
        array = np.asarray(tensor.numpy())
        infinite = np.isinf(array.astype(np.float64))
        if not infinite.any():
            continue
        largest = array.dtype.type(FP16_MAX)
        fixed = np.where(infinite, np.where(array > 0, largest, -largest), array)
        value.const_value = ir.tensor(fixed.astype(array.dtype), name=value.name)
        numbers = f"{int(infinite.sum())} infinite values"
        report.changed[value.name or "?"] = f"{numbers} became +-{FP16_MAX:.0f}"
    return report
