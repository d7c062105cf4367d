"""Protect Pads before pools from a wrong fusion of onnxruntime.

onnxruntime's optimizer (``Pad_Fusion``) moves a Pad with zeros into the pool that reads it. But a
MaxPool pads with -inf, not 0, and an AveragePool may exclude padding from the mean. Outputs are
wrong in onnxruntime 1.19 (AveragePool with padding of its own, MaxPool with padding) and 1.31
(MaxPool), also when users run a model without ortboost; 1.32 is right. A Pad with an explicit
``axes`` input is equivalent and is not fused.

Source: https://github.com/microsoft/onnxruntime, pull request 23190; tested with all three.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import input_at, is_standard, known_shape
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["GUARDING_OPSET", "guard_pads", "needs_guard"]

GUARDING_OPSET = 18
"""The opset that added axes to Pad."""
_POOLS = frozenset({"AveragePool", "MaxPool"})


@rewrites("Pad")
def guard_pads(site: Site) -> list[ir.Value | None] | None:
    """List all axes explicitly in each constant Pad that a pool reads, in place.

    Below opset 18, or if the rank is unknown, a Pad is kept as it is.
    """
    node = site.node
    rank = len(known_shape(site.input(0)) or ())
    if not rank or site.opset < GUARDING_OPSET or not needs_guard(node):
        return None
    site.note = "its axes are explicit now; without them onnxruntime fuses it wrongly"
    inputs = [site.input(0), site.input(1), site.optional(2), site.ints(*range(rank))]
    return [site.op("Pad", *inputs, shape=node.outputs[0].shape, mode="constant")]


def needs_guard(node: ir.Node) -> bool:
    """Whether a node is a constant Pad without explicit axes that a pool reads."""
    if not is_standard(node, "Pad") or input_at(node, 3) is not None:
        return False
    constant = node.attributes.get_string("mode", "constant") == "constant"
    return constant and any(use.node.op_type in _POOLS for use in node.outputs[0].uses())
