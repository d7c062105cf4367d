"""Replacement of losses, for which stock runtimes lack kernels or run them incorrectly.

It runs after differentiation: the gradient rules see the loss as one operator, the runtime never
does.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.portable.rules.losses import LOWERINGS
from ortboost.core.report import Report
from ortboost.graph.rewriting import rewrite_nodes

__all__ = ["lower_losses"]


def lower_losses(model: ir.Model, only: Callable[[ir.Node], bool] = lambda _: True) -> Report:
    """Replace losses by operators that every runtime has kernels for, in place.

    onnxruntime expands losses itself, but into twice the nodes, and to NaN if all labels are
    ignored; here the loss is 0 in that case, as in onnxruntime-training.

    Args:
        model: The model.
        only: Which losses; all by default.
    """
    what = "written out for stock runtimes"
    return rewrite_nodes(model, "lower_losses", LOWERINGS, what, only=only)
