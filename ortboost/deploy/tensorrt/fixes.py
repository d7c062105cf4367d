"""Fixes that preserve the results of a model, as a comparison before writing verifies.

Each fix is a rewrite with a report. Fixes that change results on purpose (disabling Dropout,
switching BatchNormalization to its stored statistics) run first; their result is the reference for
all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.report import Report
from ortboost.deploy.fold_bn import fold_bn
from ortboost.deploy.rewrites.clamp_infinite import clamp_infinite
from ortboost.deploy.rewrites.dead_code import dead_code
from ortboost.deploy.rewrites.fold_constants import fold_constants
from ortboost.deploy.targets import ir_version_for
from ortboost.deploy.tensorrt.rules.operators import normalizes_batch
from ortboost.deploy.tensorrt.table import Release
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.normal_form.to_float32 import to_float32
from ortboost.graph.normalize import free_weights
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.query import FLOAT_TYPES, input_at, is_read, is_standard, label
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.unused import remove_unused_nodes

__all__ = [
    "apply_fixes",
    "doubles_to_floats",
    "lower_ir_version",
    "strip_training_mode",
    "unique_names",
]

_LOSSES: Final = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def apply_fixes(model: ir.Model, target: Release) -> list[Report]:
    """Apply all fixes except :func:`strip_training_mode`, which comes first, in place.

    Returns:
        A report for each fix that changed something.

    Raises:
        ModelError: The opset cannot be converted.
    """
    low, high = target.opsets
    # In this order: folding needs free weights in a supported opset, and leaves dead code.
    steps: tuple[Callable[[ir.Model], Report], ...] = (
        inline_functions,
        free_weights,
        lambda m: convert_opset(m, range(low, high + 1)),
        _lift,
        doubles_to_floats,
        lambda m: clamp_infinite(m, FLOAT_TYPES),
        fold_bn,
        fold_constants,
        dead_code,
        unique_names,
        lambda m: lower_ir_version(m, target.ir_version),
    )
    reports = []
    for step in steps:
        infer_shapes(model)  # each sees the types that the one before made
        report = step(model)
        if report.changed:
            reports.append(report)
    infer_shapes(model)
    return reports


def strip_training_mode(model: ir.Model) -> Report:
    """Switch operators to inference mode and remove losses, in place.

    Returns:
        The report. A loss that is the only output is kept: nothing else would be left.
    """
    report = Report("strip_training_mode")
    graph = model.graph
    for node in list(graph.all_nodes()):
        if not is_standard(node):
            continue
        name = label(node)
        if node.op_type == "Dropout" and (training_mode := input_at(node, 2)) is not None:
            mode = training_mode.const_value
            if mode is None or bool(np.any(mode.numpy())):  # an input may switch it on
                node.replace_input_with(2, None)
                report.changed[name] = "Dropout no longer drops"
        elif node.op_type == "BatchNormalization":
            if not normalizes_batch(node, model.opset_imports.get("", 18)):
                continue
            if any(out.uses() for out in node.outputs[1:]):
                report.kept[name] = "its running statistics are used in the graph"
                continue
            # In inference mode there is only the first output.
            statistics = [out for out in node.outputs[1:] if out.is_graph_output()]
            graph.outputs[:] = [value for value in graph.outputs if value not in statistics]
            node.resize_outputs(1)
            node.attributes.pop("training_mode", None)
            report.changed[name] = "BatchNormalization uses its stored statistics"
        elif node.op_type in _LOSSES:
            losses = [out for out in node.outputs if out.is_graph_output()]
            rest = [value for value in graph.outputs if value not in losses]
            if not losses or not rest:
                report.kept[name] = "it is the only output" if losses else "the graph uses it"
                continue
            graph.outputs[:] = rest
            report.changed[name] = "removed"
    if report.changed:
        # Labels go with the loss; inputs that were unused before stay.
        used = [value for value in graph.inputs if value.uses()]
        remove_unused_nodes(model)
        for value in used:
            if not is_read(value):
                graph.inputs.remove(value)
                report.changed[value.name or "?"] = "removed: only the loss used this input"
    return report


def doubles_to_floats(model: ir.Model) -> Report:
    """Convert every DOUBLE tensor to FLOAT, including inputs and outputs, in place.

    TensorRT does the same itself, clamping to the largest FLOAT; doing it here makes it verifiable.
    """
    report = Report("doubles_to_floats")
    for graph in model.graphs():
        inside = (out for node in graph for out in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *inside):
            if value.dtype == ir.DataType.DOUBLE:
                report.changed[value.name or "?"] = "DOUBLE -> FLOAT"
    if report.changed:
        to_float32(model, {ir.DataType.DOUBLE})
    return report


def _lift(model: ir.Model) -> Report:
    report = Report("lift_constants")
    count = sum(node.op_type == "Constant" for node in model.graph.all_nodes())
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    left = sum(node.op_type == "Constant" for node in model.graph.all_nodes())
    if left < count:
        report.changed["Constant"] = f"{count} -> {left}"
    return report


def unique_names(model: ir.Model) -> Report:
    """Give every node and tensor a unique name, in place."""
    report = Report("unique_names")
    before = [node.name for node in model.graph.all_nodes()]
    common.NameFixPass()(model)
    after = [node.name for node in model.graph.all_nodes()]
    for old, new in zip(before, after, strict=True):
        if old != new:
            report.changed[new or "?"] = "had no name" if not old else f"was a second '{old}'"
    return report


def lower_ir_version(model: ir.Model, newest: int) -> Report:
    """Lower an IR version above ``newest``, as far as the opset allows, in place."""
    report = Report("ir_version")
    wanted = ir_version_for(model.opset_imports.get("", 1), model.ir_version, newest)
    if model.ir_version > wanted:
        report.changed["model"] = f"{model.ir_version} -> {wanted}"
        model.ir_version = wanted
    return report
