"""An ``If`` whose branches are built by functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from ortboost.graph.build import Builder

__all__ = ["choose"]


def choose(
    b: Builder,
    name: str,
    condition: ir.Value,
    then: Callable[[], Mapping[str, ir.Value]],
    otherwise: Callable[[], Mapping[str, ir.Value]],
    like: Mapping[str, ir.Value] = MappingProxyType({}),
    *,
    prefix: str = "",
) -> dict[str, ir.Value]:
    """Append `If(condition) then ... else ...`.

    Args:
        b: The builder of the graph, without collected nodes.
        name: Name of the node; the branches are named after it.
        condition: bool scalar.
        then: Creates the nodes of the first branch with ``b`` and returns its results by key.
        otherwise: The same for the second branch, with the same keys.
        like: Key to a value of the same type and shape; for other keys, those of the first
            branch's result are used.
        prefix: Prefix of the names of the outputs, followed by the keys.

    Returns:
        Key to an output of the ``If``.
    """
    first = then()
    kinds = {key: like.get(key, value) for key, value in first.items()}
    then_branch = _branch(b, f"{name}/then", first)
    second = otherwise()
    else_branch = _branch(b, f"{name}/else", {key: second[key] for key in first})
    results = {
        key: ir.val(b.unique(prefix + key), shape=kind.shape, type=kind.type)
        for key, kind in kinds.items()
    }
    # An If has one type and shape for each output: both branches declare them.
    for graph in (then_branch, else_branch):
        for value, kind in zip(graph.outputs, kinds.values(), strict=True):
            value.type, value.shape = kind.type, kind.shape
    branches = {"then_branch": then_branch, "else_branch": else_branch}
    outputs, name = list(results.values()), b.unique(name)
    b.graph.append(ir.node("If", [condition], branches, outputs=outputs, name=name))
    return results


def _branch(b: Builder, name: str, results: Mapping[str, ir.Value]) -> ir.Graph:
    """Turn the collected nodes into a branch whose outputs are the results, in this order.

    A branch may only output values computed inside it, and each only once: others are copied.
    """
    inside = {id(output) for node in b.nodes for output in node.outputs}
    outputs: list[ir.Value] = []
    for key, value in results.items():
        if id(value) in inside:
            inside.remove(id(value))
            outputs.append(value)
        else:
            outputs.append(b.op("Identity", value, name=f"{name}/{key}"))
    return ir.Graph([], outputs, nodes=b.take(), name=name)
