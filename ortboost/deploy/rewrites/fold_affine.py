"""Fold a multiplication or addition by a constant per channel into the Conv or Gemm before it.

    (W x + b) s + t = (W s) x + (b s + t)

Frozen batch normalizations of detection models have this form. Add, Sub, Mul and Div are folded if
their constant has one value per channel, or a single value, and if no other node reads the output
of the layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.query import constant, input_at, is_standard, label, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["fold_affine"]


def fold_affine(model: ir.Model) -> Report:
    """Fold affine nodes into the Conv or Gemm before them, in place, in the main graph."""
    rules = dict.fromkeys(("Add", "Sub", "Mul", "Div"), _fold)
    return rewrite_nodes(model, "fold_affine", rules, bypass=True)


def _fold(site: Site) -> list[ir.Value | None] | None:
    for index in (0, 1):
        layer, factors = producer_of(site.input(index), "Conv", "Gemm"), site.array(1 - index)
        if layer is None or layer.graph is not site.node.graph or factors is None:
            continue
        if sole_consumer(layer.outputs[0]) is not site.node or factors.dtype.kind != "f":
            continue
        _fold_into(layer, site, index, factors)
        site.note = f"folded into {label(layer)}"
        return [layer.outputs[0]]
    return None


def _fold_into(layer: ir.Node, site: Site, index: int, factors: NDArray[Any]) -> None:
    """Change weight and bias of a layer so that it also computes the node after it.

    The layer computes operand ``index`` of that node; ``factors`` is the other one.
    """
    op = site.node.op_type
    if index == 1 and op == "Div":
        raise Refusal("it divides by the result of the layer")
    bias = input_at(layer, 2)
    weight, stored_bias = constant(layer.inputs[1]), constant(bias)
    if weight is None or (bias is not None and stored_bias is None):
        raise Refusal(f"the weights of '{label(layer)}' are computed, not stored")
    for value in layer.inputs[1:]:
        if value is not None and (len(value.uses()) > 1 or value.is_graph_output()):
            raise Refusal(f"'{value.name}' is shared with another node")
    gemm = is_standard(layer, "Gemm")
    by_column = gemm and layer.attributes.get_int("transB", 0) == 0  # [K, M], else [M, ...]
    channels = weight.shape[1] if by_column else weight.shape[0]
    operand = _by_channel(factors, channels, 2 if gemm else weight.ndim)
    if operand is None:
        raise Refusal("its constant does not have one value per channel")
    scaled_bias = gemm and layer.attributes.get_float("beta", 1.0) != 1.0
    if scaled_bias or (gemm and stored_bias is not None and stored_bias.ndim > 1):
        raise Refusal(f"the bias of '{label(layer)}' is scaled or not a vector")
    b = np.zeros(channels)
    if stored_bias is not None:
        b = np.broadcast_to(stored_bias.astype(np.float64), channels)
    scale, shift = _scale_and_shift(op, operand, index)
    dtype = layer.inputs[1].dtype or ir.DataType.FLOAT  # type: ignore[union-attr]
    shape = (1, -1) if by_column else (-1, *(1,) * (weight.ndim - 1))
    new_weight, new_bias = weight.astype(np.float64) * scale.reshape(shape), b * scale + shift
    with np.errstate(over="ignore"):  # as stored: float16 ends at 65504
        finite = all(np.isfinite(a.astype(dtype.numpy())).all() for a in (new_weight, new_bias))
    if not finite:
        raise Refusal("the folded weights would not be finite")
    if (scale != 1).any():
        layer.replace_input_with(1, site.const(new_weight, dtype))
    layer.resize_inputs(3)
    layer.replace_input_with(2, site.const(new_bias, dtype))


def _scale_and_shift(
    op: str, operand: NDArray[np.float64], index: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ``s`` and ``t`` of ``x s + t``, for the layer's result ``x`` as operand ``index``."""
    one, zero = np.ones_like(operand), np.zeros_like(operand)
    if op == "Add":
        return one, operand
    if op == "Sub":
        return (one, -operand) if index == 0 else (-one, operand)
    if op == "Mul":
        return operand, zero
    if not operand.all():
        raise Refusal("it divides by zero")
    return 1 / operand, zero


def _by_channel(array: NDArray[Any], channels: int, rank: int) -> NDArray[np.float64] | None:
    """The per-channel values of an operand constant within each channel (axis 1), or ``None``."""
    if array.size == 1 and array.ndim <= rank:
        return np.full(channels, float(array.reshape(-1)[0]))
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size != channels or shape[1] != channels:
        return None
    return array.reshape(-1).astype(np.float64)
