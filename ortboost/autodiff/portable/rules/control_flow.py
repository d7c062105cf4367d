"""Control flow: ``If``. Loop and Scan are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import find_rule, refuses, register
from ortboost.autodiff.portable.reverse_pass import gradient_support, reverse_pass
from ortboost.graph.query import RANDOM_OPERATORS, label
from ortboost.graph.reach import Reach, reach, uses_inside

__all__: list[str] = []

_BRANCHES = ("then_branch", "else_branch")
_RANDOM = RANDOM_OPERATORS | {"Dropout"}
# Families whose rules need no preparation, which does not cover branches.
_FAMILIES = frozenset(
    "activations control_flow elementwise functions matmul reductions shapes softmax".split()
)


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
    for node in graph.all_nodes():
        node.name = b.builder.unique(node.name or node.op_type)
        for output in node.outputs:
            if output.name:
                output.name = b.builder.unique(output.name)
    for constant in list(graph.initializers.values()):
        constant.name = b.builder.unique(constant.name or "constant")
    seeds: dict[str, ir.Value] = {}
    waiting = b.builder.take()  # the nodes of the outer graph: those below belong to the branch
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
            zero = b.const(0.0, value.dtype or ir.DataType.FLOAT)
            gradient = b.op("Expand", zero, b.shape_of(value), shape=value.shape)
        results.append(b.op("Identity", gradient, shape=value.shape))
    graph.extend(b.builder.take())
    b.builder.nodes = waiting
    graph.outputs[:] = results
    return graph


@refuses("If")
def _form(node: ir.Node) -> str | None:
    for name in _BRANCHES:
        graph = node.attributes[name].as_graph()
        for inner in graph.all_nodes():
            if inner.op_type in _RANDOM:
                return (
                    f"its branches draw random numbers ({label(inner)}); export it without the If"
                )
        for inner in _reached(node, graph).nodes:
            reason = gradient_support(inner)
            if reason is None:
                package, _, family = getattr(find_rule(inner), "__module__", "").rpartition(".")
                if package != __package__ or family in _FAMILIES:
                    continue
                reason = "it has no gradient inside a branch"
            return f"{label(inner)} ({inner.op_type}) in a branch: {reason}"
    return None


def _reached(node: ir.Node, graph: ir.Graph) -> Reach:
    captured = {value.name for value in uses_inside(node) if value.name}
    targets = [output.name for output in graph.outputs if output.name]
    return reach(ir.Model(graph, ir_version=10), captured, targets)
