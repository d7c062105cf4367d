"""Replace computed shapes by constants.

Exporters write ``Reshape(x, Concat(Gather(Shape(x), 0), Gather(Shape(x), 1), 12, 64))``, seven
nodes and more, where ``Reshape(x, [0, 0, 12, 64])`` means the same: 0 copies the dimension at the
same index. A shape that constants cannot express is still computed with fewer nodes:
``Concat(Shape<0:2>(x), [12])``.

Shape inference with symbolic dimensions shows which dimensions are equal. Nodes that become unused
are left to dead-code elimination.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import constant, find_nodes, input_at, is_standard, label
from ortboost.graph.shapes.dimensions import REST, Key, as_reshape, dimensions, elements, is_flat
from ortboost.graph.shapes.symbolic_shapes import name_lengths

__all__ = ["static_shapes"]

_MOST_AXES = 64
_PARTS = 15  # the opset from which Shape has a start and an end
_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_COMPUTING = (
    *("Shape", "Gather", "Concat", "Slice", "Squeeze", "Unsqueeze", "Cast", "Add", "Sub", "Mul"),
    *("Div", "Where", "Reshape", "Identity"),
)
_TAKERS = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Tile": 1}


def static_shapes(model: ir.Model) -> Report:
    """Replace computed shapes by constants or by fewer nodes, in place, in the main graph."""
    report = Report("static_shapes")
    builder = Builder(model.graph, "ortboost/shape")
    parts = model.opset_imports.get("", 0) >= _PARTS
    name_lengths(model)
    _store_numbers(model.graph, builder, report)
    # Nodes that take a shape: as constants if possible, else as fewer nodes.
    for node in find_nodes(model.graph, *_TAKERS):
        place = _TAKERS[node.op_type]
        value = input_at(node, place)
        if value is None or constant(value) is not None or value.is_initializer():
            continue
        keys = elements(value)
        if keys is None:
            report.kept[label(node)] = "its shape depends on more than shapes"
            continue
        if all(isinstance(key, int) for key in keys):  # all numbers
            lengths = [int(key) for key in keys if isinstance(key, int)]
            node.replace_input_with(place, builder.ints(*lengths))
            report.changed[label(node)] = f"shape {keys}"
            continue
        if node.op_type == "Reshape" and (shape := _reshape(node, keys)) is not None:
            node.attributes.pop("allowzero", None)  # its zeros copy a dimension
            node.replace_input_with(place, builder.ints(*shape))
            report.changed[label(node)] = f"shape {shape}"
            continue
        source = node.inputs[0]
        flattens = is_flat(keys, dimensions(source) or ()) and not isinstance(keys[-1], int)
        if node.op_type == "Reshape" and flattens and source is not None:
            out = node.outputs[0]
            dims = out.shape
            if dims is not None and source.shape is not None:
                dims = ir.Shape([source.shape[0], dims[1]])
            flat = builder.op("Flatten", source, dtype=out.dtype, shape=dims, axis=1)
            report.changed[label(node)] = "it flattens"
            replace_node(node, [flat], builder)
            continue
        pieces = _pieces(model.graph, node, keys)
        if pieces is None or _nodes(pieces, parts) >= _cone(value):
            continue
        made = [_piece(builder, piece, parts) for piece in pieces]
        if len(made) > 1:
            int64, rank = ir.DataType.INT64, len(keys)
            made = [builder.op("Concat", *made, dtype=int64, shape=[rank], axis=0)]
        model.graph.insert_before(node, builder.take())
        node.replace_input_with(place, made[0])
        report.changed[label(node)] = "shape computed with fewer nodes"
    return report


def _store_numbers(graph: ir.Graph, builder: Builder, report: Report) -> None:
    """Store integers that shapes determine, whatever reads them."""
    for node in find_nodes(graph, *_COMPUTING):
        out = node.outputs[0]
        if out.shape is None or out.dtype not in _INTEGERS or not out.uses():
            continue
        # A node that only such nodes read becomes unused when those are stored.
        if out.is_graph_output() or all(_computes(use.node) for use in out.uses()):
            continue
        keys = elements(out)
        if keys is None or not all(isinstance(key, int) for key in keys) or len(out.shape) > 1:
            continue
        numbers = np.array(keys, np.int64).reshape(() if len(out.shape) == 0 else -1)
        ir.convenience.replace_all_uses_with(out, builder.const(numbers, out.dtype))
        report.changed[label(node)] = f"{numbers.tolist()}"


def _computes(node: ir.Node) -> bool:
    """Whether a node computes integers that may be stored in its place."""
    return is_standard(node, *_COMPUTING) and node.outputs[0].dtype in _INTEGERS


def _reshape(node: ir.Node, keys: list[Key]) -> list[int] | None:
    """The target of a Reshape as constants; ``None`` if a 0 or -1 would be ambiguous."""
    source = dimensions(node.inputs[0])
    if source is None:
        return None
    copies = node.attributes.get_int("allowzero", 0) == 0  # whether 0 copies a dimension
    wanted: list[Key] = []
    for place, key in enumerate(keys):
        if key == 0 and copies and place < len(source):
            wanted.append(source[place])
        elif key == -1:
            wanted.append(REST)
        elif isinstance(key, int) and key <= 0:
            return None
        else:
            wanted.append(key)
    return as_reshape(wanted, source)  # None for more than one -1


Piece = tuple[ir.Value, int, int] | list[int]
"""The dimensions of a value from a start to an end, or numbers."""


def _pieces(graph: ir.Graph, node: ir.Node, keys: list[Key]) -> list[Piece] | None:
    """Runs of numbers, and runs of adjacent dimensions of one value."""
    # Where each length can be read: preferably of an input, which shape nodes can share.
    named: dict[Key, tuple[ir.Value, int]] = {}
    for value in (*graph.inputs, *node.inputs):
        for axis, key in enumerate(dimensions(value) or ()):
            if value is not None and not isinstance(key, int):
                named.setdefault(key, (value, axis))
    pieces: list[Piece] = []
    for key in keys:
        last = pieces[-1] if pieces else None
        if isinstance(key, int):
            if isinstance(last, list):
                last.append(key)
            else:
                pieces.append([key])
            continue
        if key not in named:
            return None
        value, axis = named[key]
        if isinstance(last, tuple) and last[0] is value and last[2] == axis:
            pieces[-1] = (value, last[1], axis + 1)
        else:
            pieces.append((value, axis, axis + 1))
    return pieces


def _nodes(pieces: list[Piece], parts: bool) -> int:
    """The number of nodes that the pieces need."""
    read = [piece for piece in pieces if isinstance(piece, tuple)]
    joined = int(len(pieces) > 1)  # the Concat
    if parts:
        return len(read) + joined
    # Without start and end: one Shape for each value, and a Slice for each piece that is not whole.
    cut = [piece for piece in read if piece[1:] != (0, len(dimensions(piece[0]) or ()))]
    return len({id(value) for value, _, _ in read}) + len(cut) + joined


def _piece(builder: Builder, piece: Piece, parts: bool) -> ir.Value:
    if isinstance(piece, list):
        return builder.const(np.array(piece, np.int64), ir.DataType.INT64)
    value, start, end = piece
    int64 = ir.DataType.INT64
    if parts:
        return builder.op("Shape", value, dtype=int64, shape=[end - start], start=start, end=end)
    rank = len(dimensions(value) or ())
    whole = builder.shared(id(value), lambda: builder.op("Shape", value, dtype=int64, shape=[rank]))
    if (start, end) == (0, rank):
        return whole
    return builder.op(
        "Slice", whole, builder.ints(start), builder.ints(end), dtype=int64, shape=[end - start]
    )


def _cone(value: ir.Value) -> int:
    """The number of nodes that would be unused if nothing read this value."""
    gone: set[int] = set()
    pending = [value]
    while pending:
        node = pending.pop().producer()
        if node is None or id(node) in gone:
            continue
        users = [usage.node for out in node.outputs for usage in out.uses()]
        if gone and any(id(user) not in gone for user in users):  # does not apply to the first node
            continue
        if is_standard(node, *_COMPUTING, "Equal"):
            gone.add(id(node))
            pending.extend(v for v in node.inputs if v is not None)
    return len(gone)
