"""Removal of identity Transposes, which onnxruntime 1.19 fuses wrongly into a Gemm."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import all_nodes, is_read

__all__ = ["bypass_identity_transposes"]


def bypass_identity_transposes(model: ir.Model) -> Report:
    """Bypass each Transpose that keeps the order of the axes, in place.

    GemmTransposeFusion of onnxruntime 1.19.2 ignores ``perm``: it replaces ``Gemm(Transpose(x,
    perm=[0, 1]), w)`` by ``Gemm(x, w, transA=1)``, which fails if `x` is not square and gives wrong
    results if it is. torch's dynamo exporter writes such nodes for advanced indexing. onnxruntime
    1.31.1 is correct. A node that computes a graph output is kept.
    """
    report = Report("bypass_identity_transposes")
    for node in list(all_nodes(model.graph)):
        perm = node.attributes.get_ints("perm", ()) if node.op_type == "Transpose" else ()
        source = node.inputs[0] if perm else None
        if source is None or list(perm) != list(range(len(perm))):
            continue
        for usage in list(node.outputs[0].uses()):
            usage.node.replace_input_with(usage.idx, source)
            report.changed[node.name or ""] = "keeps the order of the axes"
        if node.graph is not None and not is_read(node.outputs[0]):
            node.graph.remove(node, safe=True)
    return report
