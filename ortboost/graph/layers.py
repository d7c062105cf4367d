r"""The layers of a network: groups of nodes around each node with a trained weight.

A *layer* is a node with a trained weight (convolution, matrix product, embedding, ...) together
with the biases and normalizations after it, in graph order; a weight that several nodes share
belongs to the first. Its cost for one sample is

    multiply-accumulates + 32 * elements of the outputs of its nodes

The second term accounts for memory-bound nodes (normalization, activation). Its factor was fitted
to measured steps of `models/` on a CPU, where fits gave 10 to 100.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.graph.cost import count_cost, with_lengths
from ortboost.graph.query import known_shape, source_before, static_shape, subgraphs
from ortboost.graph.weights.parameters import Parameter

__all__ = ["Layer", "find_layers"]

_OPEN = (128, 2048, 32768)  # for open dimensions other than the batch; audio needs the longer ones
_ELEMENT = 32  # multiply-accumulates equivalent to the memory traffic of one element


@dataclass
class Layer:
    """A node with a trained weight, and the nodes that belong to it.

    Args:
        node: Name of the node.
        parameters: Names of the trained parameters.
        cost: Cost of its forward pass for one sample; that of the backward pass is proportional.
    """

    node: str
    parameters: list[str] = field(default_factory=list)
    cost: int = 0


def find_layers(model: ir.Model, trained: Sequence[Parameter]) -> list[Layer]:
    """The layers with trained parameters, in the order in which the graph computes them."""
    roles = {parameter.name: parameter.role for parameter in trained}
    costs = _costs(model)
    layers: list[Layer] = []
    placed: set[str] = set()
    for node in model.graph:
        found = [name for name in _reads(node, roles) if name not in placed]
        # A weight opens a layer; biases and scales join the one before them.
        if found and (not layers or any(roles[name] == "weight" for name in found)):
            layers.append(Layer(node.name or ""))
        if layers:  # nodes before the first layer have no backward pass
            layers[-1].parameters += found
            layers[-1].cost += costs.get(node.name or "", 0)
        placed.update(found)
    return layers


def _reads(node: ir.Node, known: dict[str, str]) -> list[str]:
    """Trained parameters that a node or its branches read."""
    if node.op_type == "Cast":
        return []  # inserted for mixed precision: its reader counts
    values = [source_before(value, "Cast") for value in node.inputs]
    for graph in subgraphs(node):
        values += [v for inner in graph.all_nodes() for v in inner.inputs]
    return list(dict.fromkeys(v.name for v in values if v is not None and v.name in known))


def _lengths(model: ir.Model, length: int) -> dict[str, int]:
    """Lengths of open dimensions: 1 for the batch, and this length for all others."""
    shapes = {value.name or "": known_shape(value) or () for value in model.graph.inputs}
    samples = {shape[0] for shape in shapes.values() if shape and isinstance(shape[0], str)}
    return {
        f"{name}:{axis}": 1 if axis == 0 or dim in samples else length
        for name, shape in shapes.items()
        for axis, dim in enumerate(shape)
        if not isinstance(dim, int)
    }


def _with_fixed_lengths(model: ir.Model) -> ir.Model | None:
    """The model with fixed lengths: the first of :data:`_OPEN` that suffices for all layers."""
    found = None
    for length in _OPEN:
        with contextlib.suppress(ModelError):
            fixed = with_lengths(model, _lengths(model, length))
            outputs = (static_shape(value) for node in fixed.graph for value in node.outputs)
            if all(0 not in (shape or ()) for shape in outputs):
                return fixed
            found = found or fixed
    return found


def _costs(model: ir.Model) -> dict[str, int]:
    """Node to the cost of its forward pass for one sample, if its shapes are known."""
    fixed = _with_fixed_lengths(model)
    if fixed is None:
        return {}
    found = dict(count_cost(fixed).nodes)
    for node in fixed.graph:
        for output in node.outputs:
            shape = static_shape(output)
            if shape is not None and node.name:
                found[node.name] = found.get(node.name, 0) + _ELEMENT * math.prod(shape)
    return found
