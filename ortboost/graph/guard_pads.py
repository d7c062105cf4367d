"""Pads before pools in a form that onnxruntime does not fuse wrongly.

onnxruntime's optimizer (``Pad_Fusion``) moves a Pad with zeros into the pool that reads it. The padding of a MaxPool is
-inf, not 0, and that of an AveragePool may be left out of the mean: outputs are wrong in onnxruntime 1.19 (AveragePool
with padding of its own, MaxPool with padding) and 1.31 (MaxPool), for users' own files too. A Pad that
names its axes means the same and is left alone there.

Source: https://github.com/microsoft/onnxruntime, pull request 23190; tried on both versions in the tests.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import input_at, known_shape
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["guard_pads"]

_WITH_AXES = 18  # the opset in which Pad learned them
_POOLS = frozenset({"AveragePool", "MaxPool"})


def guard_pads(model: ir.Model) -> Report:
    """Name all axes of each constant Pad that a pool reads, in place.

    Args:
        model: The model. Below opset 18, or where the rank is not known, nothing can be done.

    Returns:
        The report.
    """
    return rewrite_nodes(model, "guard_pads", {"Pad": _with_axes})


def _with_axes(site: Site) -> list[ir.Value | None] | None:
    node = site.node
    rank = len(known_shape(site.input(0)) or ())
    readers = {use.node.op_type for use in node.outputs[0].uses()}
    constant = node.attributes.get_string("mode", "constant") == "constant"
    if not rank or site.opset < _WITH_AXES or not constant or not readers & _POOLS:
        return None
    if input_at(node, 3) is not None:
        return None
    site.note = (
        "its axes are named: onnxruntime would fuse it into the pool, whose padding is another"
    )
    inputs = [site.input(0), site.input(1), site.optional(2), site.ints(*range(rank))]
    return [site.op("Pad", *inputs, shape=node.outputs[0].shape, mode="constant")]
