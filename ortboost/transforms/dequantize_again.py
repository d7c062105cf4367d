"""Dequantize a stored weight again for each node that reads it.

The forward and the backward pass of a layer read its weight. Dequantized once, the float weights of
all layers would be in memory from the forward pass to the backward pass; a network whose weights
are quantized to save memory would take more than in float32. Dequantized again, each is there only
while it is used.

A runtime merges equal nodes, and runs a node that only reads weights at any time. So the scale of a
copy is the sum of the scale and a zero that is computed from the other operand of the reader: the
activations in the forward pass, the gradient that arrives in the backward pass.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortboost.graph.build import Builder
from ortboost.graph.delay import false_after
from ortboost.graph.query import FLOAT_TYPES, constant, find_nodes, is_standard
from ortboost.graph.rewriting import remove_unused

__all__ = ["dequantize_again"]


def dequantize_again(model: ir.Model) -> None:
    """Give each of several readers of a dequantized weight its own DequantizeLinear, in place.

    Only the main graph of the gradient graph is changed.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x, float s) => (float[N,2] y) <int8[2,2] w = {1, 2, 3, 4}> {
        ...   d = DequantizeLinear(w, s) h = MatMul(x, d) y = MatMul(h, d) }''')
        >>> dequantize_again(model)
        >>> [node.op_type for node in model.graph].count("DequantizeLinear")
        2
    """
    graph = model.graph
    b = Builder(graph, "ortboost/dequantize")
    places = {node: place for place, node in enumerate(graph)}
    for node in find_nodes(graph, "DequantizeLinear"):
        if constant(node.inputs[0]) is None:
            continue
        value = node.outputs[0]
        # A reader in a subgraph has no place in the main graph.
        readers = {use.node for use in value.uses() if use.node in places}
        for reader in sorted(readers, key=lambda reader: places[reader]):
            arriving = _arriving(reader)
            if arriving is None or len(readers) == 1:
                continue
            again = _copy(node, arriving, b)
            graph.insert_before(reader, b.take())
            for index, operand in enumerate(reader.inputs):
                if operand is value:
                    reader.replace_input_with(index, again)
        remove_unused(node)


def _arriving(reader: ir.Node) -> ir.Value | None:
    """The computed float operand of a node, apart from dequantized weights."""
    for value in reader.inputs:
        made = None if value is None else value.producer()
        if made is None or value is None or is_standard(made, "DequantizeLinear"):
            continue
        if value.dtype in (*FLOAT_TYPES, None):  # the native gradient builder gives no types
            return value
    return None


def _copy(node: ir.Node, arriving: ir.Value, b: Builder) -> ir.Value:
    """The same weight again, after a value."""
    weight, scale, *rest = node.inputs
    assert scale is not None
    zero = b.cast(false_after(b, arriving), scale.dtype or ir.DataType.FLOAT)
    later = b.op("Add", scale, zero, shape=scale.shape)
    output, settings = node.outputs[0], dict[str, Any](node.attributes)
    dtype, shape = output.dtype, output.shape
    return b.op("DequantizeLinear", weight, later, *rest, dtype=dtype, shape=shape, **settings)
