r"""Fold an affine map of the channels into the convolution or Gemm *after* it, where that is exact.

The map ``s_i x_i + t_i`` is a BatchNormalization in inference mode or, before a convolution, Add,
Sub, Mul or Div with a constant, such as the scaled activations of normalizer-free networks:

    sum_i W_oi (s_i x_i + t_i) + b_o = sum_i (W_oi s_i) x_i + (b_o + sum_i W_oi t_i)

A convolution with padding reads zeros around the result, but would need ``-t/s`` around ``x``: it
is folded only without padding, or if t is zero. The tensors must be stored, and read by no other
kind of node.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.deploy.fold_bn import read_norm
from ortboost.deploy.rewrites.fold_affine import read_affine
from ortboost.deploy.rewrites.fuse_gelu import is_gelu
from ortboost.deploy.rewrites.layer_weights import Array, read_weights, store_weights
from ortboost.graph.query import is_standard, known_shape, label, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["fold_forward"]


@rewrites("BatchNormalization", "Add", "Sub", "Mul", "Div", bypass=True)
def fold_forward(site: Site) -> list[ir.Value] | None:
    """Fold each affine node into the Conv or Gemm that alone reads it, in place."""
    node, layer = site.node, sole_consumer(site.node.outputs[0])
    if layer is None or not is_standard(layer, "Conv", "Gemm"):
        return None
    norm = is_standard(node, "BatchNormalization")
    index = 0 if norm or site.array(1) is not None else 1
    if not norm and (site.array(1 - index) is None or not is_standard(layer, "Conv")):
        return None
    if is_gelu(node.outputs[0]):
        raise Refusal("it is part of a Gelu, which runtimes would no longer recognize")
    if layer.inputs[0] is not node.outputs[0] or layer.graph is not node.graph:
        raise Refusal(f"'{label(layer)}' reads it as a weight")
    weight, bias = read_weights(layer)
    scale, shift = read_norm(node) if norm else _read_affine(site, index, layer, weight)
    fold = _into_conv if is_standard(layer, "Conv") else _into_gemm
    folded, gained = fold(layer, weight, scale, shift)  # W s, and the sum over W t
    store_weights(site, layer, folded, bias + gained)
    site.note = f"folded into {label(layer)}, which follows it"
    return [site.input(index)]


def _read_affine(site: Site, index: int, layer: ir.Node, weight: Array) -> tuple[Array, Array]:
    channels = weight.shape[1] * layer.attributes.get_int("group", 1)
    shape = known_shape(site.input(index))
    if shape is None or len(shape) != weight.ndim or shape[1] != channels:
        raise Refusal("it may broadcast its input")
    return read_affine(site, index, channels, weight.ndim)


def _into_conv(layer: ir.Node, weight: Array, scale: Array, shift: Array) -> tuple[Array, Array]:
    """The new weight ``[M, C/G, k...]``, and the addition to the bias ``[M]``."""
    pads = layer.attributes.get_ints("pads", ())
    automatic = layer.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if shift.any() and (automatic or any(pads)):
        raise Refusal(f"'{label(layer)}' pads, and the padding would not be normalized")
    groups = layer.attributes.get_int("group", 1)
    by_group = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])  # [G, M/G, ...]
    factors = scale.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))  # [G, 1, C/G, 1...]
    summed = by_group.reshape(*by_group.shape[:3], -1).sum(-1)  # over the kernel: t is constant
    gained = np.einsum("goi,gi->go", summed, shift.reshape(groups, -1)).reshape(-1)
    return (by_group * factors).reshape(weight.shape), gained


def _into_gemm(layer: ir.Node, weight: Array, scale: Array, shift: Array) -> tuple[Array, Array]:
    """The new weight, in its layout, and the addition to the bias."""
    if layer.attributes.get_int("transA", 0):
        raise Refusal(f"'{label(layer)}' transposes its input")
    transposed = layer.attributes.get_int("transB", 0)
    gained = weight @ shift if transposed else shift @ weight
    folded = weight * (scale[None, :] if transposed else scale[:, None])
    return folded, layer.attributes.get_float("alpha", 1.0) * gained
