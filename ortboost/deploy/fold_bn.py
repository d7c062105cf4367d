r"""Fold BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    y = gamma (W x + b - mean) / sqrt(var + eps) + beta
      = W' x + b'    with W' = W gamma / sqrt(var + eps)  (per output channel)
                     and  b' = (b - mean) gamma / sqrt(var + eps) + beta

Layers that share a weight each get a copy of their own. A weight that other kinds of nodes read is
left alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.deploy.rewrites.layer_weights import LAYERS, Array, fold_into, read_weights
from ortboost.graph.query import constant, label, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["fold_bn", "read_norm"]


def read_norm(node: ir.Node) -> tuple[Array, Array]:
    """The ``s`` and ``t`` of a BatchNormalization ``x s + t``, for each channel.

    Raises:
        Refusal: It is in training mode, or its parameters are not stored.
    """
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        raise Refusal("it is in training mode")
    arrays = []
    for value in node.inputs[1:]:
        stored = constant(value)
        if stored is None:
            raise Refusal(f"'{value.name if value else ''}' is computed, not stored")
        arrays.append(stored.astype(np.float64))
    gamma, beta, mean, var = arrays
    with np.errstate(all="ignore"):  # store_weights() refuses what is not finite
        scale = gamma / np.sqrt(var + node.attributes.get_float("epsilon", 1e-5))
        return scale, beta - mean * scale


@rewrites("BatchNormalization", bypass=True)
def fold_bn(site: Site) -> list[ir.Value] | None:
    """Fold inference-mode BatchNormalization nodes, in place.

    Raises:
        ModelError: Parameters do not have the channels of the layer.
    """
    scale, shift = read_norm(site.node)
    layer = producer_of(site.input(0))
    if layer is None or producer_of(site.input(0), *LAYERS) is None:
        what = "an input" if layer is None else layer.op_type
        raise Refusal(f"it follows {what}, not a convolution or Gemm")
    if sole_consumer(layer.outputs[0]) is not site.node or layer.graph is not site.node.graph:
        raise Refusal(f"the output of '{label(layer)}' is used elsewhere too")
    channels = read_weights(layer)[1].size
    if not channels == scale.size == shift.size:
        raise ModelError(
            "A BatchNormalization does not fit the layer before it.",
            where=f"'{label(site.node)}': parameters of {scale.size} channels, "
            f"'{label(layer)}' has {channels}",
            fix="Export the model again, or check that the download or copy is complete.",
        )
    site.note = f"folded into {label(layer)}"
    return fold_into(site, layer, scale, shift)
