"""Replacement of forward operators that stock runtimes lack or run incorrectly.

:func:`empty_reductions` runs before differentiation, :func:`lower_losses` after it: the gradient
rules see the loss as one operator, the runtime never does.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.conditions import reduced_axes
from ortboost.autodiff.portable.rules.losses import LOWERINGS
from ortboost.core.report import Report
from ortboost.graph.rewriting import Site, rewrite_nodes, rewrites

__all__ = ["empty_reductions", "lower_losses"]

_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


@rewrites(*_REDUCTIONS, what="reduces no axis: replaced by Identity")
def empty_reductions(site: Site) -> list[ir.Value | None] | None:
    """Bypass reductions over no axes (``noop_with_empty_axes``), on which runtimes fail."""
    if reduced_axes(site) != ():
        return None
    return [site.op("Identity", site.input(0), shape=site.input(0).shape)]


def lower_losses(model: ir.Model) -> Report:
    """Replace losses by operators that every runtime has kernels for, in place.

    onnxruntime expands losses itself, but into twice the nodes, and to NaN if all labels are
    ignored; here the loss is 0 in that case, as in onnxruntime-training.
    """
    return rewrite_nodes(model, "lower_losses", LOWERINGS, "written out for stock runtimes")
