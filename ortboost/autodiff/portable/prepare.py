"""Rewrites of a forward graph into a form that the rules and stock runtimes support.

Each rewrite is ``name(model) -> Report``: in place, equivalent, idempotent.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import get_engine, run_rewrites
from ortboost.autodiff.masked_rows import finite_masked_rows
from ortboost.autodiff.padding import explicit_padding
from ortboost.autodiff.portable.registry import own_operators, unused_rules
from ortboost.autodiff.portable.rewrites.batch_norm import batch_statistics
from ortboost.autodiff.portable.rewrites.bodies import prepare_bodies
from ortboost.autodiff.portable.rewrites.functions import expand_functions
from ortboost.autodiff.portable.rewrites.normalization import complete_normalizations
from ortboost.autodiff.portable.rewrites.recurrent import recurrent_to_scan
from ortboost.autodiff.portable.rewrites.scatter import exact_scatter
from ortboost.core.report import Report
from ortboost.graph.normal_form.empty_reductions import empty_reductions
from ortboost.graph.normal_form.fold_integers import fold_integers
from ortboost.graph.normal_form.inline_branches import inline_branches
from ortboost.graph.normal_form.unchanged_states import capture_unchanged_states
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.shapes.symbolic_shapes import name_lengths

__all__ = ["REWRITES", "prepare"]

# The order matters: the nodes that a rewrite creates may need later rewrites, but no earlier ones.
REWRITES: tuple[Callable[[ir.Model], Report], ...] = (
    expand_functions,
    finite_masked_rows,
    recurrent_to_scan,
    capture_unchanged_states,
    exact_scatter,
    explicit_padding,
    empty_reductions,
    batch_statistics,
    complete_normalizations,
)


def prepare(model: ir.Model) -> list[Report]:
    """Run all rewrites in order, also in the bodies of If, Loop and Scan.

    Returns:
        The reports of the rewrites that changed or refused a node.
    """
    operators = own_operators(model)
    reports = run_rewrites(model, REWRITES)
    bodies = prepare_bodies(model, _decompose_and_prepare)
    name_lengths(model)  # last: it reads the shapes of what was written
    last = (bodies, unused_rules(operators, model))
    return [*reports, *(report for report in last if report.changed or report.notes)]


def _decompose_and_prepare(body: ir.Model) -> bool:
    """Decompose and prepare a body; returns whether it changed.

    The nodes of the main graph were decomposed before, but not those of bodies.
    """
    # Some axes, sizes and branches are known only now that the shapes of the body are.
    while fold_integers(body).modified | inline_branches(body).modified:
        infer_shapes(body)
    wrt, results = ([v.name or "" for v in vs] for vs in (body.graph.inputs, body.graph.outputs))
    decomposed = decompose(body, wrt=wrt, loss=results, engine=get_engine("portable"))
    return any(report.modified for report in (decomposed, *prepare(body)))
