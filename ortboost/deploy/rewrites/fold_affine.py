"""Fold a multiplication or addition by a constant per channel into the layer before it.

The layer is a Conv, ConvTranspose or Gemm. Frozen batch normalizations of detection models have
this form. Add, Sub, Mul and Div are folded if their constant has one value per channel, or a single
value, and if no other node reads the output of the layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.deploy.rewrites.layer_weights import LAYERS, Array, fold_into, read_weights
from ortboost.graph.query import label, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["fold_affine", "read_affine"]


@rewrites("Add", "Sub", "Mul", "Div", bypass=True)
def fold_affine(site: Site) -> list[ir.Value] | None:
    """Fold affine nodes into the layer before them, in place, in the main graph."""
    for index in (0, 1):
        layer, factors = producer_of(site.input(index), *LAYERS), site.array(1 - index)
        if layer is None or layer.graph is not site.node.graph or factors is None:
            continue
        if sole_consumer(layer.outputs[0]) is not site.node or factors.dtype.kind != "f":
            continue
        weight, bias = read_weights(layer)
        found = read_affine(site, index, bias.size, weight.ndim)
        site.note = f"folded into {label(layer)}"
        return fold_into(site, layer, *found)
    return None


def read_affine(site: Site, index: int, channels: int, rank: int) -> tuple[Array, Array]:
    """The ``s`` and ``t`` of ``x s + t``, which a node makes of its operand ``index``, by channel.

    Raises:
        Refusal: It is not affine in that operand, or not the same within a channel.
    """
    op, factors = site.node.op_type, site.array(1 - index)
    operand = None if factors is None else _by_channel(factors, channels, rank)
    if operand is None:
        raise Refusal("its constant does not have one value per channel")
    one, zero = np.ones_like(operand), np.zeros_like(operand)
    if op == "Add":
        return one, operand
    if op == "Sub":
        return (one, -operand) if index == 0 else (-one, operand)
    if op == "Mul":
        return operand, zero
    if index == 1:  # c / y is not affine in y
        raise Refusal("its divisor is not a constant")
    if not operand.all():
        raise Refusal("it divides by zero")
    return 1 / operand, zero


def _by_channel(array: NDArray[Any], channels: int, rank: int) -> Array | None:
    """The per-channel values of an operand constant within each channel (axis 1), or ``None``."""
    if array.size == 1 and array.ndim <= rank:
        return np.full(channels, float(array.reshape(-1)[0]))
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if array.size != channels or shape[1] != channels:
        return None
    return array.reshape(-1).astype(np.float64)
