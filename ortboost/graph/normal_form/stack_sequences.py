"""Replace a sequence that a Loop appends to by a scan output of the Loop.

The TorchScript exporter writes such a sequence for ``outputs.append(h)`` in a loop with
``torch.stack(outputs)`` after it; torch's dynamo exporter writes one for EmbeddingBag. Neither
engine differentiates sequences.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.bodies import as_model, own_outputs, states_of
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import (
    constant,
    find_nodes,
    input_at,
    is_standard,
    known_shape,
    producer_of,
    source_before,
    static_shape,
    subgraphs,
)
from ortboost.graph.shapes.dimensions import elements
from ortboost.graph.shapes.loop_shapes import infer_body

__all__ = ["stack_sequences"]

_SAME = ("Cast", "Div", "Identity", "Mul")
_REDUCES = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum")


def stack_sequences(model: ir.Model) -> Report:
    """Replace, in place, sequences that start empty and get one tensor of the same shape per step.

    Only ConcatFromSequence may read them. The shapes of the main graph must have been inferred.
    """
    report = Report("stack_sequences")
    builder = Builder(model.graph, "ortboost/stack")
    dims = (dim for value in model.graph.inputs for dim in known_shape(value) or ())
    given = {dim for dim in dims if dim is not None}
    for node in find_nodes(list(model.graph), "Loop"):
        for index in reversed(range(states_of(node)[2])):
            if _is_appended(node, index) and (shape := _shape(model, node, index, given)):
                node = _stacked(node, index, shape, builder)
                report.changed[node.name or ""] = f"stacks its steps, {list(shape)} each"
    return report


def _append(node: ir.Node, index: int) -> ir.Node | None:
    """The SequenceInsert of the body that computes this loop state; ``None`` if there is none."""
    body = node.attributes["body"].as_graph()
    append = producer_of(body.outputs[1 + index], "SequenceInsert")
    return append if append is not None and append.graph is body else None


def _is_appended(node: ir.Node, index: int) -> bool:
    """Whether a state is a sequence that starts empty, grows by one, and is joined at the end."""
    append, state = _append(node, index), node.attributes["body"].as_graph().inputs[2 + index]
    first = source_before(node.inputs[2 + index], "Identity")
    if append is None or first is None or producer_of(first, "SequenceEmpty") is None:
        return False
    at_the_end = len(append.inputs) == 2 and append.inputs[0] is state
    alone = len(state.uses()) == len(append.outputs[0].uses()) + 1 == 1
    readers = [use.node for use in node.outputs[index].uses()]
    joined = all(is_standard(reader, "ConcatFromSequence") for reader in readers)
    return at_the_end and alone and joined and not node.outputs[index].is_graph_output()


def _shape(
    model: ir.Model, node: ir.Node, index: int, given: Collection[int | str]
) -> tuple[int | str, ...]:
    """The shape of the appended tensor, the same in every step; empty if it may differ."""
    body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
    own_outputs(body)
    alone = as_model(body, model).model
    infer_body(alone, node)
    append = alone.graph.outputs[1 + index].producer()
    dims = None if append is None else _dims(append.inputs[1])
    if dims is None or not all(isinstance(dim, int) or dim in given for dim in dims):
        return ()
    return tuple(dim for dim in dims if dim is not None)


def _dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """The shape of a value, also where ONNX infers none: after If, Expand, Slice, reductions."""
    known = known_shape(value)
    node = None if value is None else value.producer()
    if node is None or value is None or static_shape(value) is not None:
        return known
    if is_standard(node, "If"):
        index = value.index() or 0
        one, other = (_dims(branch.outputs[index]) for branch in subgraphs(node))
        return one if one == other else known
    if is_standard(node, "Expand") and (sizes := elements(node.inputs[1])) is not None:
        wanted = tuple(size if isinstance(size, int) else None for size in sizes)
        return wanted if math.prod(static_shape(node.inputs[0]) or (0,)) == 1 else known
    dims = _dims(node.inputs[0])
    axes = constant(input_at(node, 3 if node.op_type == "Slice" else 1))
    if dims is None or not is_standard(node, *_SAME, *_REDUCES, "Slice"):
        return known
    if is_standard(node, *_SAME):  # another operand of one element has no effect on the shape
        small = all(math.prod(static_shape(v) or (0,)) == 1 for v in node.inputs[1:])
        return dims if small and len(known_shape(value) or dims) == len(dims) else known
    if axes is None and is_standard(node, "Slice"):
        axes = np.arange(next(iter(static_shape(node.inputs[1]) or ()), len(dims)))
    if axes is None:
        return known
    cut = {int(axis) % len(dims) for axis in axes}
    if node.op_type == "Slice":
        return tuple(None if axis in cut else dim for axis, dim in enumerate(dims))
    kept = node.attributes.get_int("keepdims", 1)
    dims = tuple(1 if axis in cut else dim for axis, dim in enumerate(dims))
    return dims if kept else tuple(dim for axis, dim in enumerate(dims) if axis not in cut)


def _stacked(node: ir.Node, index: int, shape: tuple[int | str, ...], b: Builder) -> ir.Node:
    """The loop with the appended tensors as a scan output, in place of the sequence."""
    body, append = node.attributes["body"].as_graph(), _append(node, index)
    assert append is not None
    element = append.inputs[1]
    assert element is not None
    body.outputs.pop(1 + index)
    body.remove(append, safe=True)
    body.inputs.pop(2 + index)
    source = element.producer()
    if source is None or source.graph is not body:  # values of other graphs cannot be outputs
        copy = ir.node("Identity", [element])
        copy.outputs[0].name, copy.outputs[0].type = b.unique(f"{element.name}/step"), element.type
        body.append(copy)
        body.outputs.append(copy.outputs[0])
    else:
        body.outputs.append(element)
    own_outputs(body)
    inputs = [value for place, value in enumerate(node.inputs) if place != 2 + index]
    made = [ir.Value(name=b.unique(f"{node.name}/result"), type=v.type) for v in node.outputs]
    name = b.unique(node.name or "loop")
    stack = ir.Value(
        name=b.unique(f"{node.name}/stack"),
        type=ir.TensorType(element.dtype) if element.dtype is not None else None,
        shape=ir.Shape([None, *shape]),
    )
    made = [*made[:index], *made[index + 1 :], stack]
    loop = ir.Node("", "Loop", inputs, node.attributes.values(), outputs=made, name=name)
    readers = [use.node for use in node.outputs[index].uses()]
    b.nodes.append(loop)
    kept = [*made[:index], None, *made[index:-1]]
    for reader in readers:  # they no longer read the sequence, which then has no reader
        reader.replace_input_with(0, stack)
    replace_node(node, kept, b)
    for reader in readers:
        replace_node(reader, [_joined(reader, stack, shape, b)], b)
    return loop


def _joined(reader: ir.Node, stack: ir.Value, shape: tuple[int | str, ...], b: Builder) -> ir.Value:
    """The result of ConcatFromSequence, from the steps stacked along a new first axis."""
    axis, rank = reader.attributes.get_int("axis", 0), len(shape)
    new = reader.attributes.get_int("new_axis", 0)
    axis += (rank + new) * (axis < 0)
    order = [*range(1, axis + 1), 0, *range(axis + 1, rank + 1)]
    moved = stack if axis == 0 else b.op("Transpose", stack, perm=order)
    if new:
        return moved if axis else b.op("Identity", stack)
    # Steps and the axis become one axis; the lengths before and after it are copied.
    sizes = b.op("Shape", moved, dtype=ir.DataType.INT64)
    front, back = (b.ints(0), b.ints(axis)), (b.ints(axis + 2), b.ints(rank + 1))
    parts = [b.op("Slice", sizes, *front), b.ints(-1), b.op("Slice", sizes, *back)]
    return b.op("Reshape", moved, b.op("Concat", *parts, axis=0))
