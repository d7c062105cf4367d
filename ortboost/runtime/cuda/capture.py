r"""The form of a step for ``enable_cuda_graph``: no branches, no copies, no computed lengths.

    v = If(c) {then: a} {else: b}   ->   v = Where(c, a, b);  of bool: (c and a) or (not c and b)

This is done where both branches have results of equal shapes; another If stays. Both branches are
computed, and elements are selected from them: results are bitwise equal, and non-finite values in
one branch never reach the other. A skipped step then costs as much as any other, and the host does
not wait for the condition.

**States must not share a buffer with their next value:** in-place updates are safe only because a
branch starts after all readers of the old value (:mod:`ortboost.program.aliasing`), and this form
has no branches.

A Concat or Split of more than 32 tensors, which the provider refuses to capture, becomes several.
A GatherND becomes a Gather of rows: the provider's kernel copies from memory of the host that is
gone when the copy is replayed (read in the source of onnxruntime 1.31, not tried).

Lengths must be fixed: convert with ``--dim batch=64``. Steps that draw random numbers are not
eligible: each replay would repeat the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import onnx_ir as ir

from ortboost.graph.bodies import unwrap
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import constant, input_at, is_random, is_standard, static_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.unused import remove_unused_nodes

__all__ = ["capturable", "draws"]

_T = TypeVar("_T")
_MOST: Final = 32  # operands of a Concat, results of a Split


def capturable(model: ir.Model) -> ir.Model:
    """A copy of a step without branches and without computed lengths."""
    changed = model.clone()
    infer_shapes(changed)
    builder = Builder(changed.graph, "ortboost/capture")
    # Lengths are computed on the host, from which a captured graph must not copy.
    for node in list(changed.graph.all_nodes()):
        _fix_length(node, builder)
    # A branch that was moved out may contain another If.
    while gates := [node for node in changed.graph if _selects(node)]:
        for gate in gates:
            _select(gate, builder)
    for node in list(changed.graph):
        if is_standard(node, "Concat") and len(node.inputs) > _MOST:
            _concat_in_groups(node, builder)
        elif is_standard(node, "Split") and len(node.outputs) > _MOST:
            _split_in_groups(node, builder)
        elif is_standard(node, "GatherND"):
            _gather_rows(node, builder)
    remove_unused_nodes(changed)
    return changed


def draws(model: ir.Model) -> ir.Node | None:
    """A node that draws random numbers, if any."""
    return next(filter(is_random, model.graph.all_nodes()), None)


def _fix_length(node: ir.Node, b: Builder) -> None:
    """Replace a known shape by a constant."""
    shape = static_shape(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if shape is None or not is_standard(node, "Shape", "Size") or node.outputs[0].is_graph_output():
        return
    if node.op_type == "Size":
        found = b.const(int(np.prod(shape)), ir.DataType.INT64)
    else:
        first = node.attributes.get_int("start", None)
        found = b.ints(*shape[slice(first, node.attributes.get_int("end", None))])
    for use in list(node.outputs[0].uses()):
        use.node.replace_input_with(use.idx, found)


def _selects(node: ir.Node) -> bool:
    """Whether a node is an If whose branches have results of equal, known shapes.

    Where would broadcast others to one another.
    """
    if not is_standard(node, "If") or node.inputs[0] is None or static_shape(node.inputs[0]) != ():
        return False
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    return all(
        static_shape(then) is not None and static_shape(then) == static_shape(otherwise)
        for then, otherwise in zip(*(branch.outputs for branch in branches), strict=True)
    )


def _select(gate: ir.Node, b: Builder) -> None:
    """Compute both branches of an If, and select the results."""
    branches = (gate.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    results = [unwrap(branch, gate) for branch in branches]
    chosen = []
    for output, then, otherwise in zip(gate.outputs, *results, strict=True):
        condition = gate.inputs[0]
        assert condition is not None
        if then is otherwise:
            value = b.op("Identity", then)
        elif output.dtype == ir.DataType.BOOL:  # no provider has a Where of bool
            one = b.op("And", condition, then)
            other = b.op("And", b.op("Not", condition), otherwise)
            value = b.op("Or", one, other)
        else:
            value = b.op("Where", condition, then, otherwise, dtype=output.dtype)
        value.shape = output.shape
        chosen.append(value)
    replace_node(gate, chosen, b)


def _groups(values: Sequence[_T]) -> list[Sequence[_T]]:
    return [values[start : start + _MOST] for start in range(0, len(values), _MOST)]


def _gather_rows(node: ir.Node, b: Builder) -> None:
    """Number the rows that the indices select, where the lengths are known."""
    data, indices = node.inputs
    shape, wanted = static_shape(data), static_shape(indices)
    batched = node.attributes.get_int("batch_dims", 0) != 0
    if shape is None or wanted is None or batched or 0 in shape:
        return
    lengths, row = shape[: wanted[-1]], shape[wanted[-1] :]
    steps = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    stored = constant(indices)
    if stored is not None:
        positive = np.where(stored < 0, stored + lengths, stored)
        numbers = b.const((positive * steps).sum(axis=-1), ir.DataType.INT64)
    else:
        below = b.op("Less", indices, b.const(0, ir.DataType.INT64), dtype=ir.DataType.BOOL)
        from_end = b.op("Add", indices, b.ints(*lengths))
        terms = b.op("Mul", b.op("Where", below, from_end, indices), b.ints(*steps))
        numbers = b.op("ReduceSum", terms, b.ints(-1), keepdims=0)
    rows = b.op("Reshape", data, b.ints(math.prod(lengths), *row))
    result = b.op("Gather", rows, numbers, axis=0)
    result.shape = node.outputs[0].shape
    replace_node(node, [result], b)


def _concat_in_groups(node: ir.Node, b: Builder) -> None:
    axis = node.attributes.get_int("axis", 0)
    parts: list[ir.Value | None] = list(node.inputs)
    while len(parts) > 1:
        parts = [b.op("Concat", *group, axis=axis) for group in _groups(parts)]
    result = parts[0]
    assert result is not None
    result.shape = node.outputs[0].shape
    replace_node(node, [result], b)


def _split_in_groups(node: ir.Node, b: Builder) -> None:
    """Split into groups first; their number is below the limit for up to 1,024 results."""
    lengths, axis = constant(input_at(node, 1)), node.attributes.get_int("axis", 0)
    groups = [] if lengths is None else _groups(lengths.tolist())
    if not groups or len(groups) > _MOST or not all(value.name for value in node.outputs):
        return
    sizes = b.ints(*(sum(group) for group in groups))
    names: list[str | None] = [None] * len(groups)
    large = b.ops("Split", node.inputs[0], sizes, names=names, axis=axis)
    results: list[ir.Value] = []
    for part, group in zip(large, groups, strict=True):
        names = [None] * len(group)
        results += b.ops("Split", part, b.ints(*group), names=names, axis=axis)
    for old, new in zip(node.outputs, results, strict=True):
        new.shape = old.shape
    replace_node(node, results, b)
