"""Fuse ``x clip(x + 3, 0, 6) / 6`` to HardSwish, without the first factor to HardSigmoid.

The rules are onnxscript's.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import rewriter
from onnxscript.rewriter.rules.common import fuse_hardswish_rules

from ortboost.core.report import Report
from ortboost.graph.query import count_operators

__all__ = ["fuse_hardswish"]

_OPSET = 14  # the first with HardSwish


def fuse_hardswish(model: ir.Model) -> Report:
    """Fuse, in place. Below opset 14, which lacks the operator, nothing is done."""
    report = Report("fuse_hardswish")
    before = count_operators(model)
    if model.opset_imports.get("", 0) < _OPSET or not ({"Clip", "HardSigmoid"} & before.keys()):
        return report
    rewriter.rewrite(model, fuse_hardswish_rules())
    after = count_operators(model)
    for op in ("HardSwish", "HardSigmoid"):
        if after.get(op, 0) > before.get(op, 0):
            report.changed[op] = f"{before.get(op, 0)} -> {after[op]}"
    return report
