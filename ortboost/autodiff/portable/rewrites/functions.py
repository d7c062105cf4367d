"""Expansion of operators that the standard defines by others (Attention, ...)."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.autodiff.portable.registry import find_rule
from ortboost.core.report import Report
from ortboost.graph.normal_form.fold_integers import fold_integers
from ortboost.graph.opsets.function_bodies import expand_by_definition
from ortboost.graph.rewriting import rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["EXPANDED", "expand_functions"]

EXPANDED = ("Attention", "CenterCropPad", "RotaryEmbedding")
"""Operators that are expanded, unless a rule for them was registered."""


def expand_functions(model: ir.Model) -> Report:
    """Replace each node of :data:`EXPANDED` by its function body in the standard, in place."""
    report = rewrite_nodes(
        model,
        "expand_functions",
        dict.fromkeys(EXPANDED, expand_by_definition),
        "expanded as defined by the standard",
        only=lambda node: find_rule(node) is None,
    )
    if report.modified:
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        infer_shapes(model)
        if fold_integers(model).modified:  # sizes and axes, on which other shapes depend
            infer_shapes(model)
    return report
