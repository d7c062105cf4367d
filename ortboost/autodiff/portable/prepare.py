"""Rewrites of a forward graph into a form that the rules and stock runtimes support.

Each rewrite is ``name(model) -> Report``: in place, equivalent, idempotent.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.engine import run_rewrites
from ortboost.autodiff.padding import explicit_padding
from ortboost.autodiff.portable.lower import empty_reductions
from ortboost.autodiff.portable.rewrites.batch_norm import batch_statistics
from ortboost.autodiff.portable.rewrites.dimensions import name_equal_lengths
from ortboost.autodiff.portable.rewrites.functions import expand_functions
from ortboost.autodiff.portable.rewrites.normalization import complete_normalizations
from ortboost.autodiff.portable.rewrites.recurrent import unrolled
from ortboost.autodiff.portable.rewrites.scatter import exact_scatter
from ortboost.core.report import Report

__all__ = ["REWRITES", "prepare"]

# In this order: what one writes may contain operators of those after it, not before it.
REWRITES: tuple[Callable[[ir.Model], Report], ...] = (
    expand_functions,
    unrolled,
    exact_scatter,
    explicit_padding,
    empty_reductions,
    batch_statistics,
    complete_normalizations,
)


def prepare(model: ir.Model) -> list[Report]:
    """Run all rewrites in order; return the reports of those that changed or refused a node."""
    reports = run_rewrites(model, REWRITES)
    name_equal_lengths(model)  # last: it reads the shapes of what was written
    return reports
