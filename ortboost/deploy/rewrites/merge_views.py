"""Merge consecutive Reshape, Squeeze, Unsqueeze and Flatten nodes into one Reshape, or none.

None of them moves an element, nor does a Transpose that moves only dimensions of length 1. Of a
chain ``x -> view -> view`` the last shape alone counts, so the last view reads ``x`` directly if
constants can express its shape in terms of ``x``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.dimensions import as_reshape, dimensions, same_view
from ortboost.graph.build import Builder
from ortboost.graph.query import constant, is_read, is_standard, label
from ortboost.graph.rewriting import replace_value

__all__ = ["merge_views"]

VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def merge_views(model: ir.Model) -> Report:
    """Merge chains of views, in place, in the main graph."""
    report = Report("merge_views")
    builder = Builder(model.graph, "ortboost/view")
    for node in list(model.graph):
        if node.graph is None or not _is_view(node) or node.inputs[0] is None:
            continue
        middle = node.inputs[0]
        first = middle.producer()
        if first is None or first.graph is not node.graph or not _is_view(first):
            continue
        source, out = first.inputs[0], node.outputs[0]
        if source is None or (node.op_type == first.op_type == "Transpose"):
            continue
        name = label(node)
        have, want, claimed = dimensions(source), dimensions(out), out.is_graph_output()
        if same_view(have, want, claimed=claimed) and replace_value(out, source):
            model.graph.remove(node, safe=True)
            _remove_unread(first)
            report.changed[name] = f"undoes '{label(first)}'"
            continue
        if middle.is_graph_output() or not all(_is_view(use.node) for use in middle.uses()):
            continue  # the first stays, so nothing would be won
        shape = None if have is None or want is None else as_reshape(want, have, claimed=claimed)
        if shape is None:
            shape = _of_the_last(node)
        if shape is None:
            report.kept[name] = "the shape cannot be said with constants"
            continue
        made = builder.op("Reshape", source, builder.ints(*shape), dtype=out.dtype, shape=out.shape)
        model.graph.insert_before(node, builder.take())
        if not replace_value(out, made):  # never: `made` is new and of the same graph
            continue
        model.graph.remove(node, safe=True)
        _remove_unread(first)
        report.changed[name] = f"merged with '{label(first)}'"
    return report


def _is_view(node: ir.Node) -> bool:
    return is_standard(node, *VIEWS) or _moves_ones(node)


def _moves_ones(node: ir.Node) -> bool:
    """Whether a node is a Transpose that moves only dimensions of length 1."""
    value = node.inputs[0] if is_standard(node, "Transpose") else None
    perm = node.attributes.get_ints("perm", None)
    if value is None or value.shape is None or perm is None:
        return False
    kept = [axis for axis in perm if value.shape[axis] != 1]
    return kept == sorted(kept)


def _remove_unread(node: ir.Node) -> None:
    out = node.outputs[0]
    if node.graph is not None and not is_read(out):
        node.graph.remove(node, safe=True)


def _of_the_last(node: ir.Node) -> list[int] | None:
    """The target of a Reshape, if it means the same for any input with as many elements."""
    if node.op_type != "Reshape" or len(node.inputs) < 2:
        return None
    shape = constant(node.inputs[1])
    if shape is None or bool(np.any(shape == 0)):
        return None
    return [int(length) for length in shape]
