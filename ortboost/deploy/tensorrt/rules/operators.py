"""Operators left over from training, of other domains, or unsupported by the parser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.deploy.findings import Finding, error, info, warn
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import input_at, is_read, is_standard, label

__all__ = ["normalizes_batch"]

_LOSSES: Final = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_TRAINING_DOMAINS: Final = ("ai.onnx.preview.training", "ai.onnx.training")
_QOPERATORS: Final = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")
# Advice that is more specific than "another operator".
_INSTEAD: Final = {
    "DynamicQuantizeLinear": "Quantize with fixed scales: ortboost export --precision int8.",
    "Col2Im": "Use ConvTranspose, or DepthToSpace and Pad.",
    "Det": "Compute it outside of the engine.",
    "Unique": "Compute it outside of the engine.",
    "Compress": "Use NonZero and Gather, or GatherND with fixed indices.",
    "CenterCropPad": "Use Slice and Pad with constant amounts.",
    "BitShift": "Use Mul or Div by a power of two.",
    "Bernoulli": "Use RandomUniformLike and Less.",
}


@rule("TRT001", "leftovers of training")
def training_leftovers(context: Context) -> Iterator[Finding]:
    """Losses, gradients, optimizers, and operators in training mode."""
    if "ortboost.catalogue" in context.model.metadata_props:
        yield error(
            (context.model.graph.name or "graph", "model"),
            "This is a training step of ortboost, not an inference graph.",
            "Export the trained program: ortboost export RUN -o model.onnx.",
        )
        return
    for node in context.nodes:
        problem = ""
        if is_standard(node, *_LOSSES):
            problem = "A loss belongs to training."
        elif node.domain in _TRAINING_DOMAINS:
            problem = f"An operator of {node.domain} belongs to training."
        elif not is_standard(node) and node.op_type.endswith("Grad"):
            problem = "A gradient belongs to training."
        elif is_standard(node, "Dropout") and _drops(context, node):
            problem = "Dropout is in training mode: it drops at random."
        elif is_standard(node, "BatchNormalization") and normalizes_batch(node, context.opset):
            problem = "BatchNormalization is in training mode: it uses the statistics of the batch."
        if problem:
            yield error(
                node,
                problem,
                "Strip it: ortboost check --fix does, or export the model for inference.",
                fixable=node.op_type in (*_LOSSES, "Dropout", "BatchNormalization"),
            )


def normalizes_batch(node: ir.Node, opset: int) -> bool:
    """Whether a BatchNormalization uses the statistics of the batch.

    From opset 14 on an attribute selects this; before, the presence of outputs for the statistics
    did, used or not.
    """
    if node.attributes.get_int("training_mode", 0) != 0:
        return True
    return any(is_read(out) or (opset < 14 and bool(out.name)) for out in node.outputs[1:])


def _drops(context: Context, node: ir.Node) -> bool:
    mode = input_at(node, 2)
    if mode is None:
        return False
    stored = context.array(mode)
    return stored is None or bool(np.any(stored))


@rule("TRT002", "operators of another domain")
def foreign_domains(context: Context) -> Iterator[Finding]:
    """Contrib operators, and operators that only a plugin can provide."""
    for node in context.nodes:
        if is_standard(node) or node.domain in _TRAINING_DOMAINS or node.op_type.endswith("Grad"):
            continue
        name = f"{node.domain}::{node.op_type}"
        if node.op_type.startswith("TRT_"):
            yield info(
                (label(node), name),
                "An operator of TensorRT itself: only a recent parser supports it.",
                "Build with the release that the operator came with, or a later one.",
            )
            continue
        versions = context.target.plugin(node.op_type)
        if versions:
            yield warn(
                (label(node), name),
                f"A plugin must provide it (versions {', '.join(versions)} in "
                f"TensorRT {context.target.release}).",
                "Load the plugin library before parsing; its plugin_version attribute must be one "
                "of these.",
            )
        elif versions is None:
            yield error(
                (label(node), name),
                f"'{node.domain}' is not an ONNX domain, and TensorRT has no plugin of this name.",
                "Start from a model that no runtime has optimized; or express the operator with "
                "standard ones, or as a custom plugin."
                if node.domain.startswith("com.microsoft")
                else "Express it with standard operators, or give TensorRT a plugin of this name.",
            )


@rule("TRT003", "operators that TensorRT does not support")
def unsupported(context: Context) -> Iterator[Finding]:
    """Operators that the parser's table lists as unsupported."""
    for node, known in context.known():
        if node.op_type in _LOSSES or known.supported:
            continue
        fix = _INSTEAD.get(node.op_type, "Express it with supported operators, or as a plugin.")
        if node.op_type in _QOPERATORS:
            fix = "Quantize with QuantizeLinear/DequantizeLinear pairs: export --precision int8."
        elif node.op_type.startswith(("Sequence", "Optional", "SplitTo", "ConcatFrom")):
            fix = "Use tensors: Split and Concat instead of sequences and optionals."
        folds = all(context.constness(out) == "folds" for out in node.outputs)
        yield error(
            node,
            f"TensorRT {context.target.release} does not support it"
            + (", but it can be computed beforehand." if folds else "."),
            "Fold constants: ortboost check --fix does." if folds else fix,
            fixable=folds,
        )


@rule("TRT004", "operators that the table does not have")
def unknown(context: Context) -> Iterator[Finding]:
    """Operators newer than the table, or misspelled."""
    for node in context.standard():
        if context.target.operator(node.op_type) is None:
            yield error(
                node,
                f"The operators of TensorRT {context.target.release} do not include it.",
                "Convert to an older opset, which expresses it with older operators; or use a "
                "newer TensorRT.",
            )


@rule("TRT005", "plugins that were removed")
def removed_plugins(context: Context) -> Iterator[Finding]:
    """Plugins of earlier releases."""
    for node in context.nodes:
        if is_standard(node) and context.target.operator(node.op_type) is not None:
            continue
        versions = context.target.plugin(node.op_type)
        version = node.attributes.get_string("plugin_version", "") or ""
        if versions == ():
            yield error(
                node,
                f"TensorRT {context.target.release} does not have the plugin "
                "that other releases have.",
                "Express it with standard operators (Clip, NonMaxSuppression, Split, "
                "LeakyRelu...), or build with the release that has it.",
            )
        elif versions and version and version not in versions:
            yield error(
                node,
                f"Version {version} of the plugin is not in TensorRT {context.target.release}.",
                f"Use version {' or '.join(versions)}; its inputs and attributes may differ.",
            )
