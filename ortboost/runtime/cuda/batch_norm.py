r"""Batch normalization with fewer and faster passes over the images.

**Statistics.** The step computes `mean = mean(x)` and `var = mean((x - mean)^2)` of each channel as
a reduction, a subtraction, a product and another reduction: 24 bytes of memory traffic for each
element, and 6 more if `x` is cast from 16 bits. A LayerNormalization over the positions of an image
returns the mean `m_n` and the deviation of every image and channel in float32, whatever the type of
`x`, and reads and writes each element once. With images of equal size,

    mean = mean_n m_n        var = mean_n (v_n + (m_n - mean)^2),     v_n = 1 / inv_std_n^2

(the law of total variance). The squares are those of differences again, so no accuracy is lost if
the mean is large. The provider has no kernel for BatchNormalization in training mode
(microsoft/onnxruntime#16867).

**Factors.** In the gradient, a BatchNormalization with neither mean nor bias multiplies by one
number for each channel. A Mul does this at the bandwidth of the memory; cuDNN's kernel takes 1.7
times as long (ResNet-50, 128 images on an H200: 4.7 ms for all layers, at 2.7 ms for the bytes).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ortboost.autodiff.portable.rewrites.batch_norm import batch_normalizations
from ortboost.graph.build import Builder
from ortboost.graph.query import (
    SHORT_FLOATS,
    constant,
    fixed_lengths,
    input_at,
    known_shape,
    producer_of,
    source_before,
    static_shape,
)
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["factors_by_channel", "statistics_by_image"]

_FLOAT = ir.DataType.FLOAT
_POSITIONS = 128  # minimum: the kernel has 128 threads for each image and channel
_OPSET = 18  # the first in which the axes of ReduceMean are an input
_EPSILON = 1e-20  # of the normalization: far below the variance of anything that is not constant


def statistics_by_image(model: ir.Model) -> bool:
    """Compute the statistics of batch normalizations image by image; True if there was one."""
    if model.opset_imports.get("", 0) < _OPSET:
        return False
    builder = Builder(model.graph, "ortboost/statistics")
    done = [_replace(node, builder) for node in batch_normalizations(model.graph)]
    if any(done):
        model.graph.sort()  # the statistics may have been read before the normalization
    return any(done)


def _replace(node: ir.Node, b: Builder) -> bool:
    x, mean, variance = node.inputs[0], node.inputs[3], node.inputs[4]
    cast = producer_of(x, "Cast")
    source = cast.inputs[0] if cast is not None and cast.inputs[0] is not None else x
    shape, vector = known_shape(x) if x is not None else None, static_shape(mean) if mean else None
    if source is None or mean is None or variance is None or shape is None or vector is None:
        return False
    reduces = [producer_of(variance), producer_of(source_before(mean, "Reshape"))]
    axes = [None if n is None else constant(input_at(n, 1)) for n in reduces]
    others = [0, *range(2, len(shape))]
    if any(a is None or sorted(int(v) % len(shape) for v in a.tolist()) != others for a in axes):
        return False
    if mean.dtype != _FLOAT or variance.dtype != _FLOAT:
        return False
    space = fixed_lengths(shape[2:])
    if space is None or source.dtype not in (_FLOAT, *SHORT_FLOATS):
        return False
    positions = math.prod(space)
    if positions < _POSITIONS:
        return False
    rows = b.op("Reshape", source, b.ints(0, 0, positions), shape=[*shape[:2], positions])
    ones = b.const([1.0] * positions, source.dtype)
    _, of_image, inverse = b.ops(
        "LayerNormalization", rows, ones, names=[None] * 3, axis=-1, epsilon=_EPSILON
    )
    for value in (of_image, inverse):
        value.type, value.shape = ir.TensorType(_FLOAT), ir.Shape([*shape[:2], 1])
    batch = b.ints(0)
    whole = b.op("ReduceMean", of_image, batch, keepdims=1, shape=[1, shape[1], 1])
    apart = b.op("Sub", of_image, whole, shape=of_image.shape)
    between = b.op("Mul", apart, apart, shape=of_image.shape)
    within = b.op("Reciprocal", b.op("Mul", inverse, inverse, shape=inverse.shape))
    each = b.op("Add", within, between, shape=of_image.shape)
    total = b.op("ReduceMean", each, batch, keepdims=1, shape=[1, shape[1], 1])
    found = [b.op("Reshape", value, b.ints(-1), shape=vector) for value in (whole, total)]
    for old, new in zip((mean, variance), found, strict=True):
        name = old.name
        old.name = b.unique(f"{name}/unused")
        new.name = name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    b.graph.insert_before(node, b.take())
    return True


def factors_by_channel(model: ir.Model) -> bool:
    """Replace batch normalizations without mean and bias by a product; True if there was one."""
    return rewrite_nodes(model, "factors", {"BatchNormalization": _factor}).modified


def _factor(site: Site) -> list[ir.Value | None] | None:
    """`x scale / sqrt(variance + epsilon)`."""
    offsets = [site.array(2), site.array(3)]
    shape = known_shape(site.input(0))
    if shape is None or len(shape) < 2 or any(a is None or a.any() for a in offsets):
        return None
    types = {site.input(index).dtype for index in (0, 1, 4)}
    if site.integer("training_mode", 0) or types != {_FLOAT}:
        return None
    scale, variance = site.input(1), site.input(4)
    shifted = site.op("Add", variance, site.const(site.number("epsilon", 1e-5)), shape=scale.shape)
    factor = site.op("Div", scale, site.op("Sqrt", shifted, shape=scale.shape), shape=scale.shape)
    column = site.op("Reshape", factor, site.ints(-1, *[1] * (len(shape) - 2)))
    column.shape = ir.Shape([shape[1], *[1] * (len(shape) - 2)])
    return [site.op("Mul", site.input(0), column, shape=shape)]
