"""Rewrites of a graph into a form that the native builder supports.

Each rewrite is ``name(model) -> Report``: in place, equivalent, idempotent. There is one file per
kind of problem.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.autodiff.engine import run_rewrites
from ortboost.autodiff.masked_rows import finite_masked_rows
from ortboost.autodiff.native.rewrites.batch_norm import frozen_batch_norm, guarded_statistics
from ortboost.autodiff.native.rewrites.broadcasting import expanded_branches
from ortboost.autodiff.native.rewrites.forms import ordinary_forms
from ortboost.autodiff.native.rewrites.outputs import complete_nodes
from ortboost.autodiff.padding import explicit_padding
from ortboost.core.report import Report

__all__ = ["REWRITES", "prepare"]

# Padding first: the forms of pools and convolutions are written with explicit pads.
REWRITES: tuple[Callable[[ir.Model], Report], ...] = (
    explicit_padding,
    finite_masked_rows,
    frozen_batch_norm,
    guarded_statistics,
    complete_nodes,
    ordinary_forms,
    expanded_branches,
)


def prepare(model: ir.Model) -> list[Report]:
    """Run all rewrites in order; return the reports of those that changed or refused a node."""
    return run_rewrites(model, REWRITES)
