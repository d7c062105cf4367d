"""What the native builder needs a graph to look like; one rewrite a file.

Each rewrite is ``name(model) -> Report``: in place, the same function computed, idempotent.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.report import Report

__all__ = ["REWRITES", "prepare"]

REWRITES = ()


def prepare(model: ir.Model) -> list[Report]:
    """Run all rewrites in order; the reports of those that changed or refused something."""
    reports = [rewrite(model) for rewrite in REWRITES]
    return [report for report in reports if report.changed or report.kept]
