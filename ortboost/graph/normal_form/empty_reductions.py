"""Reductions over no axes, ``noop_with_empty_axes = 1``: replaced by what they do to each element.

onnxruntime 1.19.2 fails on them. The reference implementation of onnx and onnxruntime 1.31.1 agree
that only the summation is left out: ``ReduceSumSquare`` still squares.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["empty_reductions"]

_SAME = ("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def empty_reductions(model: ir.Model) -> Report:
    """Replace reductions over no axes, in place; axes that the graph computes are left alone."""
    return rewrite_nodes(model, "empty_reductions", _RULES, "reduces no axis: element by element")


def _elementwise(op: str, inputs: int = 1) -> Callable[[Site], list[ir.Value | None] | None]:
    def rule(site: Site) -> list[ir.Value | None] | None:
        axes = site.array(1)
        empty = site.optional(1) is None if axes is None else not axes.size
        if not (empty and site.integer("noop_with_empty_axes", 0)):
            return None
        x = site.input(0)
        return [site.op(op, *[x] * inputs, dtype=x.dtype, shape=x.shape)]

    return rule


_RULES = {
    **dict.fromkeys(_SAME, _elementwise("Identity")),
    "ReduceL1": _elementwise("Abs"),
    "ReduceL2": _elementwise("Abs"),  # sqrt(x^2)
    "ReduceLogSum": _elementwise("Log"),
    "ReduceSumSquare": _elementwise("Mul", inputs=2),
}
