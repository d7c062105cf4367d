"""Normalizations, written out by their definitions, and losses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.portable.rules.losses import LOWERINGS
from ortboost.graph.formulas import Term
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []


def _moments(site: Site, data: ir.Value, axes: ir.Value) -> tuple[Term, Term]:
    """``x - mean``, and the biased variance over the axes."""
    centered = Term(site, data) - site.op("ReduceMean", data, axes, keepdims=1)
    return centered, (centered * centered).call("ReduceMean", axes, keepdims=1)


def _standardized(site: Site, data: ir.Value, axes: ir.Value) -> ir.Value:
    """``(x - mean) / sqrt(var + epsilon)`` over the axes."""
    centered, variance = _moments(site, data, axes)
    return (centered / (variance + site.number("epsilon", 1e-5)).call("Sqrt")).value


def _affine(site: Site, data: ir.Value, trailing: int) -> ir.Value:
    """``x * scale + bias``, with one scale and bias for each index of axis 1."""
    scale, bias = site.input(1), site.input(2)
    if trailing:
        axes = site.ints(*range(1, 1 + trailing))
        scale, bias = (site.op("Unsqueeze", value, axes) for value in (scale, bias))
    return site.op("Add", site.op("Mul", data, scale), bias)


@decomposes("InstanceNormalization")
def _instance(site: Site) -> list[ir.Value | None]:
    """Standardize each channel of each image over its spatial axes."""
    rank = site.rank()
    axes = site.ints(*range(2, rank))
    normal = _standardized(site, site.input(0), axes)
    return [_affine(site, normal, rank - 2)]


@decomposes("GroupNormalization")
def _group(site: Site) -> list[ir.Value | None]:
    """``[N, C, ...] -> [N, G, C/G * ...]``, standardized over the last axis.

    Scale and bias have one element per group up to opset 20, and one per channel from 21.
    """
    rank, groups, data = site.rank(), site.integer("num_groups", 1), site.input(0)
    folded = site.op("Reshape", data, site.ints(0, groups, -1))  # 0 keeps the batch
    normal = _standardized(site, folded, site.ints(2))
    # Below opset 21 the standard requires one per group; one per channel is accepted, too.
    (count,) = known_shape(site.input(1)) or (None,)
    channels = site.shape()[1]
    per_channel = site.opset >= 21 or (count == channels and count != groups)
    if not per_channel:
        normal = _affine(site, normal, 1)
    result = site.op("Reshape", normal, site.shape_of(data), shape=data.shape)
    return [_affine(site, result, rank - 2) if per_channel else result]


@decomposes("MeanVarianceNormalization")
def _mean_variance(site: Site) -> list[ir.Value | None]:
    """``(x - mean) / (sqrt(var) + 1e-9)``, the function body of the standard."""
    axes = site.ints(*(site.integers("axes") or (0, 2, 3)))
    centered, variance = _moments(site, site.input(0), axes)
    return [(centered / (variance.call("Sqrt") + 1e-9)).value]


@decomposes("LpNormalization")
def _lp(site: Site) -> list[ir.Value | None]:
    """``x / norm``; a zero vector stays zero, and its gradient is that of ``x / 1``."""
    data, axes = site.input(0), site.ints(site.axis())
    power = site.integer("p", 2)
    if power == 1:
        norm = site.op("ReduceSum", site.op("Abs", data), axes, keepdims=1)
    else:
        norm = site.op("ReduceL2", data, axes, keepdims=1)
    divisor = (Term(site, norm) > 0.0).where(norm, 1.0)
    return [site.op("Div", data, divisor.value)]


@decomposes("LRN")
def _local_response(site: Site) -> list[ir.Value | None]:
    """``x / (bias + alpha / size * s)^beta``, s the sum of squares over neighbouring channels.

    The sum is a convolution with ones over the channel axis of ``[N, 1, C, ...]``.
    """
    data, size = site.input(0), site.integer("size", 1)
    if site.rank() < 3 or size % 2 == 0:
        raise Refusal("it requires spatial axes and an odd size, as in onnxruntime")
    shape = site.op(
        "Concat",
        site.shape_of(data, 0, 1),
        site.ints(1),
        site.shape_of(data, 1, 2),
        site.ints(-1),
        axis=0,
    )
    squares = site.op("Reshape", site.op("Mul", data, data), shape)
    before = (size - 1) // 2  # [N, 1, C, spatial]: the kernel spans only channels
    sums = site.op(
        "Conv",
        squares,
        site.const(np.ones((1, 1, size, 1))),
        kernel_shape=[size, 1],
        pads=[before, 0, size - 1 - before, 0],
    )
    sums = site.op("Reshape", sums, site.shape_of(data), shape=data.shape)
    base = Term(site, sums) * (site.number("alpha", 1e-4) / size) + site.number("bias", 1.0)
    return [site.op("Div", data, base.call("Pow", site.number("beta", 0.75)).value)]


decomposes("NegativeLogLikelihoodLoss")(LOWERINGS["NegativeLogLikelihoodLoss"])
