"""Fold a product or sum with stored numbers, one a channel, into the Conv or Gemm before it.

    (W x + b) s + t = (W s) x + (b s + t)

Frozen batch normalizations of detection models come in this form. Add, Sub, Mul and Div with a tensor
that has one number a channel, or one number; the result of the convolution must serve nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import constant, is_standard, label, only_user, replace_value
from ortboost.graph.build import Builder

__all__ = ["fold_affine"]

_ANY = 1 << 62


def fold_affine(model: ir.Model) -> Report:
    """Fold affine nodes into the Conv or Gemm before them, in place, in the main graph."""
    report = Report("fold_affine")
    builder = Builder(model.graph, "ortboost/folded")
    for node in list(model.graph):
        if not is_standard(node, "Add", "Sub", "Mul", "Div"):
            continue
        for index in (0, 1):
            value = node.inputs[index]
            host = None if value is None else value.producer()
            if host is None or not is_standard(host, "Conv", "Gemm"):
                continue
            if host.graph is not node.graph or only_user(host.outputs[0]) is not node:
                continue
            reason = _fold(node, index, host, builder)
            if reason is None:
                report.changed[label(node)] = f"folded into {label(host)}"
                break
            if reason:
                report.kept[label(node)] = reason
    return report


def _fold(node: ir.Node, index: int, host: ir.Node, builder: Builder) -> str | None:
    """Why not, or ``None`` if it was done; an empty text if it is no affine node at all."""
    stored = constant(node.inputs[1 - index], limit=_ANY)
    if stored is None:
        return ""
    if index == 1 and node.op_type == "Div":
        return "it divides by the result of the layer"
    weight = constant(host.inputs[1], limit=_ANY)
    bias = host.inputs[2] if len(host.inputs) > 2 else None
    kept = None if bias is None else constant(bias, limit=_ANY)
    if weight is None or (bias is not None and kept is None):
        return f"the weights of '{label(host)}' are computed, not stored"
    if stored.dtype.kind != "f" or weight.dtype.kind != "f":
        return ""
    for value in host.inputs[1:]:
        if value is not None and (len(value.uses()) > 1 or value.is_graph_output()):
            return f"'{value.name}' is shared with another node"
    gemm = is_standard(host, "Gemm")
    transposed = gemm and host.attributes.get_int("transB", 0) == 0
    channels = weight.shape[1] if transposed else weight.shape[0]
    operand = _by_channel(stored, channels, 2 if gemm else weight.ndim)
    if operand is None:
        return "its numbers are not one a channel"
    if gemm and (
        host.attributes.get_float("beta", 1.0) != 1.0 or (kept is not None and kept.ndim > 1)
    ):
        return f"the bias of '{label(host)}' is not a plain one"
    b = np.zeros(channels) if kept is None else np.broadcast_to(kept.astype(np.float64), channels)
    s, t = np.ones(channels), np.zeros(channels)
    if node.op_type == "Add":
        t = operand
    elif node.op_type == "Sub":
        s, t = (s, -operand) if index == 0 else (-s, operand)
    elif node.op_type == "Mul":
        s = operand
    elif not operand.all():
        return "it divides by zero"
    else:
        s = 1 / operand
    dtype = host.inputs[1].dtype or ir.DataType.FLOAT  # type: ignore[union-attr]
    limit = float(ir_max(dtype))
    wide = s.reshape(1, -1) if transposed else s.reshape(-1, *(1,) * (weight.ndim - 1))
    folded, total = weight.astype(np.float64) * wide, b * s + t
    if not (np.abs(folded).max(initial=0) < limit and np.abs(total).max(initial=0) < limit):
        return "the folded weights would not be finite"
    replaced = node.outputs[0]
    if not replace_value(replaced, host.outputs[0]):
        return "both are outputs of the model"
    if (s != 1).any():
        host.replace_input_with(1, builder.const(folded, dtype))
    if len(host.inputs) < 3:
        host.resize_inputs(3)
    host.replace_input_with(2, builder.const(total, dtype))
    graph = node.graph
    assert graph is not None
    graph.remove(node, safe=True)
    return None


def ir_max(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    return {ir.DataType.FLOAT16: 65504.0, ir.DataType.DOUBLE: 1.7e308}.get(dtype, 3.4e38)


def _by_channel(array: NDArray[Any], channels: int, rank: int) -> NDArray[np.float64] | None:
    """The numbers of an operand that is constant within each channel (axis 1), else ``None``."""
    if array.size == 1 and array.ndim <= rank:
        return np.full(channels, float(array.reshape(-1)[0]))
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size != channels or shape[1] != channels:
        return None
    return array.reshape(-1).astype(np.float64)
