"""Swish from opset 25 on as ``x sigmoid(alpha x)``.

onnxruntime (1.31.1) has no kernel for Swish, only the definition of opset 24, which it does not
find where other operators of the definition, such as CastLike, are newer.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["write_out_swish"]

_DEFINED = 24  # the opset whose Swish onnxruntime runs


def write_out_swish(model: ir.Model) -> Report:
    """Replace each Swish of the main graph, in place; up to opset 24 nothing is done."""
    if model.opset_imports.get("", 0) <= _DEFINED:
        return Report("write_out_swish")
    return rewrite_nodes(model, "write_out_swish", {"Swish": _swish}, "x sigmoid(alpha x)")


def _swish(site: Site) -> list[ir.Value | None]:
    x, alpha = site.input(0), site.number("alpha", 1.0)
    form = {"dtype": x.dtype, "shape": x.shape}
    scaled = x if alpha == 1.0 else site.op("Mul", x, site.const(alpha), **form)
    return [site.op("Mul", x, site.op("Sigmoid", scaled, **form), **form)]
