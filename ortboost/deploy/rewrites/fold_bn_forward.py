r"""Fold a BatchNormalization into the convolution or Gemm *after* it, where that is exact.

    BN(x)_i = s_i x_i + t_i   with s = gamma / sqrt(var + eps),  t = beta - mean s
    sum_i W_oi (s_i x_i + t_i) + b_o = sum_i (W_oi s_i) x_i + (b_o + sum_i W_oi t_i)

A convolution that pads reads zeros around ``BN(x)``, and would read ``-t/s`` around ``x``: it is folded
only where it does not pad, or where t is zero. Only inference form, unshared and stored tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import constant, is_standard, label, only_user, replace_value
from ortboost.graph.build import Builder

__all__ = ["fold_bn_forward"]

_ANY = 1 << 62


def fold_bn_forward(model: ir.Model) -> Report:
    """Fold BatchNormalization nodes that only feed a Conv or Gemm into it, in place."""
    report = Report("fold_bn_forward")
    builder = Builder(model.graph, "ortboost/folded")
    for node in list(model.graph):
        if not is_standard(node, "BatchNormalization"):
            continue
        host = only_user(node.outputs[0])
        if host is None or not is_standard(host, "Conv", "Gemm"):
            continue
        reason = _obstacle(node, host)
        if reason is None:
            reason = _fold(node, host, builder)
        if reason is None:
            report.changed[label(node)] = f"folded into {label(host)}, which follows it"
            model.graph.remove(node, safe=True)
        else:
            report.kept[label(node)] = reason
    return report


def _obstacle(node: ir.Node, host: ir.Node) -> str | None:
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        return "it is in training mode"
    if host.inputs[0] is not node.outputs[0] or host.graph is not node.graph:
        return f"'{label(host)}' takes it for a weight"
    for value in (*node.inputs[1:], *host.inputs[1:]):
        if value is None:
            continue
        if constant(value, limit=_ANY) is None:
            return f"'{value.name}' is computed, not stored"
        if value in host.inputs[1:] and (len(value.uses()) > 1 or value.is_graph_output()):
            return f"'{value.name}' is shared with another node"
    turned = host.attributes.get_int("transA", 0)
    if is_standard(host, "Gemm") and turned:
        return f"'{label(host)}' transposes its input"
    return None


def _fold(node: ir.Node, host: ir.Node, builder: Builder) -> str | None:
    gamma, beta, mean, var = (_array(value) for value in node.inputs[1:])
    s = gamma / np.sqrt(var + node.attributes.get_float("epsilon", 1e-5))
    t = beta - mean * s
    weight = _array(host.inputs[1])
    if is_standard(host, "Conv"):
        pads = host.attributes.get_ints("pads", ())
        automatic = host.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        if t.any() and (automatic or any(pads)):
            return f"'{label(host)}' pads, and the padding would not be normalized"
        groups = host.attributes.get_int("group", 1)
        outs = weight.shape[0] // groups
        tail = (1,) * (weight.ndim - 2)
        by_group = s.reshape(groups, 1, -1, *tail)
        folded = (weight.reshape(groups, outs, *weight.shape[1:]) * by_group).reshape(weight.shape)
        summed = weight.reshape(groups, outs, weight.shape[1], -1).sum(-1)
        shift = np.einsum("goi,gi->go", summed, t.reshape(groups, -1)).reshape(-1)
    else:
        alpha = host.attributes.get_float("alpha", 1.0)
        transposed = host.attributes.get_int("transB", 0)
        folded = weight * (s[None, :] if transposed else s[:, None])
        shift = alpha * (weight @ t if transposed else t @ weight)
        host_beta = host.attributes.get_float("beta", 1.0)
        if host_beta not in (0.0, 1.0):
            return f"'{label(host)}' scales its bias"
    bias = host.inputs[2] if len(host.inputs) > 2 else None
    if host.attributes.get_float("beta", 1.0) == 0.0:
        bias = None  # it is there and counts for nothing
    total = shift if bias is None else shift + _array(bias)
    dtype = host.inputs[1].dtype or ir.DataType.FLOAT  # type: ignore[union-attr]
    source = node.inputs[0]
    assert source is not None
    if not replace_value(node.outputs[0], source):
        return "it gives an output of the model its name"
    host.replace_input_with(1, builder.const(folded, dtype))
    if len(host.inputs) < 3:
        host.resize_inputs(3)
    host.replace_input_with(2, builder.const(total, dtype))
    host.attributes.pop("beta", None)
    return None


def _array(value: ir.Value | None) -> NDArray[Any]:
    found = constant(value, limit=_ANY)
    assert found is not None
    return found.astype(np.float64)
