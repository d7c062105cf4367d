"""What the rewrites of inference graphs share: constants, uses, and taking a node out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = [
    "CHANCE",
    "bypass",
    "constant",
    "is_standard",
    "label",
    "number",
    "only_user",
    "operators",
    "replace_value",
]

CHANCE = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators that answer differently each time: never folded, never merged."""


def is_standard(node: ir.Node, *op_types: str) -> bool:
    """Whether a node is one of these operators of the standard domain."""
    return node.domain in ("", "ai.onnx") and node.op_type in op_types


def label(node: ir.Node) -> str:
    """The name to report a node by."""
    return node.name or (node.outputs[0].name if node.outputs else None) or node.op_type


def constant(value: ir.Value | None, *, limit: int = 1 << 16) -> NDArray[Any] | None:
    """The array of a stored tensor with at most ``limit`` elements, else ``None``.

    A stored tensor that is also an input of the graph can be overruled by who runs it, so it is none.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    if value.producer() is not None and value.producer().op_type != "Constant":  # type: ignore[union-attr]
        return None
    tensor = value.const_value
    if tensor.size > limit or tensor.dtype == ir.DataType.STRING:
        return None
    return np.asarray(tensor.numpy())


def number(value: ir.Value | None) -> float | None:
    """A stored tensor with one element as a number, else ``None``."""
    array = constant(value, limit=1)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def only_user(value: ir.Value) -> ir.Node | None:
    """The one node that reads a value once, if there is no other reader and it is no output."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def replace_value(old: ir.Value, new: ir.Value) -> bool:
    """Let everything that reads ``old`` read ``new``; a graph output keeps its name.

    Returns:
        Whether it was done. It is not where ``old`` is an output of its graph and ``new`` cannot
        take over that name: it is an input, a stored tensor, another output, or of another graph.
    """
    if old.is_graph_output():
        producer, maker = old.producer(), new.producer()
        if maker is None or producer is None or maker.graph is not producer.graph:
            return False
        if new.is_graph_output() or new.is_graph_input():
            return False
        name, owner = old.name, producer.graph
        if owner is None:
            return False
        old.name = f"{name}/gone"
        new.name = name
        if new.type is None:
            new.type = old.type
        new.shape = old.shape if old.shape is not None else new.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        return True
    ir.convenience.replace_all_uses_with(old, new)
    return True


def bypass(node: ir.Node, value: ir.Value) -> bool:
    """Take a node with one used output out: its readers read ``value`` instead.

    Returns:
        Whether it was done; see :func:`replace_value`.
    """
    graph = node.graph
    if graph is None or any(out.uses() or out.is_graph_output() for out in node.outputs[1:]):
        return False
    if not replace_value(node.outputs[0], value):
        return False
    graph.remove(node, safe=True)
    return True


def operators(model: ir.Model) -> dict[str, int]:
    """Number of nodes by operator, subgraphs included."""
    counts: dict[str, int] = {}
    for node in model.graph.all_nodes():
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return counts
