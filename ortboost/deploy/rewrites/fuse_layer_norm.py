"""Fuse a layer normalization written as several nodes into LayerNormalization (opset 17).

    d = x - mean(x);  y = d / sqrt(mean(d^2) + eps) * scale + shift

over the last dimension; the square as Mul or Pow, the quotient as Div or as Mul with a Reciprocal.
Only in float32, in which the operator computes whatever the type of its input.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.deploy.rewrites.merge_neighbours import reduced_axes
from ortboost.graph.patterns import Found, Op, Pattern, matches
from ortboost.graph.query import constant, scalar, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["count_layer_norms", "fuse_layer_norm"]

_OPSET = 17
_DEVIATION = Op("Sub", "x", Op("ReduceMean", "x", name="mean"), name="d")
_SQUARE = (Op("Mul", "d", "d"), Op("Pow", "d", 2.0))
_ROOT = Op("Sqrt", Op("Add", Op("ReduceMean", _SQUARE, name="variance"), "epsilon"), alone=True)


def _normalized(*, alone: bool = False) -> Pattern:
    return (
        Op("Div", _DEVIATION, _ROOT, alone=alone),
        Op("Mul", _DEVIATION, Op("Reciprocal", _ROOT, alone=True), alone=alone),
    )


def _scaled(*, alone: bool = False) -> Op:
    return Op("Mul", _normalized(alone=True), "scale", alone=alone)


_SHIFTED = Op("Add", _scaled(alone=True), "shift")


@rewrites("Add", "Mul", "Div")
def fuse_layer_norm(site: Site) -> list[ir.Value | None] | None:
    """Fuse, in place, in the main graph. Below opset 17 nothing is done."""
    if site.opset < _OPSET:
        return None
    out, consumer = site.node.outputs[0], sole_consumer(site.node.outputs[0])
    following = None if consumer is None else consumer.outputs[0]
    if _found(following, _SHIFTED) is not None:
        return None  # with a shift, the Add is the last node
    found = _found(out, (_SHIFTED, _scaled()))
    if found is not None:
        site.note = "one LayerNormalization"
        x, epsilon = found["x"], scalar(found["epsilon"])
        options = {"dtype": x.dtype, "shape": x.shape, "axis": -1, "epsilon": epsilon}
        return [site.op("LayerNormalization", x, found["scale"], found.get("shift"), **options)]
    if _found(out, _normalized()) is not None and _found(following, _scaled()) is None:
        raise Refusal("it is not followed by a scale of the right length")
    return None


def count_layer_norms(model: ir.Model) -> int:
    """Count the layer normalizations written as several nodes."""
    return sum(_found(node.outputs[0], _scaled()) is not None for node in model.graph)


def _found(value: ir.Value | None, pattern: Pattern) -> Found | None:
    """The values of a layer normalization over the last axis."""
    for found in matches(value, pattern):
        x, means = found["x"], [found[name].producer() for name in ("mean", "variance")]
        weights = [found[name] for name in ("scale", "shift") if name in found]
        if (
            x.dtype == ir.DataType.FLOAT
            and scalar(found["epsilon"]) is not None
            and len(found["epsilon"].shape or ()) <= 1  # more could add dimensions
            and all(node is not None and _over_last(node) for node in means)
            and all(_is_weight(weight, x) for weight in weights)
        ):
            return found
    return None


def _over_last(node: ir.Node) -> bool:
    value = node.inputs[0]
    if value is None or value.shape is None or node.attributes.get_int("keepdims", 1) != 1:
        return False
    return reduced_axes(node) in ([-1], [len(value.shape) - 1])


def _is_weight(value: ir.Value, x: ir.Value) -> bool:
    """Whether a value is constant with the length of the last axis of ``x``."""
    stored = None if x.shape is None else constant(value)
    return stored is not None and x.shape is not None and stored.shape == (x.shape[-1],)
