"""Operators without a gradient, written with operators that have one.

One file for each family; the docstring of a rule is its algebra. The engine decides which rules are
used: only operators that :meth:`~ortboost.autodiff.engine.Engine.gradient_support` refuses are
decomposed, and only where a gradient must flow.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import onnx_ir as ir

from ortboost.autodiff.decompose.registry import DECOMPOSITIONS
from ortboost.autodiff.engine import Engine
from ortboost.core.report import Report
from ortboost.graph.reach import reach
from ortboost.graph.rewriting import rewrite_nodes
from ortboost.graph.shape_inference import infer_missing

__all__ = ["DECOMPOSITIONS", "decompose"]

for _family in (
    *("activations", "einsum", "grid_sample", "layouts", "normalizations", "reductions"),
    *("resize", "trigonometry"),
):
    importlib.import_module(f"{__name__}.{_family}")  # its rules enter themselves


def decompose(
    model: ir.Model, *, wrt: Iterable[str], loss: str | Iterable[str], engine: Engine
) -> Report:
    """Decompose what the engine cannot differentiate, in place.

    Args:
        model: Model with its loss attached, normalized, shapes inferred where they can be.
        wrt: Names of the tensors that need gradients.
        loss: Name of the loss, or of several outputs that it is computed from.
        engine: Engine that will differentiate the model.

    Returns:
        Nodes decomposed, and nodes kept with the reason why the rule does not apply. A second call
        changes nothing.
    """
    # A rule may use an operator that has no gradient either: at most a few rounds.
    total = Report("decompose")
    sources = list(wrt)
    targets = [loss] if isinstance(loss, str) else list(loss)
    for _ in range(4):
        wanted = {id(node) for node in reach(model, sources, targets).nodes}
        report = rewrite_nodes(
            model,
            "decompose",
            DECOMPOSITIONS,
            "decomposed",
            only=lambda node, wanted=wanted: (  # type: ignore[misc]
                id(node) in wanted and engine.gradient_support(node) is not None
            ),
        )
        total.changed.update(report.changed)
        total.kept = report.kept
        if not report.modified:
            break
        infer_missing(model)
    return total
