"""Optional inputs and outputs that gradients require, and secondary outputs that they ignore.

LayerNormalization needs its bias and three outputs, Dropout its mask, SoftmaxCrossEntropyLoss its
log_prob. The builder has no gradient through the mean, the deviation or log_prob, so these are
computed beside the node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.formulas import Term
from ortboost.graph.query import is_read, known_shape, producer_of, static_shape
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes

__all__ = ["complete_nodes"]


def complete_nodes(model: ir.Model) -> Report:
    """Complete the inputs and outputs of these operators, in place."""
    dropout = "inference mode: replaced by Identity; training mode: mask added"
    rules: dict[str, tuple[Rule, str]] = {
        "LayerNormalization": (_layer_norm, "bias and outputs added that its gradient needs"),
        "Dropout": (_dropout, dropout),
        "SoftmaxCrossEntropyLoss": (_cross_entropy, "log_prob output added"),
    }
    return rewrite_nodes(model, "complete_nodes", rules)


def _is_read(node: ir.Node, index: int) -> bool:
    return index < len(node.outputs) and is_read(node.outputs[index])


def _layer_norm(site: Site) -> Sequence[ir.Value] | None:
    data, scale, bias = site.input(0), site.input(1), site.optional(2)
    axis = site.axis()
    read = _is_read(site.node, 1) or _is_read(site.node, 2)
    normalized = site.shape()[axis:]
    plain = known_shape(scale) == normalized and (bias is None or known_shape(bias) == normalized)
    single = set(normalized) == {1}
    named = [output for output in site.node.outputs if output.name]  # a file may leave one out
    if plain and not (read or single) and bias is not None and len(named) == 3:
        return None
    # Its gradient kernel requires scale and bias of the normalized shape and more than one element,
    # and takes no gradients of the statistics.
    if read or single or not plain:
        return _layer_norm_by_hand(site, axis)
    if bias is None:
        # Not scale * 0, which would be NaN if the scale is. Not computed where the shape is known.
        shape = static_shape(scale)
        if shape is None:
            bias = site.filled(0, site.shape_of(scale), scale.dtype, scale.shape)
        else:
            bias = site.const(np.zeros(shape), scale.dtype or ir.DataType.FLOAT)
    outputs = site.ops("LayerNormalization", data, scale, bias, count=3, **site.node.attributes)
    for output in outputs[1:]:  # the statistics, float32 whatever the input
        output.type = ir.TensorType(ir.DataType.FLOAT)
    return outputs[: len(site.node.outputs)]


def _layer_norm_by_hand(site: Site, axis: int) -> list[ir.Value]:
    """``(x - mean) * inv_std * scale + bias``, the definition."""
    data, scale, bias = Term(site, site.input(0)), site.input(1), site.optional(2)
    axes = site.ints(*range(axis, site.rank()))
    mean = data.call("ReduceMean", axes, keepdims=1)
    centered = data - mean
    variance = (centered * centered).call("ReduceMean", axes, keepdims=1)
    inverse = (variance + site.number("epsilon", 1e-5)).call("Sqrt").call("Reciprocal")
    result = centered * inverse * scale
    if bias is not None:
        result = result + bias
    return [term.value for term in (result, mean, inverse)][: len(site.node.outputs)]


def _dropout(site: Site) -> Sequence[ir.Value | None] | None:
    node, ratio, mode = site.node, site.array(1), site.array(2)
    computed = site.optional(2) is not None and mode is None
    # Without a mode input, a Dropout is in inference mode; without a ratio, that is 0.5.
    off = not computed and (mode is None or not mode.any() or (ratio is not None and ratio == 0))
    if off:
        mask = None
        if _is_read(node, 1):
            mask = site.filled(1, site.shape_of(site.input(0)), ir.DataType.BOOL)
        return [site.op("Identity", site.input(0)), mask][: len(node.outputs)]
    inputs = list(node.inputs)
    if computed and not _is_gated(site):  # the gradient is divided by 1 - ratio in both modes
        given = site.optional(1) or site.const(0.5)
        zero = site.const(0.0, given.dtype)
        inputs[1] = site.op("Where", site.input(2), given, zero, shape=())
    elif len(node.outputs) == 2 and (computed or node.outputs[1].name):
        return None
    outputs = site.ops("Dropout", *inputs, count=2, **node.attributes)
    outputs[1].type = ir.TensorType(ir.DataType.BOOL)
    return outputs[: len(node.outputs)]


def _is_gated(site: Site) -> bool:
    """Whether the ratio of a Dropout is 0 where its mode, computed in the graph, is off."""
    gate = producer_of(site.optional(1), "Where")
    return gate is not None and gate.inputs[0] is site.optional(2)


def _cross_entropy(site: Site) -> list[ir.Value] | None:
    read = _is_read(site.node, 1)
    if len(site.node.outputs) == 2 and not read:
        return None
    if known_shape(site.input(0)) is None:
        raise Refusal("the rank of the scores is unknown; give the shapes of the model's inputs")
    node = site.node
    loss, _ = site.ops(node.op_type, *node.inputs, count=2, **node.attributes)
    return [loss, site.op("LogSoftmax", site.input(0), axis=1)] if read else [loss]
