"""Merge two adjacent nodes if one of them can do the work of both.

* ``Slice(Slice(x))`` over different axes is one Slice.
* ``Concat(Concat(a, b), c)`` along one axis is one Concat.
* ``Unsqueeze(Gather(x, i))`` at the axis that a scalar ``i`` removed is ``Gather(x, [i])``.
* ``Unsqueeze(Reduce(x))`` at the axes that were reduced is ``Reduce(x)`` with ``keepdims=1``.
* ``Reshape(Softmax(Flatten(x)))`` to the shape of ``x`` is one Softmax, if all but one of the axes
  that the Flatten joins have the length 1. The converter of onnx writes it for opsets before 13.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import (
    constant,
    input_at,
    is_standard,
    known_shape,
    label,
    producer_of,
    sole_consumer,
)
from ortboost.graph.rewriting import Site, rewrite_nodes
from ortboost.graph.shapes.dimensions import dimensions, same_view

__all__ = ["merge_neighbours", "reduced_axes", "slice_bounds"]

_REDUCING = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "ArgMax", "ArgMin"),
)


_SOFTMAX_OF_ONE_AXIS = 13  # the opset


def merge_neighbours(model: ir.Model) -> Report:
    """Merge pairs of nodes, in place, in the main graph."""
    rules = {"Concat": _concat, "Reshape": _reshape, "Slice": _slice, "Unsqueeze": _unsqueeze}
    return rewrite_nodes(model, "merge_neighbours", rules, bypass=True)


def _reshape(site: Site) -> list[ir.Value | None] | None:
    """Undo the two views around a Softmax of one axis."""
    out = site.node.outputs[0]
    softmax = producer_of(site.input(0), "Softmax", "LogSoftmax")
    flatten = producer_of(input_at(softmax, 0), "Flatten") if softmax is not None else None
    if softmax is None or flatten is None or site.opset < _SOFTMAX_OF_ONE_AXIS:
        return None
    source = flatten.inputs[0]
    shape, axis = known_shape(source), flatten.attributes.get_int("axis", 1)
    if source is None or shape is None or not same_view(dimensions(source), dimensions(out)):
        return None
    last = softmax.attributes.get_int("axis", -1) in (-1, 1) and -len(shape) <= axis < len(shape)
    if not last or any(length != 1 for length in shape[axis % len(shape) + 1 :]):
        return None
    if sole_consumer(site.input(0)) is None:
        return None
    site.note = f"undoes '{label(flatten)}'"
    return [site.op(softmax.op_type, source, axis=axis, dtype=out.dtype, shape=out.shape)]


def _concat(site: Site) -> list[ir.Value | None] | None:
    """Replace inputs that come from a Concat along the same axis by the inputs of that Concat."""
    node, axis = site.node, _axis(site.node)
    inner = {id(v): made for v in node.inputs if (made := _merged(site, v, axis)) is not None}
    if axis is None or not inner:
        return None
    parts: list[ir.Value | None] = []
    for value in node.inputs:
        parts += inner[id(value)].inputs if id(value) in inner else (value,)
    node.resize_inputs(len(parts))
    for place, part in enumerate(parts):
        node.replace_input_with(place, part)
    names = (f"'{label(made)}'" for made in inner.values())
    site.note = f"merged with {', '.join(names)}"
    return list(node.outputs)


def _merged(site: Site, value: ir.Value | None, axis: int | None) -> ir.Node | None:
    """The Concat of a value, if only Concats along its axis read it: it is merged into them all."""
    inner = producer_of(value, "Concat")
    if value is None or inner is None or _axis(inner) != axis or value.is_graph_output():
        return None
    readers = [use.node for use in value.uses()]
    same = all(is_standard(node, "Concat") and _axis(node) == axis for node in readers)
    return inner if same else None


def _axis(node: ir.Node) -> int | None:
    shape = node.outputs[0].shape
    axis = node.attributes.get_int("axis", 0)
    return axis if axis >= 0 else None if shape is None else axis + len(shape)


def _slice(site: Site) -> list[ir.Value | None] | None:
    """Make the second Slice cut all axes, if only such Slices read the first."""
    node, middle = site.node, site.input(0)
    first = producer_of(middle, "Slice")
    if first is None or middle.is_graph_output():
        return None
    if not all(is_standard(use.node, "Slice") and use.idx == 0 for use in middle.uses()):
        return None
    one, two = slice_bounds(first), slice_bounds(node)
    if one is None or two is None or set(one[2]) & set(two[2]):  # an axis cut twice
        return None
    node.replace_input_with(0, first.inputs[0])
    node.resize_inputs(5)
    for place, (a, b) in enumerate(zip(one, two, strict=True), 1):
        node.replace_input_with(place, site.ints(*a, *b))
    site.note = f"merged with '{label(first)}'"
    return list(node.outputs)


def slice_bounds(node: ir.Node) -> list[list[int]] | None:
    """Starts, ends, non-negative axes and steps of a Slice, if all are stored."""
    value = node.inputs[0]
    given = [input_at(node, place) for place in range(1, 5)]
    arrays = [constant(value) for value in given]
    starts, ends, axes, steps = arrays
    if value is None or value.shape is None or starts is None or ends is None:
        return None
    if any(v is not None and array is None for v, array in zip(given, arrays, strict=True)):
        return None
    axes = np.arange(len(starts)) if axes is None else axes % len(value.shape)
    steps = np.ones(len(starts), np.int64) if steps is None else steps
    return [[int(number) for number in array] for array in (starts, ends, axes, steps)]


def _unsqueeze(site: Site) -> list[ir.Value | None] | None:
    """Make a Gather or a reduction keep the dimension that the Unsqueeze restores."""
    first, out, inserted = producer_of(site.input(0)), site.node.outputs[0], site.array(1)
    if first is None:
        return None
    source = input_at(first, 0)
    rank = 0 if source is None or source.shape is None else len(source.shape)
    if source is None or inserted is None or not inserted.size or not rank:
        return None
    if sole_consumer(site.input(0)) is not site.node:
        return None
    site.note = f"merged with '{label(first)}'"
    restored = sorted(int(axis) % rank for axis in inserted.reshape(-1))
    if is_standard(first, "Gather"):
        index = constant(first.inputs[1], limit=1)
        axis = first.attributes.get_int("axis", 0) % rank
        if index is None or index.ndim or restored != [axis]:
            return None
        stored = site.const(index.reshape(1), ir.DataType.from_numpy(index.dtype))
        return [site.op("Gather", source, stored, dtype=out.dtype, shape=out.shape, axis=axis)]
    axes = reduced_axes(first)
    if axes is None or first.attributes.get_int("keepdims", 1) != 0:
        return None
    if sorted(axis % rank for axis in axes) != restored:
        return None
    first.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
    first.outputs[0].shape = out.shape
    return [*site.computed_by(first)]


def reduced_axes(node: ir.Node) -> list[int] | None:
    """The axes over which a reduction goes, if they are given and stored."""
    if not is_standard(node, *_REDUCING):
        return None
    if node.op_type in ("ArgMax", "ArgMin"):
        return [node.attributes.get_int("axis", 0)]
    axes = node.attributes.get_ints("axes", None)
    stored = constant(input_at(node, 1)) if axes is None else np.array(axes)
    return None if stored is None else [int(axis) for axis in stored.reshape(-1)]
