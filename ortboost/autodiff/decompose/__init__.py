"""Decomposition of operators without a gradient into operators that have one.

There is one file per family; the docstring of a rule states its formula. A node is decomposed only
if :meth:`~ortboost.autodiff.engine.Engine.gradient_support` of the engine rejects it and a gradient
must flow through it. Before, clamps in front of an infinite slope are rewritten
(:mod:`ortboost.autodiff.clamps`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from ortboost.autodiff.clamps import clamps_by_selection
from ortboost.autodiff.decompose.registry import DECOMPOSITIONS
from ortboost.autodiff.engine import Engine
from ortboost.core.report import Report
from ortboost.graph.reach import reach
from ortboost.graph.rewriting import rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_missing

__all__ = ["DECOMPOSITIONS", "decompose"]

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)  # registers its rules


def decompose(
    model: ir.Model, *, wrt: Iterable[str], loss: str | Iterable[str], engine: Engine
) -> Report:
    """Decompose the nodes that the engine cannot differentiate, in place.

    The model is normalized, its shapes inferred, its loss attached; ``wrt`` are the names of the
    tensors that need gradients, ``loss`` that of the loss, or of outputs that it is computed from.
    The report has the decomposed nodes, and those kept with the reason. The rewrite is idempotent.
    """
    # First: some formulas hide an infinite slope, as that of Acos in the native engine.
    total = replace(clamps_by_selection(model), rewrite="decompose")
    if total.modified:
        infer_missing(model)
    sources = list(wrt)
    targets = [loss] if isinstance(loss, str) else list(loss)
    # A rule may use operators without a gradient themselves; no rule needs more rounds.
    for _ in range(4):
        reached = {id(node) for node in reach(model, sources, targets).nodes}
        report = rewrite_nodes(
            model,
            "decompose",
            DECOMPOSITIONS,
            "decomposed",
            only=lambda node, reached=reached: (  # type: ignore[misc]
                id(node) in reached and engine.gradient_support(node) is not None
            ),
        )
        total.changed.update(report.changed)
        total.kept = report.kept  # of the last round: what was refused before may be done now
        if not report.modified:
            break
        infer_missing(model)
    return total
