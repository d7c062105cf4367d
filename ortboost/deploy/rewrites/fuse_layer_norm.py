"""Fuse a layer normalization that is written out into one LayerNormalization (opset 17).

    d = x - mean(x);  y = d / sqrt(mean(d^2) + eps) * scale + shift

over the last dimension; the square as Mul or Pow, the quotient as Div or as Mul with a Reciprocal.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import constant, is_standard, producer_of, scalar, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["fuse_layer_norm"]

_OPSET = 17
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def fuse_layer_norm(model: ir.Model) -> Report:
    """Fuse, in place, in the main graph. Below opset 17 nothing is done."""
    if model.opset_imports.get("", 0) < _OPSET:
        return Report("fuse_layer_norm")
    # With a shift the Add is the last node, and the Mul before it is read only by that Add.
    report = rewrite_nodes(model, "fuse_layer_norm", {"Add": _with_shift})
    without = rewrite_nodes(model, "fuse_layer_norm", {"Mul": _without_shift, "Div": _unscaled})
    report.changed.update(without.changed)
    report.kept.update(without.kept)
    return report


def _with_shift(site: Site) -> list[ir.Value | None] | None:
    for index in (0, 1):
        product = producer_of(site.input(index), "Mul")
        if product is None or sole_consumer(product.outputs[0]) is not site.node:
            continue
        found = _scaled(product)
        if found is not None and _is_weight(site.input(1 - index), found[0]):
            return _fused(site, *found, site.input(1 - index))
    return None


def _without_shift(site: Site) -> list[ir.Value | None] | None:
    found = _scaled(site.node)
    if found is None:
        if _normalized(site.node) is not None:
            _refuse_unscaled(site)
        return None
    return _fused(site, *found, None)


def _unscaled(site: Site) -> list[ir.Value | None] | None:
    if _normalized(site.node) is not None:
        _refuse_unscaled(site)
    return None


def _refuse_unscaled(site: Site) -> None:
    consumer = sole_consumer(site.node.outputs[0])
    if consumer is None or _scaled(consumer) is None:
        raise Refusal("no scale of the right length follows")


def _fused(
    site: Site, x: ir.Value, epsilon: float, scale: ir.Value, shift: ir.Value | None
) -> list[ir.Value | None]:
    site.note = "one LayerNormalization"
    options = {"dtype": x.dtype, "shape": x.shape, "axis": -1, "epsilon": epsilon}
    return [site.op("LayerNormalization", x, scale, shift, **options)]


def _scaled(product: ir.Node) -> tuple[ir.Value, float, ir.Value] | None:
    """The x, epsilon and scale of a Mul of normalized values and a scale."""
    for index in (0, 1) if is_standard(product, "Mul") else ():
        normalized, scale = producer_of(product.inputs[index]), product.inputs[1 - index]
        found = None if normalized is None else _normalized(normalized)
        if normalized is None or found is None or scale is None:
            continue
        if sole_consumer(normalized.outputs[0]) is product and _is_weight(scale, found[0]):
            return *found, scale
    return None


def _normalized(node: ir.Node) -> tuple[ir.Value, float] | None:
    """The x and epsilon of ``d / sqrt(mean(d^2) + eps)``."""
    if is_standard(node, "Div"):
        return _divided(node.inputs[0], producer_of(node.inputs[1], "Sqrt"), node)
    for index in (0, 1) if is_standard(node, "Mul") else ():
        inverse = producer_of(node.inputs[index], "Reciprocal")
        root = None if inverse is None else producer_of(inverse.inputs[0], "Sqrt")
        if inverse is not None and sole_consumer(inverse.outputs[0]) is node:
            return _divided(node.inputs[1 - index], root, inverse)
    return None


def _divided(
    d: ir.Value | None, root: ir.Node | None, consumer: ir.Node
) -> tuple[ir.Value, float] | None:
    """The x and epsilon, if ``d`` is a deviation and ``root`` its standard deviation."""
    if root is None or sole_consumer(root.outputs[0]) is not consumer:
        return None
    add, deviation = producer_of(root.inputs[0], "Add"), producer_of(d, "Sub")
    if add is None or deviation is None or deviation.inputs[0] is None:
        return None
    epsilon = next((e for e in map(scalar, add.inputs) if e is not None), None)
    variance = next((n for n in (producer_of(v, "ReduceMean") for v in add.inputs) if n), None)
    if epsilon is None or variance is None or not _over_last(variance):
        return None
    square = producer_of(variance.inputs[0], "Mul", "Pow")
    if square is None or square.inputs[0] is not d:
        return None
    if scalar(square.inputs[1]) != 2 if square.op_type == "Pow" else square.inputs[1] is not d:
        return None
    x, mean = deviation.inputs[0], producer_of(deviation.inputs[1], "ReduceMean")
    if mean is None or mean.inputs[0] is not x or not _over_last(mean) or x.dtype not in _FLOATS:
        return None
    return x, epsilon


def _over_last(node: ir.Node) -> bool:
    value = node.inputs[0]
    if value is None or value.shape is None or node.attributes.get_int("keepdims", 1) != 1:
        return False
    axes = node.attributes.get_ints("axes", None)
    if axes is None and len(node.inputs) > 1:
        stored = constant(node.inputs[1])
        axes = None if stored is None else [int(axis) for axis in stored.reshape(-1)]
    return axes is not None and list(axes) in ([-1], [len(value.shape) - 1])


def _is_weight(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is constant, with one number for each position of the last axis of ``x``."""
    stored = None if x.shape is None else constant(value)
    return stored is not None and x.shape is not None and stored.shape == (x.shape[-1],)
