r"""Fold a BatchNormalization into the convolution or Gemm *after* it, where that is exact.

    BN(x)_i = s_i x_i + t_i   with s = gamma / sqrt(var + eps),  t = beta - mean s
    sum_i W_oi (s_i x_i + t_i) + b_o = sum_i (W_oi s_i) x_i + (b_o + sum_i W_oi t_i)

A convolution with padding reads zeros around ``BN(x)``, but would need ``-t/s`` around ``x``: it is
folded only without padding, or if t is zero. The normalization must be in inference mode, and the
tensors stored and not shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.query import constant, input_at, is_standard, label, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["fold_bn_forward"]


def fold_bn_forward(model: ir.Model) -> Report:
    """Fold each BatchNormalization whose only reader is a Conv or Gemm into that, in place."""
    rules = {"BatchNormalization": _fold}
    return rewrite_nodes(model, "fold_bn_forward", rules, bypass=True)


def _fold(site: Site) -> list[ir.Value | None] | None:
    node, layer = site.node, sole_consumer(site.node.outputs[0])
    if layer is None or not is_standard(layer, "Conv", "Gemm"):
        return None
    _check(node, layer)
    gamma, beta, mean, var = (_array(value) for value in node.inputs[1:])
    scale = gamma / np.sqrt(var + site.number("epsilon", 1e-5))
    shift = beta - mean * scale
    weight, bias = _array(layer.inputs[1]), input_at(layer, 2)
    fold = _into_conv if is_standard(layer, "Conv") else _into_gemm
    new_weight, new_bias = fold(layer, weight, scale, shift)
    # With beta = 0 a Gemm ignores its bias.
    if bias is not None and layer.attributes.get_float("beta", 1.0) != 0.0:
        new_bias = new_bias + _array(bias)
    dtype = layer.inputs[1].dtype or ir.DataType.FLOAT  # type: ignore[union-attr]
    layer.replace_input_with(1, site.const(new_weight, dtype))
    layer.resize_inputs(3)
    layer.replace_input_with(2, site.const(new_bias, dtype))
    layer.attributes.pop("beta", None)
    site.note = f"folded into {label(layer)}, which follows it"
    return [site.input(0)]


def _check(node: ir.Node, layer: ir.Node) -> None:
    """Raise a refusal unless the fold is exact."""
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        raise Refusal("it is in training mode")
    if layer.inputs[0] is not node.outputs[0] or layer.graph is not node.graph:
        raise Refusal(f"'{label(layer)}' reads it as a weight")
    for value in (*node.inputs[1:], *layer.inputs[1:]):
        if value is None:
            continue
        if constant(value) is None:
            raise Refusal(f"'{value.name}' is computed, not stored")
        if value in layer.inputs[1:] and (len(value.uses()) > 1 or value.is_graph_output()):
            raise Refusal(f"'{value.name}' is shared with another node")


def _into_conv(
    layer: ir.Node, weight: NDArray[Any], scale: NDArray[Any], shift: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
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


def _into_gemm(
    layer: ir.Node, weight: NDArray[Any], scale: NDArray[Any], shift: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The new weight, in its layout, and the addition to the bias."""
    if layer.attributes.get_int("transA", 0):
        raise Refusal(f"'{label(layer)}' transposes its input")
    if layer.attributes.get_float("beta", 1.0) not in (0.0, 1.0):
        raise Refusal(f"'{label(layer)}' scales its bias")
    transposed = layer.attributes.get_int("transB", 0)
    gained = weight @ shift if transposed else shift @ weight
    folded = weight * (scale[None, :] if transposed else scale[:, None])
    return folded, layer.attributes.get_float("alpha", 1.0) * gained


def _array(value: ir.Value | None) -> NDArray[Any]:
    found = constant(value)
    assert found is not None
    return found.astype(np.float64)
