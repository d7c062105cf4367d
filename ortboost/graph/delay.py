"""Nodes that can only run after a value was computed; ONNX has no control edges."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.build import Builder

__all__ = ["false_after"]


def false_after(b: Builder, value: ir.Value) -> ir.Value:
    """False, as a bool scalar that no runtime can compute before ``value``.

    It is `a and not a`, where `a` says whether the first element of the value, a tensor of floats,
    is negative. Cast to a number and added to the input of a node, it delays that node.
    """
    first = b.op("Slice", b.op("Reshape", value, b.ints(-1)), b.ints(0), b.ints(1), b.ints(0))
    number = b.op("ReduceSum", b.cast(first, ir.DataType.FLOAT), keepdims=0, shape=())
    negative = b.op("Less", number, b.const(0.0), dtype=ir.DataType.BOOL, shape=())
    return b.op("And", negative, b.op("Not", negative, shape=()), shape=())
