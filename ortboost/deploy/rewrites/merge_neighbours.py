"""Merge two nodes of which one can do the work of both.

* ``Slice(Slice(x))`` over different axes is one Slice.
* ``Concat(Concat(a, b), c)`` along one axis is one Concat.
* ``Unsqueeze(Gather(x, i))`` at the axis that a scalar ``i`` removed is ``Gather(x, [i])``.
* ``Unsqueeze(Reduce(x))`` at the axes that were reduced is ``Reduce(x)`` with ``keepdims=1``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import constant, is_read, is_standard, label, producer_of, sole_consumer
from ortboost.graph.rewriting import replace_value

__all__ = ["merge_neighbours"]

_REDUCING = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


def merge_neighbours(model: ir.Model) -> Report:
    """Merge pairs of nodes, in place, in the main graph."""
    report = Report("merge_neighbours")
    builder = Builder(model.graph, "ortboost/slice")
    for node in list(model.graph):
        if node.graph is None or not node.inputs or node.inputs[0] is None:
            continue
        if is_standard(node, "Concat"):
            _concats(node, report)
            continue
        first = node.inputs[0].producer()
        if first is None or first.graph is not node.graph:
            continue
        if is_standard(node, "Slice") and is_standard(first, "Slice"):
            done = _slices(first, node, builder)
        elif is_standard(node, "Unsqueeze") and sole_consumer(node.inputs[0]) is node:
            done = _kept(first, node, builder)
        else:
            continue
        if done:
            report.changed[label(node)] = f"merged with '{label(first)}'"
            middle = first.outputs[0]
            if first.graph is not None and not is_read(middle):
                first.graph.remove(first, safe=True)
    return report


def _concats(node: ir.Node, report: Report) -> None:
    """Replace inputs that a Concat along the same axis made for this node alone by its inputs."""
    axis = _axis(node)
    for value in list(node.inputs):
        inner = producer_of(value)
        if value is None or inner is None or not is_standard(inner, "Concat"):
            continue
        if axis is None or _axis(inner) != axis or sole_consumer(value) is not node:
            continue
        if inner.graph is not node.graph:
            continue
        parts = [v for one in node.inputs for v in (inner.inputs if one is value else (one,))]
        node.resize_inputs(len(parts))
        for place, part in enumerate(parts):
            node.replace_input_with(place, part)
        if inner.graph is not None:
            inner.graph.remove(inner, safe=True)
        report.changed[label(node)] = f"takes in '{label(inner)}'"


def _axis(node: ir.Node) -> int | None:
    shape = node.outputs[0].shape
    axis = node.attributes.get_int("axis", 0)
    return axis if axis >= 0 else None if shape is None else axis + len(shape)


def _slices(first: ir.Node, node: ir.Node, builder: Builder) -> bool:
    """Let the second Slice cut all axes, if only such Slices read the first."""
    middle = first.outputs[0]
    if middle.is_graph_output() or not all(
        is_standard(use.node, "Slice") and use.idx == 0 for use in middle.uses()
    ):
        return False
    bounds = [_bounds(one) for one in (first, node)]
    if bounds[0] is None or bounds[1] is None or set(bounds[0][2]) & set(bounds[1][2]):
        return False
    joined = [[*a, *b] for a, b in zip(*bounds, strict=True)]
    node.replace_input_with(0, first.inputs[0])
    if len(node.inputs) < 5:
        node.resize_inputs(5)
    for place, numbers in enumerate(joined, 1):
        node.replace_input_with(place, builder.ints(*numbers))
    return True


def _bounds(node: ir.Node) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Starts, ends, axes (not negative) and steps, where all are stored."""
    value = node.inputs[0]
    if value is None or value.shape is None or len(node.inputs) < 3:
        return None
    rank = len(value.shape)
    given = [constant(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2, 3, 4)]
    told = [i < len(node.inputs) and node.inputs[i] is not None for i in (1, 2, 3, 4)]
    if any(there and array is None for there, array in zip(told, given, strict=True)):
        return None
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        return None
    count = len(starts)
    axes = np.arange(count) if axes is None else np.where(axes < 0, axes + rank, axes)
    steps = np.ones(count, np.int64) if steps is None else steps
    return (
        [int(i) for i in starts],
        [int(i) for i in ends],
        [int(i) for i in axes],
        [int(i) for i in steps],
    )


def _kept(first: ir.Node, node: ir.Node, builder: Builder) -> bool:
    """Let a Gather or a reduction keep the dimension that the Unsqueeze restores."""
    source, out = first.inputs[0], node.outputs[0]
    inserted = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    rank = 0 if source is None or source.shape is None else len(source.shape)
    if source is None or inserted is None or not inserted.size or not rank:
        return False
    want = sorted(int(axis) % rank for axis in inserted.reshape(-1))
    if is_standard(first, "Gather"):
        index = constant(first.inputs[1], limit=1)
        axis = first.attributes.get_int("axis", 0) % rank
        if index is None or index.ndim or want != [axis]:
            return False
        kind = ir.DataType.INT64 if index.dtype == np.int64 else ir.DataType.INT32
        stored = builder.const(index.reshape(1), kind)
        made = builder.op("Gather", source, stored, dtype=out.dtype, shape=out.shape, axis=axis)
        for new in builder.take():
            node.graph.insert_before(node, new)  # type: ignore[union-attr]
        if not replace_value(out, made):
            return False
        node.graph.remove(node, safe=True)  # type: ignore[union-attr]
        return True
    if not is_standard(first, *_REDUCING) or first.attributes.get_int("keepdims", 1) != 0:
        return False
    if first.op_type in ("ArgMax", "ArgMin"):
        reduced = [first.attributes.get_int("axis", 0)]
    else:
        stored_axes = constant(first.inputs[1]) if len(first.inputs) > 1 else None
        told = first.attributes.get_ints("axes", None)
        if told is None and stored_axes is None:
            return False
        reduced = list(told if told is not None else stored_axes.reshape(-1))  # type: ignore[union-attr]
    if sorted(int(axis) % rank for axis in reduced) != want:
        return False
    middle = first.outputs[0]
    if not replace_value(out, middle):
        return False
    first.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    middle.shape = out.shape
    node.graph.remove(node, safe=True)  # type: ignore[union-attr]
    return True
