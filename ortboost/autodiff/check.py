"""Check whether a model can be trained, and report all obstacles at once.

The check runs the rewrites of the conversion on a copy and examines the result, so that it reports
exactly what the conversion does. It returns data; the command line prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortboost.autodiff.blockers import Blocker, ignored_rules, standing_blockers
from ortboost.autodiff.conditions import unfit_shapes
from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import Engine
from ortboost.core.report import Report
from ortboost.core.shown import Shown
from ortboost.graph.normal_form.runtime_operators import (
    has_runtime_operators,
    write_out_runtime_operators,
)
from ortboost.graph.query import label
from ortboost.graph.reach import Reach, descendants, reach

__all__ = ["Blocker", "TrainabilityReport", "check_trainable", "find_blockers"]

_DEFAULT_FIX = "Replace the operator in the model, or freeze the parameters before it."
_ORT = "com.microsoft"
_FOR_INFERENCE = "is for inference only; start from the unoptimized export"
_FOR_ONE_PROCESSOR = (
    "is laid out for the processor that optimized the file; start from the unoptimized export, or "
    "optimize it at level ORT_ENABLE_EXTENDED"
)


@dataclass(frozen=True, repr=False)
class TrainabilityReport(Shown):
    """The result of :func:`check_trainable`.

    Args:
        blockers: All obstacles to training.
        rewrites: One report for each rewrite, in execution order: node to the change that it makes.
        notes: Remarks, for example on parameters that will not be trained.
        trained: Names of the parameters that a gradient reaches.
        parameters: All float tensors with their classification, as JSON data.

    Example:
        >>> import ortboost as ob
        >>> report = ob.check("models/mlp.onnx")
        >>> report.trainable, report.trained
        (True, ('fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'))
    """

    blockers: tuple[Blocker, ...]
    rewrites: tuple[Report, ...]
    notes: tuple[str, ...]
    trained: tuple[str, ...]
    parameters: tuple[dict[str, Any], ...] = ()

    @property
    def trainable(self) -> bool:
        """Whether there are no blockers."""
        return not self.blockers

    def _facts(self) -> dict[str, object]:
        return {
            "trainable": self.trainable,
            "blockers": "; ".join(f"{b.node} ({b.op}): {b.reason}" for b in self.blockers),
            "rewrites": ", ".join(f"{r.rewrite} {len(r.changed)}" for r in self.rewrites),
            "trained": f"{len(self.trained)} tensors",
            "notes": "; ".join(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return {
            "trainable": self.trainable,
            "blockers": [vars(blocker) for blocker in self.blockers],
            "rewrites": [report.to_dict() for report in self.rewrites],
            "notes": list(self.notes),
            "trained": list(self.trained),
            "parameters": list(self.parameters),
        }


def check_trainable(
    model: ir.Model,
    *,
    wrt: Sequence[str],
    engine: Engine,
    loss: str | Sequence[str] | None = None,
    selected: bool = False,
) -> TrainabilityReport:
    """Find everything that prevents a model from being trained.

    Args:
        model: Normalized forward model, with or without its loss, with normalizations and Dropout
            in training mode as needed. It is not changed.
        wrt: Names of the parameters to train.
        engine: The engine that will differentiate the model.
        loss: Name of the loss, or of the outputs that it is computed from; all outputs if not
            given.
        selected: Whether the user chose the parameters: then quantized weights may stay frozen.

    Example:
        >>> from ortboost.autodiff.engine import get_engine
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,3] x, float[3] w) => (float[N,3] y) {
        ...   [a] h = Mul(x, w) [b] y = Round(h) }''')
        >>> report = check_trainable(model, wrt=["w"], engine=get_engine())
        >>> [blocker.node for blocker in report.blockers]
        ['b']
    """
    targets = [loss] if isinstance(loss, str) else list(loss or ())
    targets = targets or [value.name or "" for value in model.graph.outputs]
    # On the model as it is: rewriting may remove the traces of what is wrong.
    blockers = standing_blockers(model, wrt, targets, selected=selected)
    blockers += ignored_rules(reach(model, wrt, targets), engine)
    work = model.clone()
    reports = [decompose(work, wrt=wrt, loss=targets, engine=engine)]
    reports += engine.prepare(work)
    refused = _refusals(model, reports)
    reached = reach(work, wrt, targets)
    known = {(blocker.node, blocker.op) for blocker in blockers}
    for found in _about_nodes(work.graph, reached, engine, refused):
        if (found.node, found.op) not in known:
            blockers.append(found)
    # What a rewrite refused is a blocker, or does not matter, as no gradient passes it.
    rewrites = [
        Report(report.rewrite, dict(report.changed), {}, list(report.notes))
        for report in reports
        if report.changed or report.notes
    ]
    notes = [
        f"'{name}' will not be trained: no output depends differentiably on it "
        "(unused, or only through an ArgMax, a comparison or an integer cast)"
        for name in reached.unreachable
    ]
    trained = tuple(name for name in wrt if name not in reached.unreachable)
    if wrt and not trained:
        blockers.append(
            Blocker(
                ", ".join(targets),
                "model",
                "no output depends differentiably on any of the parameters",
                "Name the output before the ArgMax or the cast, or train other parameters.",
            )
        )
    return TrainabilityReport(tuple(blockers), tuple(rewrites), tuple(notes), trained)


def _refusals(model: ir.Model, reports: Iterable[Report]) -> dict[str, str]:
    """Node to the reason for which a rewrite, or `normalize`, has left it as it was."""
    left = has_runtime_operators(model)
    refused = write_out_runtime_operators(model.clone()).kept if left else {}
    return refused | {name: why for report in reports for name, why in report.kept.items()}


def find_blockers(
    model: ir.Model, *, wrt: Sequence[str], engine: Engine, loss: str, selected: bool = False
) -> tuple[Blocker, ...]:
    """The blockers of :func:`check_trainable`, without a copy of a model that has none.

    :meth:`~ortboost.autodiff.engine.Engine.gradient_support` tells whether a node can be
    differentiated after ``prepare``. Only where one cannot, other rewrites are tried on a copy.
    """
    reached = reach(model, wrt, loss)
    able = all(engine.gradient_support(node, reached.active) is None for node in reached.nodes)
    standing = standing_blockers(model, wrt, [loss], selected=selected)
    standing += ignored_rules(reached, engine)
    if able and len(reached.unreachable) < len(wrt) and not standing:
        return ()
    report = check_trainable(model, wrt=wrt, engine=engine, loss=loss, selected=selected)
    return report.blockers


def _about_nodes(
    graph: ir.Graph, reached: Reach, engine: Engine, refused: dict[str, str]
) -> Iterator[Blocker]:
    unfit = {node: why for node in reached.nodes if (why := unfit_shapes(node)) is not None}
    foreign = [n for n in reached.nodes if n.domain.startswith(_ORT) and label(n) in refused]
    # Shape inference stops at these nodes: unknown shapes after them are not a separate reason.
    behind = descendants(graph, (out for node in (*foreign, *unfit) for out in node.outputs))
    for node in reached.nodes:
        reason = unfit.get(node) or engine.gradient_support(node, reached.active)
        if reason is None:
            continue
        if node in behind and any(v is not None and v.shape is None for v in node.inputs):
            continue
        if node.domain == _ORT:
            reason = f"{_ORT}::{node.op_type} {_FOR_INFERENCE}"
        elif node.domain.startswith(_ORT):
            reason = f"{node.domain}::{node.op_type} {_FOR_ONE_PROCESSOR}"
        # The reason of a decomposition rule is more specific than that of the engine. Both are
        # written as "reason; fix".
        reason = refused.get(label(node), reason)
        why, _, fix = reason.partition("; ")
        fix = f"{fix[:1].upper()}{fix[1:]}." if fix else _DEFAULT_FIX
        yield Blocker(label(node), node.op_type, why, fix)
