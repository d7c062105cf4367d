"""Select the nodes to quantize, and the activations that get a Q/DQ pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import UsageError, nearest
from ortboost.core.report import Report
from ortboost.deploy.int8.config import Int8Config
from ortboost.graph.query import is_standard, label, match_names
from ortboost.graph.source import source_name

__all__ = ["find_hosts", "is_residual", "stored", "takes_pairs", "wanted_activations"]

_ACTIVATIONS: Final = ("Relu", "Clip")
_JOINING: Final = ("Add", "GlobalAveragePool", "AveragePool", "MaxPool", "Concat")
# These operators never read a quantized tensor: their results would lose too much precision.
_ISLANDS: Final = (
    *("Softmax", "LogSoftmax", "Exp", "Log", "Pow", "Sqrt", "Div", "Reciprocal", "Erf", "CumSum"),
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("BatchNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN", "GridSample"),
    *("If", "Loop", "Scan", "LSTM", "GRU", "RNN", "Attention"),
)


def find_hosts(model: ir.Model, config: Int8Config, report: Report) -> list[ir.Node]:
    """Find the nodes to quantize; the report gets the reasons for leaving out the others.

    Raises:
        UsageError: A pattern of ``skip`` matches no node that could be quantized, and no weight.
    """
    standard = filter(is_standard, model.graph.all_nodes())
    candidates = [node for node in standard if node.op_type in config.ops]
    names = [name for node in candidates for name in _names(node)]
    _, unmatched = match_names(names, config.skip)
    if unmatched:
        raise UsageError(
            f"The pattern '{unmatched[0]}' matches no layer that could be quantized.",
            where=f"skip, {source_name(model)}",
            fix=nearest(unmatched[0], names),
        )
    found = []
    for node in candidates:
        obstacle = _obstacle(node, model, config)
        if obstacle is None:
            found.append(node)
        else:
            report.kept[label(node)] = obstacle
    return found


def _names(node: ir.Node) -> list[str]:
    """The names that a pattern may match: those of the node and its weight."""
    return [node.name or "", *(v.name or "" for v in node.inputs[1:2] if v is not None)]


def _obstacle(node: ir.Node, model: ir.Model, config: Int8Config) -> str | None:
    pattern = next((p for p in config.skip if match_names(_names(node), [p])[0]), None)
    if pattern is not None:
        return f"skipped by the pattern '{pattern}'"
    if node.graph is not model.graph:
        return "it is inside a subgraph"
    value, weight = node.inputs[0], node.inputs[1]
    if value is None or weight is None:
        return "an input is missing"
    if not stored(weight) and node.op_type == "MatMul":
        return "its weight is on the left" if stored(value) else "it multiplies two activations"
    if not stored(weight):
        return f"'{weight.name}' is computed, not stored"
    if node.op_type == "LSTM" and (reason := _recurrent_obstacle(node, config)):
        return reason
    if stored(value):
        return "it multiplies two constants"
    if weight.dtype != ir.DataType.FLOAT:
        return f"its weight is {weight.dtype}, not FLOAT"
    if weight.const_value is not None and not np.isfinite(weight.const_value.numpy()).all():
        return f"'{weight.name}' is not finite"
    return None


def _recurrent_obstacle(node: ir.Node, config: Int8Config) -> str | None:
    if not config.recurrent:
        return "only the CPU of ONNX Runtime has integer kernels for it"
    state = node.inputs[2]
    if state is None or not stored(state):
        return "the weight of its state is computed, not stored"
    if node.attributes.get_int("layout", 0):
        return "its batch is the first axis"
    return None


def wanted_activations(hosts: Sequence[ir.Node], config: Int8Config) -> list[ir.Value]:
    """The activations that get a pair, in graph order."""
    wanted: dict[ir.Value, None] = {}

    def want(value: ir.Value | None) -> None:
        if value is not None and not stored(value) and value.dtype in (None, ir.DataType.FLOAT):
            wanted[value] = None

    hosts = [node for node in hosts if node.op_type != "LSTM"]
    for node in hosts:
        want(node.inputs[0])
    for node in hosts:  # results, the operators that join them, and shortcuts of residual sums
        result = _result(node)
        # A result that only an island reads, or the caller, stays in FLOAT.
        if config.outputs and any(takes_pairs(use.node) for use in result.uses()):
            want(result)
        for use in result.uses():
            joins = use.node.op_type in _JOINING
            if config.outputs and joins:
                for other in use.node.inputs:
                    want(other)
                after = _result(use.node)
                if any(takes_pairs(user.node) for user in after.uses()):
                    want(after)
            elif config.residual and use.node.op_type == "Add" and len(result.uses()) == 1:
                want(next((v for v in use.node.inputs if v is not result), None))
    return list(wanted)


def _result(node: ir.Node) -> ir.Value:
    """The output of a node, or of the activation that is fused into it."""
    value = node.outputs[0]
    uses = value.uses()
    if len(uses) == 1 and not value.is_graph_output():
        after = next(iter(uses)).node
        if after.op_type in _ACTIVATIONS and after.graph is node.graph:
            return after.outputs[0]
    return value


def takes_pairs(node: ir.Node) -> bool:
    """Whether a node may read a quantized tensor when everything possible is quantized."""
    return (
        is_standard(node) and node.op_type not in _ISLANDS and not node.op_type.startswith("Reduce")
    )


def is_residual(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node adds an activation to the result of a quantized operator."""
    if node.op_type != "Add":
        return False
    others = [v for v in node.inputs if v is not value and v is not None]
    return any(
        (host := other.producer()) is not None
        and host.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        for other in others
    )


def stored(value: ir.Value) -> bool:
    """Whether a value is an initializer that the caller cannot override."""
    return value.const_value is not None and value.is_initializer() and not value.is_graph_input()
