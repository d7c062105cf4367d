"""The rewrites that optimize an inference graph, and their order, as tables.

Fusions that runtimes do better themselves are left to them: activations into convolutions, the
scale of attention scores, MatMul with bias in more than two dimensions, residual sums into
normalizations.

Each rewrite is a function ``(model, target) -> Report`` that works in place. :func:`optimize`
records every step, so that a faulty one can be found by replaying them
(:func:`ortboost.deploy.write_verified.faulty_step`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.fold_bn import fold_bn
from ortboost.deploy.fold_full_norm import fold_full_norm
from ortboost.deploy.rewrites.common_subexpressions import common_subexpressions
from ortboost.deploy.rewrites.dead_code import dead_code
from ortboost.deploy.rewrites.drop_noops import drop_noops
from ortboost.deploy.rewrites.drop_zero_states import drop_zero_states
from ortboost.deploy.rewrites.fold_affine import fold_affine
from ortboost.deploy.rewrites.fold_broadcast import fold_broadcast
from ortboost.deploy.rewrites.fold_constants import fold_constants
from ortboost.deploy.rewrites.fold_forward import fold_forward
from ortboost.deploy.rewrites.fuse_gelu import fuse_gelu
from ortboost.deploy.rewrites.fuse_gemm import fuse_gemm
from ortboost.deploy.rewrites.fuse_hardswish import fuse_hardswish
from ortboost.deploy.rewrites.fuse_layer_norm import fuse_layer_norm
from ortboost.deploy.rewrites.fuse_matmul_n_bits import fuse_matmul_n_bits
from ortboost.deploy.rewrites.fuse_pad import fuse_pad
from ortboost.deploy.rewrites.lift_opset import lift_opset
from ortboost.deploy.rewrites.merge_casts import merge_casts
from ortboost.deploy.rewrites.merge_low_rank import merge_low_rank
from ortboost.deploy.rewrites.merge_neighbours import merge_neighbours
from ortboost.deploy.rewrites.merge_transposes import merge_transposes
from ortboost.deploy.rewrites.merge_views import merge_views
from ortboost.deploy.rewrites.split_skip_norm import split_skip_norm
from ortboost.deploy.targets import GENERIC, Target
from ortboost.graph.checked_rewrites import check_rewritten
from ortboost.graph.normal_form.unchanged_states import capture_unchanged_states
from ortboost.graph.opsets.fast_pools import FAST_POOLS, has_pools, keep_fast_pools
from ortboost.graph.shapes.declared_shapes import (
    declared_shapes,
    forget_declared,
    restore_declared,
)
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.shapes.static_shapes import static_shapes

__all__ = ["REWRITES", "STAGES", "Rewrite", "Step", "optimize"]

Rewrite: TypeAlias = Callable[[ir.Model, Target], Report]

_FOR_ANY_TARGET: Final[tuple[Callable[[ir.Model], Report], ...]] = (
    *(fold_full_norm, fold_constants, static_shapes, fold_broadcast, merge_casts, drop_noops),
    drop_zero_states,
    capture_unchanged_states,
    *(merge_neighbours, merge_views, merge_transposes, common_subexpressions, dead_code),
    merge_low_rank,
    *(fold_bn, fold_forward, fold_affine, fuse_layer_norm, fuse_hardswish, fuse_pad, fuse_gemm),
)


def _for_any_target(rewrite: Callable[[ir.Model], Report]) -> Rewrite:
    return lambda model, _: rewrite(model)


REWRITES: dict[str, Rewrite] = {
    **{rewrite.__name__: _for_any_target(rewrite) for rewrite in _FOR_ANY_TARGET},
    "keep_fast_pools": lambda model, target: (
        keep_fast_pools(model) if target.cpu else Report("keep_fast_pools")
    ),
    "lift_opset": lambda model, target: lift_opset(
        model,
        limit=min(target.lifts_to, FAST_POOLS)
        if target.cpu and has_pools(model)
        else target.lifts_to,
    ),
    "fuse_gelu": lambda model, target: fuse_gelu(model, order=target.orders_gelu),
    "fuse_matmul_n_bits": lambda model, target: (
        fuse_matmul_n_bits(model) if target.keeps_fused else Report("fuse_matmul_n_bits")
    ),
    "split_skip_norm": lambda model, target: (
        split_skip_norm(model) if target.cpu else Report("split_skip_norm")
    ),
}
"""Name to rewrite."""

_FOLDING: Final = "fold_constants static_shapes fold_broadcast merge_casts drop_noops"
STAGES: Final = {
    "heads": (1, "fold_full_norm keep_fast_pools"),
    "folding": (4, f"capture_unchanged_states {_FOLDING}"),
    "fusing": (
        1,
        "merge_low_rank fold_bn fold_affine lift_opset fuse_layer_norm fuse_gelu fuse_hardswish "
        "fold_forward",
    ),
    "cleaning": (
        6,
        f"{_FOLDING} drop_zero_states merge_neighbours merge_views merge_transposes fuse_pad "
        "fuse_gemm common_subexpressions dead_code",
    ),
    "last": (1, "split_skip_norm fuse_matmul_n_bits dead_code"),
}
"""Maximum number of rounds, and the rewrites: a stage repeats until nothing changes.

The weight normalization of a head is recognized before constants are folded, and weights are folded
before equal ones are merged, because folding needs an unshared weight. Each clean-up may enable
another. Folding and fusing run again after the clean-up, which may have created their patterns,
such as a Gemm before a normalization.
"""
_TIMES: Final = 3  # at most this often, fusing and cleaning in turns


@dataclass(frozen=True)
class Step:
    """One application of a rewrite to a graph, in place."""

    name: str
    apply: Callable[[ir.Model], Report]


def optimize(
    model: ir.Model, target: Target = GENERIC, *, lift: bool = True
) -> tuple[list[Report], list[Step]]:
    """Run the pipeline in place.

    Args:
        model: A normalized inference graph with weights as initializers.
        target: The target of the graph.
        lift: Whether the opset may be changed; False if the user chose one.

    Returns:
        One report per rewrite, and the applied steps in order.
    """
    reports: dict[str, Report] = {}
    steps: list[Step] = []

    def run(name: str) -> bool:
        if name in ("keep_fast_pools", "lift_opset") and not lift:
            reports[name] = Report(name, kept={"model": "the opset was given"})
            return False
        rewrite = REWRITES[name]
        return take(Step(name, lambda changed: _applied(rewrite, changed, target)))

    def take(step: Step) -> bool:
        report = step.apply(model)
        _add(reports.setdefault(step.name, Report(step.name)), report)
        steps.append(step)  # also if it reports no change: that may be the bug
        return report.modified

    def stage(which: str) -> bool:
        """Repeat a stage; returns whether anything changed."""
        rounds, names = STAGES[which]
        for done in range(rounds):
            changed = [run(name) for name in names.split()]  # a list: all of them run
            if not any(changed):
                return done > 0
        return True

    # Declared shapes are steps, too: a replay must see what the rewrites saw.
    declared = declared_shapes(model)
    take(Step("declared_shapes", forget_declared))
    stage("heads")
    stage("folding")
    for again in range(_TIMES):
        if not stage("fusing") and again:  # the first clean-up runs in any case
            break
        stage("cleaning")
    stage("last")
    take(Step("declared_shapes", lambda changed: restore_declared(changed, declared)))
    return list(reports.values()), steps


def _applied(rewrite: Rewrite, model: ir.Model, target: Target) -> Report:
    report = rewrite(model, target)
    check_rewritten(model, report.rewrite)
    if report.modified:
        infer_shapes(model)
    return report


def _add(total: Report, report: Report) -> None:
    """Add the report of a round: what one round changed, another no longer kept."""
    total.changed.update(report.changed)
    total.kept = {**total.kept, **report.kept}
    for name in report.changed:
        total.kept.pop(name, None)
    total.notes += [note for note in report.notes if note not in total.notes]
