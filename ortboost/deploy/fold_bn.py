r"""Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    y = gamma (W x + b - mean) / sqrt(var + eps) + beta
      = W' x + b'    with W' = W gamma / sqrt(var + eps)  (per output channel)
                     and  b' = (b - mean) gamma / sqrt(var + eps) + beta

onnxscript does the rewriting; this module reports what was folded, and what was kept and why. A
convolution that shares its weight with another node is left alone: folding would change both.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassError
from onnxscript import rewriter
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.query import input_at, producer_of

__all__ = ["fold_bn"]

_HOSTS = ("Conv", "ConvTranspose", "Gemm")


def fold_bn(model: ir.Model) -> Report:
    """Fold inference-mode BatchNormalization nodes, in place.

    Returns:
        A report of the folded nodes and their hosts, and of the kept nodes with reasons.

    Raises:
        ModelError: Parameters do not have the channels of the layer.
    """
    report = Report("fold_bn")
    hosts: dict[str, tuple[str, str]] = {}  # output of a foldable node to its name and its host's
    for node in model.graph:
        if node.op_type != "BatchNormalization":
            continue
        obstacle, host = _obstacle(node), producer_of(node.inputs[0])
        if obstacle is not None or host is None:
            report.kept[node.name or ""] = obstacle or ""
        else:
            hosts[node.outputs[0].name or ""] = node.name or "", host.name or ""
    if not hosts:
        return report
    rules = [
        fuse_batchnorm_into_conv_rule,
        fuse_batchnorm_into_conv_transpose_rule,
        fuse_batchnorm_into_gemm_rule,
    ]
    try:
        rewriter.rewrite(model, rules)
    except PassError as error:  # the rules multiply the arrays without looking at their shapes
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(
            "A BatchNormalization does not fit the layer before it.",
            where=f"one of {', '.join(name for name, _ in hosts.values())}: {cause}",
            fix="Export the model again, or check that the download or copy is complete.",
        ) from error
    for node in model.graph:
        if node.outputs[0].name in hosts:
            name, host_name = hosts[node.outputs[0].name]
            if node.op_type == "BatchNormalization":
                report.kept[name] = "the pattern did not match"
            else:  # the new layer, which computes the old output, keeps the name of the old one
                node.name = host_name
                report.changed[name] = f"folded into {host_name}"
    return report


def _obstacle(node: ir.Node) -> str | None:
    """Why a BatchNormalization cannot be folded, or ``None``."""
    if node.attributes.get_int("training_mode", 0):
        return "it is in training mode"
    value = node.inputs[0]
    host = producer_of(value)
    if host is None or host.op_type not in _HOSTS or value is None:
        return (
            f"it follows {'an input' if host is None else host.op_type}, not a convolution or Gemm"
        )
    if len(value.uses()) > 1 or value.is_graph_output():
        return f"the output of '{host.name}' is used elsewhere too"
    for tensor in (*host.inputs[1:], *node.inputs[1:]):
        if tensor is None:
            continue
        if not tensor.is_initializer():
            return f"'{tensor.name}' is computed, not stored"
        if tensor in host.inputs[1:] and len(tensor.uses()) > 1:
            return f"'{tensor.name}' is shared with another node"
    bias, scale = input_at(host, 2), node.inputs[1]
    if bias is not None and bias.const_value is not None and scale is not None:
        channels = 0 if scale.const_value is None else scale.const_value.size
        if bias.const_value.size not in (1, channels):  # an exporter's bug that runtimes accept
            return (
                f"'{bias.name}' has shape {list(bias.const_value.shape)}, not one value per channel"
            )
    return None
