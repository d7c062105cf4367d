"""Raise the opset if an operator of a newer one saves nodes."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.deploy.rewrites.fuse_gelu import count_gelus
from ortboost.deploy.rewrites.fuse_hardswish import count_hardswishes
from ortboost.deploy.rewrites.fuse_layer_norm import count_layer_norms
from ortboost.graph.opsets.convert_opset import convert_opset

__all__ = ["lift_opset"]

_NEWER: Final = (
    (20, "Gelu", count_gelus),
    (17, "LayerNormalization", count_layer_norms),
    (14, "HardSwish", count_hardswishes),
)


def lift_opset(model: ir.Model, *, limit: int) -> Report:
    """Convert to the opset of an operator that the model has as several nodes, in place.

    Of several operators the newest within ``limit`` decides.

    Returns:
        The report. A model that cannot be converted keeps its opset.
    """
    report = Report("lift_opset")
    opset = model.opset_imports.get("", limit)
    for since, op_type, count in _NEWER:
        found = count(model) if opset < since <= limit else 0
        if not found:
            continue
        trial = model.clone()  # a conversion that fails would leave the model half converted
        try:
            convert_opset(trial, range(since, since + 1))
        except ModelError as error:
            report.kept["model"] = error.what
            continue
        convert_opset(model, range(since, since + 1))
        report.changed["model"] = f"opset {opset} -> {since}, for {found} {op_type}"
        break
    return report
