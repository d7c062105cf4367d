"""Raise the opset if an operator of the newer one saves nodes: Gelu, from opset 20 on."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.deploy.rewrites.fuse_gelu import count_gelus
from ortboost.graph.convert_opset import convert_opset

__all__ = ["lift_opset"]

_GELU = 20


def lift_opset(model: ir.Model, *, limit: int) -> Report:
    """Convert to opset 20, in place, if the model has an unfused Gelu and ``limit`` allows it.

    Returns:
        The report. A model that cannot be converted keeps its opset.
    """
    report = Report("lift_opset")
    opset = model.opset_imports.get("", _GELU)
    if opset >= _GELU or limit < _GELU:
        return report
    found = count_gelus(model)
    if not found:
        return report
    trial = model.clone()  # a conversion that fails would leave the model half converted
    try:
        convert_opset(trial, range(_GELU, _GELU + 1))
    except ModelError as error:
        report.kept["model"] = error.what
        return report
    convert_opset(model, range(_GELU, _GELU + 1))
    report.changed["model"] = f"opset {opset} -> {_GELU}, for {found} Gelu"
    return report
