"""Forward operators that stock runtimes lack or run wrongly, written with others.

:func:`empty_reductions` runs before the gradients are made, :func:`lower_losses` after: a rule sees
the loss as one operator, the runtime never does.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rules.losses import LOWERINGS
from ortboost.core.report import Report
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["empty_reductions", "lower_losses"]

_REDUCTIONS = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def empty_reductions(model: ir.Model) -> Report:
    """Bypass reductions over no axes (``noop_with_empty_axes``), at which runtimes fail."""
    rules = dict.fromkeys(_REDUCTIONS, _empty)
    return rewrite_nodes(model, "empty_reductions", rules, "reduces nothing: passes its input on")


def _empty(site: Site) -> list[ir.Value | None] | None:
    axes = site.array(1)
    absent = site.optional(1) is None or (axes is not None and axes.size == 0)
    if site.integer("noop_with_empty_axes", 0) and absent:
        return [site.op("Identity", site.input(0), shape=site.input(0).shape)]
    return None


def lower_losses(model: ir.Model) -> Report:
    """Write losses with operators that every runtime has kernels for, in place.

    onnxruntime expands losses itself, but into twice the nodes, and into nan if no label counts;
    here the loss is then 0, as in onnxruntime-training.
    """
    return rewrite_nodes(model, "lower_losses", LOWERINGS, "written out for stock runtimes")
