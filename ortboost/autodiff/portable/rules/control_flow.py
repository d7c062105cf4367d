"""``If``; loops are in :mod:`~ortboost.autodiff.portable.rules.loops`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.reverse_pass import gradient_support, reverse_pass
from ortboost.graph.bodies import captured_values, rename_values
from ortboost.graph.query import RANDOM_OPERATORS, label
from ortboost.graph.reach import reach, uses_inside

__all__ = ["body_reason"]

_BRANCHES = ("then_branch", "else_branch")
_RANDOM = RANDOM_OPERATORS | {"Dropout"}


@register("If")
def if_(b: Backward) -> Gradients:
    """`y = c ? f(v) : h(v)` with captured values `v`: an If on `c` of the two gradients.

    Each branch recomputes its forward part, then the gradients `J_f^T g` or `J_h^T g` of all values
    that either branch captures; zeros for those that it does not depend on.
    """
    captured = {v.name or "": v for v in uses_inside(b.node) if v.name in b.active}
    graphs = [_branch(b, b.node.attributes[name].as_graph(), captured) for name in _BRANCHES]
    branches: dict[str, Any] = dict(zip(_BRANCHES, graphs, strict=True))
    outputs = b.builder.ops("If", b.input(0), names=[None] * len(captured), **branches)
    for value, output in zip(captured.values(), outputs, strict=True):
        output.type, output.shape = value.type, value.shape
        b.contribute(value, output)
    return [None]


def _branch(b: Backward, source: ir.Graph, captured: Mapping[str, ir.Value]) -> ir.Graph:
    """A branch that computes the gradients of the captured values."""
    graph = source.clone(allow_outer_scope_values=True)
    rename_values(graph, b.builder.unique)
    seeds: dict[str, ir.Value] = {}
    with b.builder.inner_graph():
        for output, given in zip(graph.outputs, b.gradients, strict=True):
            name = output.name or ""
            if given is not None:
                seeds[name] = b.op("Add", seeds[name], given) if name in seeds else given
        reached = reach(ir.Model(graph, ir_version=10), captured, seeds)
        found = reverse_pass(reached, seeds, list(captured), b.builder, b.opset)
        results = []
        for name, value in captured.items():
            gradient = found[name]
            if gradient is None:  # only the other branch depends on it
                gradient = b.zeros_like(value)
            results.append(b.op("Identity", gradient, shape=value.shape))
        graph.extend(b.builder.take())
    graph.outputs[:] = results
    return graph


@refuses("If")
def _form(node: ir.Node) -> str | None:
    for name in _BRANCHES:
        reason = body_reason(node.attributes[name].as_graph())
        if reason is not None:
            return reason
    return None


def body_reason(body: ir.Graph, sources: Iterable[str] = ()) -> str | None:
    """Why the body of an If, Loop or Scan has no gradient, or ``None``.

    ``sources`` are the names of its inputs that may need a gradient, as all captured values may.
    """
    for node in body.all_nodes():
        if node.op_type in _RANDOM:  # the backward pass runs it again
            return f"its body draws random numbers ({label(node)}); export it without"
    captured = [value.name for value in captured_values(body) if value.name]
    targets = [output.name for output in body.outputs if output.name]
    for node in reach(ir.Model(body, ir_version=10), [*captured, *sources], targets).nodes:
        reason = gradient_support(node)
        if reason is not None:
            return f"{label(node)} ({node.op_type}) in its body: {reason}"
    return None
