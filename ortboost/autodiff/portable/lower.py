"""Forward operators that stock runtimes lack or run wrongly, written with others.

Before the gradients are made (:func:`empty_reductions`) and after (:func:`lower_losses`): a rule sees
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
    """Reductions over no axes (``noop_with_empty_axes``) pass their input on; runtimes fail at them."""
    rules = dict.fromkeys(_REDUCTIONS, _empty)
    return rewrite_nodes(model, "empty_reductions", rules, "reduces nothing: passes its input on")


def _empty(site: Site) -> list[ir.Value | None] | None:
    axes = site.array(1)
    absent = site.optional(1) is None or (axes is not None and axes.size == 0)
    if site.integer("noop_with_empty_axes", 0) and absent:
        return [site.op("Identity", site.input(0), shape=site.input(0).shape)]
    return None


def lower_losses(model: ir.Model) -> Report:
    """Losses as operators that every runtime has kernels for, in place.

    onnxruntime expands them itself, but its form has twice the nodes, and is nan where no label
    counts; ours is 0 there, as is the loss of onnxruntime-training.
    """
    return rewrite_nodes(model, "lower_losses", LOWERINGS, "written out for stock runtimes")
