"""Keep models with AveragePool at an opset whose kernel is fast on CPUs."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.query import is_standard

__all__ = ["FAST_POOLS", "has_pools", "keep_fast_pools"]

FAST_POOLS: Final = 18
"""AveragePool of opset 19 has dilations: its CPU kernel in onnxruntime (1.19 and 1.32) takes 3 to
13 times as long, with and without them."""


def has_pools(model: ir.Model) -> bool:
    """Whether the model has an AveragePool."""
    return any(n.op_type == "AveragePool" and is_standard(n) for n in model.graph.all_nodes())


def keep_fast_pools(model: ir.Model, *, expand: bool = True) -> Report:
    """Convert a model of a newer opset that has an AveragePool to :data:`FAST_POOLS`, in place.

    Args:
        model: The model.
        expand: Whether a Gelu, which the older opset lacks, is written out: runtimes fuse it again.
            Other operators that it lacks would lose their kernels.

    Returns:
        The report. A model that cannot be converted keeps its opset.
    """
    report = Report("keep_fast_pools")
    opset = model.opset_imports.get("", 0)
    if opset <= FAST_POOLS or not has_pools(model):
        return report
    opsets, trial = range(FAST_POOLS, FAST_POOLS + 1), model.clone()
    try:
        convert_opset(trial, opsets)  # a failure would leave the model half converted
    except ModelError as error:
        report.kept["model"] = error.what
        return report
    left = {node.op_identifier() for node in trial.graph.all_nodes()}
    lost = [node for node in model.graph.all_nodes() if node.op_identifier() not in left]
    if not all(expand and _is_exact_gelu(node) for node in lost):
        return report
    convert_opset(model, opsets)
    report.changed["model"] = f"opset {opset} -> {FAST_POOLS}, whose AveragePool is faster"
    return report


def _is_exact_gelu(node: ir.Node) -> bool:
    return node.op_type == "Gelu" and node.attributes.get_string("approximate", "none") == "none"
