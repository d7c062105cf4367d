"""Normalizations in forms that the gradient rules and all runtimes support.

LayerNormalization gets the outputs that its gradient reads; a broadcast scale and bias become a Mul
and an Add after it. Half-precision inputs are normalized in float32. RMSNormalization, which few
runtimes support, is expanded.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import SHORT_FLOATS, known_shape
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes

__all__ = ["FLOAT", "as_float", "as_given", "complete_normalizations"]

FLOAT = ir.DataType.FLOAT


def complete_normalizations(model: ir.Model) -> Report:
    """Complete LayerNormalization and expand RMSNormalization, in place."""
    rules: dict[str, tuple[Rule, str]] = {
        "LayerNormalization": (_layer_norm, "outputs added that its gradient needs"),
        "RMSNormalization": (_rms_norm, "expanded"),
    }
    return rewrite_nodes(model, "complete_normalizations", rules)


def as_float(site: Site, value: ir.Value) -> ir.Value:
    """Cast a half-precision value to float32."""
    return site.cast(value, FLOAT) if value.dtype in SHORT_FLOATS else value


def as_given(site: Site, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """Cast a value back to ``dtype`` if that is half precision."""
    return site.cast(value, dtype) if dtype in SHORT_FLOATS else value


def _layer_norm(site: Site) -> list[ir.Value] | None:
    x, scale, bias = site.input(0), site.input(1), site.optional(2)
    if known_shape(x) is None:
        raise Refusal("the rank of its input is unknown; give the shapes of the model's inputs")
    shape, axis = site.shape(), site.axis()
    own = shape[axis:]
    plain = all(_fits(value, own) for value in (scale, bias) if value is not None)
    named = [output for output in site.node.outputs if output.name]  # a file may leave one out
    if plain and len(named) == 3 and x.dtype not in SHORT_FLOATS:
        return None
    data = as_float(site, x)
    # A scale of another shape is multiplied after it; the operator needs one, so it gets ones.
    inputs = [data, site.filled(1, site.shape_of(data, axis), FLOAT, own)]
    if plain:
        inputs = [as_float(site, v) for v in (data, scale, bias) if v is not None]
    result, *statistics = site.ops("LayerNormalization", *inputs, count=3, **site.node.attributes)
    result.shape = x.shape
    for output in statistics:
        output.type = ir.TensorType(FLOAT)
        output.shape = ir.Shape([*shape[:axis], *[1] * (len(shape) - axis)])
    if not plain:
        result = site.op("Mul", result, as_float(site, scale), shape=shape)
        if bias is not None:
            result = site.op("Add", result, as_float(site, bias), shape=shape)
    return [as_given(site, result, x.dtype), *statistics][: len(site.node.outputs)]


def _fits(value: ir.Value, own: tuple[int | str | None, ...]) -> bool:
    """Whether a scale or bias has the normalized shape, as far as it is known."""
    shape = known_shape(value)
    if shape is None or len(shape) != len(own):
        return shape is None
    pairs = zip(shape, own, strict=True)
    return all(
        dim in (mine, None) or (dim != 1 and not isinstance(mine, int)) for dim, mine in pairs
    )


def _rms_norm(site: Site) -> list[ir.Value | None]:
    """`x / sqrt(mean(x^2) + epsilon) scale`, the mean over the last axes."""
    x, scale = site.input(0), site.input(1)
    axis, shape = site.axis(), site.shape()
    rows = [*shape[:axis], *[1] * (len(shape) - axis)]
    data = as_float(site, x)
    squares = site.op("Mul", data, data, shape=shape)
    axes = site.ints(*range(axis, len(shape)))
    mean = site.op("ReduceMean", squares, axes, keepdims=1, shape=rows)
    epsilon = site.builder.const(site.number("epsilon", 1e-5), data.dtype or FLOAT)
    deviation = site.op("Sqrt", site.op("Add", mean, epsilon, shape=rows), shape=rows)
    inverse = site.op("Reciprocal", deviation, shape=rows)
    normal = as_given(site, site.op("Mul", data, inverse, shape=shape), x.dtype)
    return [site.op("Mul", normal, scale, shape=shape)]
