"""Fold integer computations with constant inputs: axes, sizes and indices.

Exporters write ``x.reshape(...)`` or ``a % rank`` as nodes over constants. Shape inference does not
resolve all of them, and gradients need known axes and ranks. Weights are never touched: float
computations are kept, except for the scales of a Resize and what is only cast to integers, such as
``math.ceil(length / stride)``.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.evaluate import add_initializer, evaluate_node
from ortboost.graph.query import (
    SHORT_FLOATS,
    all_graphs,
    all_nodes,
    constant,
    find_nodes,
    known_shape,
    producer_of,
    static_shape,
)

__all__ = ["fold_integers"]

_LARGEST = 1024  # elements of what a model needs to know
_OPEN = -(2**62)  # marks an unknown length
_OPERATORS = frozenset(
    "Abs Add And Cast CastLike Ceil Concat ConstantOfShape CumSum Div Equal Expand Flatten "
    "Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max "
    "Min Mod Mul Neg NonZero Not Or Range Reshape Shape Size Slice Squeeze Sub Tile Transpose "
    "Unsqueeze Where Xor".split()
)

_MOVING = frozenset(
    "Concat ConstantOfShape Expand Flatten Gather Identity Reshape Slice Squeeze Tile Transpose "
    "Unsqueeze".split()
)  # fractions that these compute are those that they read
_NUMBERS = frozenset("Add Cast Ceil Div Floor Mul Sub".split())


def fold_integers(model: ir.Model, *, largest: int = _LARGEST) -> Report:
    """Replace nodes whose result is known integers, at most ``largest``, in place, also in bodies.

    In bodies, only computations with constants are folded, as a state may have another shape than
    the declared one. Constants of the model are initializers. The report has the number of folded
    nodes of each operator. The rewrite is idempotent.
    """
    counts = Counter[str]()
    outputs = {id(value) for graph in all_graphs(model.graph) for value in graph.outputs}
    for node in find_nodes(list(all_nodes(model.graph)), *_OPERATORS):
        (output,) = node.outputs  # as all of these operators have
        if id(output) in outputs or math.prod(static_shape(output) or ()) > largest:
            continue
        moved = node.op_type in _MOVING or (node.op_type in _NUMBERS and _is_number(output))
        whole = moved and _is_cast(output)
        kinds = "biuf" if whole or _is_setting(output) else "biu"
        shapes = node.graph is model.graph
        opset = model.opset_imports.get("", 18)
        found = _result(node, opset, kinds, shapes=shapes, largest=largest)
        if found is None or found.dtype.kind not in kinds or found.size > largest:
            continue
        name = output.name or ""
        output.name = f"{name}/folded"  # the initializer takes over the name
        ir.convenience.replace_all_uses_with(output, add_initializer(model.graph, name, found))
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        graph.remove(node, safe=True)
        counts[node.op_type] += 1
    changed = {op: f"{n} computed" for op, n in sorted(counts.items())}
    return Report("fold_integers", changed=changed)


def _is_setting(value: ir.Value) -> bool:
    """Whether a value is only read as the region, scales or sizes of a Resize."""
    uses = [(usage.node.op_type, usage.idx) for usage in value.uses()]
    return bool(uses) and all(op in ("Resize", "Upsample") and index for op, index in uses)


def _is_cast(value: ir.Value) -> bool:
    """Whether a value is only cast to integers, directly or after arithmetic on a scalar."""
    nodes = [usage.node for usage in value.uses()]
    return bool(nodes) and all(
        (n.op_type == "Cast" and _is_whole(n.outputs[0].dtype))
        or (n.op_type in _NUMBERS and _is_number(n.outputs[0]) and _is_cast(n.outputs[0]))
        for n in nodes
    )


def _is_number(value: ir.Value) -> bool:
    """Whether a value is a scalar of a type in which arithmetic rounds alike in every runtime."""
    return static_shape(value) == () and value.dtype not in SHORT_FLOATS


def _is_whole(dtype: ir.DataType | None) -> bool:
    return dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)


def _result(
    node: ir.Node, opset: int, kinds: str, *, shapes: bool, largest: int
) -> NDArray[np.generic] | None:
    """The result of a node with constant inputs of these numpy kinds; ``None`` if unknown.

    Without ``shapes``, what is known of shapes is not used.
    """
    if node.op_type in ("Shape", "Size"):
        if not shapes:
            return None
        lengths = _shape(node)
        if lengths is None or _OPEN in lengths:
            return None
        return lengths if node.op_type == "Shape" else lengths.prod()
    feeds: dict[str, NDArray[Any]] = {}
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        array = constant(value, limit=largest)
        # `x.shape[1]` is known even if `x.shape[0]` is not.
        if array is None and shapes and not index and node.op_type in ("Gather", "Slice"):
            made_by = producer_of(value, "Shape")
            array = None if made_by is None else _shape(made_by)
        if array is None or (
            array.dtype.kind not in kinds and node.op_type not in ("Cast", "CastLike")
        ):
            return None
        feeds[value.name or ""] = array
    if node.op_type == "NonZero" and known_shape(node.inputs[0]) == ():
        return None  # runtimes count an axis for a scalar, the standard none
    if node.op_type in ("Div", "Mod") and any(
        np.any(np.less_equal(array, 0)) for array in feeds.values()
    ):
        return None  # runtimes may round negative quotients differently
    found = evaluate_node(node, feeds, opset)
    if found is None or (found[0].dtype == np.int64 and _OPEN in found[0]):
        return None
    return found[0]


def _shape(node: ir.Node) -> NDArray[np.int64] | None:
    """The dimensions that a Shape or Size reads, with unknown lengths marked."""
    shape = known_shape(node.inputs[0])
    if shape is None:
        return None
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    return np.array([n if isinstance(n, int) else _OPEN for n in shape[start:end]], np.int64)
