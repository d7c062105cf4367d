"""Pooling forms with a wrong native gradient, written as convolutions or in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.conditions import column_major
from ortboost.graph.normal_form.ceil_pools import pads_without_ceil, window_of
from ortboost.graph.query import producer_of, static_shape
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["max_pool", "pool"]


def max_pool(site: Site) -> Sequence[ir.Value] | None:
    """Make indices row-major for the gradient; avoid float16, which crashes the CPU runtime."""
    node, half = site.node, site.dtype == ir.DataType.FLOAT16
    if not site.integer("storage_order", 0) and not half:
        return None
    if (refused := column_major(node)) is not None:
        raise Refusal(refused)
    attributes: dict[str, Any] = dict(node.attributes)
    attributes.pop("storage_order", None)
    data = site.cast(site.input(0), ir.DataType.FLOAT) if half else site.input(0)
    pooled, *indices = site.ops(node.op_type, data, count=len(node.outputs), **attributes)
    for value in indices:
        value.type = ir.TensorType(ir.DataType.INT64)
    return [site.cast(pooled), *indices]


def _average_pool(site: Site) -> list[ir.Value] | None:
    r"""Replace average pools with a wrong gradient by a convolution with equal weights.

    The gradient kernel takes the shape of its output from the model, where a symbolic batch has
    length 0; 3-d and dilated pools are always wrong. With `c[o]` the reciprocal of the number of
    positions counted, which the operator itself gives for an image of ones:

        [N, C, ...] -> [N C, 1, ...],    y[o] = c[o] sum_t x[o s - p + t d]
    """
    kernel = site.integers("kernel_shape") or ()
    dilations = site.integers("dilations") or (1,) * len(kernel)
    data = site.input(0)
    fixed = static_shape(data) is not None
    if fixed and len(kernel) < 3 and all(dilation == 1 for dilation in dilations):
        return None
    if producer_of(data, "ConstantOfShape") is not None:
        return None  # the image of ones below
    if site.text("auto_pad", "NOTSET") != "NOTSET":
        return None  # explicit_padding refused it, with the reason
    spatial = range(2, 2 + len(kernel))
    # Each channel as an image of its own, as a convolution would sum over channels.
    planes = _reshaped(site, data, site.ints(-1, 1), site.shape_of(data, 2))
    window = window_of(site)
    ceil = bool(site.integer("ceil_mode", 0))
    if ceil:
        pads = pads_without_ceil(site.shape()[2:], window)
        if pads is None:
            raise Refusal("with ceil_mode=1 its gradient needs images of a known size")
        window["pads"] = pads
    ones = site.const(np.ones((1, 1, *kernel)))
    summed = site.op("Conv", planes, ones, **window)
    # c[o]: the operator gives c[o] times the positions inside for an image of ones.
    if ceil or (any(window["pads"]) and not site.integer("count_include_pad", 0)):
        unit = site.op("Concat", site.ints(1, 1), site.shape_of(data, 2), axis=0)
        shape = (1, 1, *(site.shape()[axis] for axis in spatial))
        image = site.filled(1, unit, shape=shape)
        pooled = site.op("AveragePool", image, **site.node.attributes)
        mean = site.op(
            "Mul", summed, site.op("Div", pooled, site.op("Conv", image, ones, **window))
        )
    else:
        mean = site.op("Div", summed, site.const(float(np.prod(kernel))))
    return [_reshaped(site, mean, site.shape_of(data, 0, 2), site.shape_of(summed, 2))]


def _reshaped(site: Site, value: ir.Value, *parts: ir.Value) -> ir.Value:
    target = site.op("Concat", *parts, axis=0)
    return site.op("Reshape", value, target, allowzero=1)


def pool(site: Site) -> Sequence[ir.Value] | None:
    """Convert an AveragePool to a form with a correct gradient; see the two functions above."""
    return _average_pool(site) or max_pool(site)
