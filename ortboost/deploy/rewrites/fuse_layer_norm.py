"""A layer normalization that is written out, as one LayerNormalization (opset 17).

    d = x - mean(x);  y = d / sqrt(mean(d^2) + eps) * scale + shift

over the last dimension; the square as Mul or Pow, the quotient as Div or as Mul with a Reciprocal.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import (
    constant,
    is_standard,
    label,
    number,
    only_user,
    replace_value,
)
from ortboost.graph.build import Builder

__all__ = ["fuse_layer_norm"]

_OPSET = 17
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def fuse_layer_norm(model: ir.Model) -> Report:
    """Fuse, in place, in the main graph. Below opset 17 nothing is done."""
    report = Report("fuse_layer_norm")
    if model.opset_imports.get("", 0) < _OPSET:
        return report
    builder = Builder(model.graph, "ortboost/norm")
    for root in list(model.graph):
        if not is_standard(root, "Sqrt"):
            continue
        match = _match(root)
        if match is None:
            continue
        x, epsilon, normalized, inner = match
        scale_node = only_user(normalized.outputs[0])
        scale = _weight(scale_node, normalized.outputs[0], x, "Mul")
        if scale_node is None or scale is None:
            report.kept[label(normalized)] = "no scale of the right length follows"
            continue
        shift_node = only_user(scale_node.outputs[0])
        shift = _weight(shift_node, scale_node.outputs[0], x, "Add")
        last = scale_node if shift is None or shift_node is None else shift_node
        made = builder.op(
            "LayerNormalization", x, scale, *([] if shift is None else [shift]),
            dtype=x.dtype, shape=x.shape, axis=-1, epsilon=epsilon,
        )  # fmt: skip
        for new in builder.take():
            model.graph.insert_before(last, new)
        replace_value(last.outputs[0], made)
        for node in dict.fromkeys((last, scale_node, normalized, *inner)):
            if node.graph is not None and not any(
                o.uses() or o.is_graph_output() for o in node.outputs
            ):
                model.graph.remove(node, safe=True)
        report.changed[label(last)] = "one LayerNormalization"
    return report


def _match(root: ir.Node) -> tuple[ir.Value, float, ir.Node, list[ir.Node]] | None:
    """The x, epsilon, the node with the normalized value, and what is between, outermost first."""
    add = _maker(root.inputs[0], "Add")
    if add is None:
        return None
    epsilon = next((e for e in map(number, add.inputs) if e is not None), None)
    variance = next((n for n in (_maker(v, "ReduceMean") for v in add.inputs) if n), None)
    if epsilon is None or variance is None or not _over_last(variance):
        return None
    square = _maker(variance.inputs[0], "Mul", "Pow")
    if square is None:
        return None
    powered = is_standard(square, "Pow")
    if (powered and number(square.inputs[1]) != 2) or (
        not powered and square.inputs[0] is not square.inputs[1]
    ):
        return None
    deviation = _maker(square.inputs[0], "Sub")
    if deviation is None or deviation.inputs[0] is None:
        return None
    x = deviation.inputs[0]
    mean = _maker(deviation.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not x or not _over_last(mean) or x.dtype not in _FLOATS:
        return None
    reader = only_user(root.outputs[0])
    inverse = reader if reader is not None and is_standard(reader, "Reciprocal") else None
    normalized = only_user(inverse.outputs[0]) if inverse is not None else reader
    if normalized is None:
        return None
    divisor = (inverse or root).outputs[0]
    d = deviation.outputs[0]
    if inverse is None:
        fits = is_standard(normalized, "Div") and list(normalized.inputs) == [d, divisor]
    else:
        fits = is_standard(normalized, "Mul") and {id(v) for v in normalized.inputs} == {
            id(d),
            id(divisor),
        }
    if not fits:
        return None
    between = [inverse, root, add, variance, square, deviation, mean]
    return x, epsilon, normalized, [node for node in between if node is not None]


def _maker(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and is_standard(node, *op_types) else None


def _over_last(node: ir.Node) -> bool:
    value = node.inputs[0]
    if value is None or value.shape is None or node.attributes.get_int("keepdims", 1) != 1:
        return False
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1:
        stored = constant(node.inputs[1])
        axes = None if stored is None else [int(axis) for axis in stored.reshape(-1)]
    return axes is not None and list(axes) in ([-1], [len(value.shape) - 1])


def _weight(node: ir.Node | None, value: ir.Value, x: ir.Value, op: str) -> ir.Value | None:
    """The operand of a product or sum that has one number for each place of the last axis."""
    if node is None or not is_standard(node, op) or x.shape is None:
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    stored = constant(other, limit=1 << 40)
    return other if stored is not None and stored.shape == (x.shape[-1],) else None
