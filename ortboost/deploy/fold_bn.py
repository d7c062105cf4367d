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
    wanted: dict[str, str] = {}
    for node in model.graph:
        if node.op_type == "BatchNormalization":
            wanted[node.name or ""] = _obstacle(node) or ""
    if not any(obstacle == "" for obstacle in wanted.values()):
        report.kept = wanted
        return report
    hosts = {
        node.name or "": producer.name or ""
        for node in model.graph
        if node.op_type == "BatchNormalization"
        and (producer := _producer(node.inputs[0])) is not None
    }
    makers = {
        node.outputs[0].name: hosts[node.name or ""]
        for node in model.graph
        if wanted.get(node.name or "") == ""
    }
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
            where=f"one of {', '.join(wanted)}: {cause}",
            fix="Export the model again, or check that the download or copy is complete.",
        ) from error
    for node in model.graph:  # the new node keeps the name of the node it replaces
        if node.op_type in _HOSTS and node.outputs[0].name in makers:
            node.name = makers[node.outputs[0].name]
    left = {node.name for node in model.graph if node.op_type == "BatchNormalization"}
    for name, obstacle in wanted.items():
        if name in left:
            report.kept[name] = obstacle or "the pattern did not match"
        else:
            report.changed[name] = f"folded into {hosts[name]}"
    return report


def _obstacle(node: ir.Node) -> str | None:
    """Why a BatchNormalization cannot be folded, or ``None``."""
    if node.attributes.get_int("training_mode", 0):
        return "it is in training mode"
    value = node.inputs[0]
    host = _producer(value)
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
    bias, scale = host.inputs[2] if len(host.inputs) > 2 else None, node.inputs[1]
    if bias is not None and bias.const_value is not None and scale is not None:
        wanted = 0 if scale.const_value is None else scale.const_value.size
        if bias.const_value.size not in (1, wanted):  # an exporter's bug that runtimes accept
            return (
                f"'{bias.name}' has shape {list(bias.const_value.shape)}, not one value per channel"
            )
    return None


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
