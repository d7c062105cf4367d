"""Fuse MatMul and the Add of a bias into one Gemm, if both operands have two dimensions.

With more dimensions they are kept: a Gemm would need a Reshape on either side, and ONNX Runtime
fuses MatMul and Add itself.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import FLOAT_TYPES, constant, label, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["fuse_gemm"]

# Nearly infinite in float16: as the bias of a Gemm it would force the product into float32.
_MASK = 6e4


@rewrites("Add")
def fuse_gemm(site: Site) -> list[ir.Value | None] | None:
    """Fuse MatMul and Add, in place, in the main graph."""
    reason = None  # the other operand may be the product that can be fused
    for index in (0, 1):
        product, bias = producer_of(site.input(index), "MatMul"), site.input(1 - index)
        if product is None or product.graph is not site.node.graph:
            continue
        if sole_consumer(product.outputs[0]) is not site.node:
            continue
        reason = _obstacle(product, bias)
        if reason is None:
            out = site.node.outputs[0]
            site.note = f"fused with '{label(product)}'"
            return [site.op("Gemm", *product.inputs, bias, dtype=out.dtype, shape=out.shape)]
    if reason is not None:
        raise Refusal(reason)
    return None


def _obstacle(product: ir.Node, bias: ir.Value) -> str | None:
    for value in product.inputs:
        if value is None or value.shape is None or len(value.shape) != 2:
            return f"'{label(product)}' does not multiply two matrices"
        if value.dtype not in FLOAT_TYPES:
            return "it multiplies integers"
    stored = constant(bias)
    if stored is None:
        return "the added tensor is computed, not stored"
    if not bool((np.abs(stored) < _MASK).all()):
        return "the added tensor is a mask, which is better kept separate"
    columns = product.inputs[1].shape[1]  # type: ignore[union-attr,index]
    if stored.ndim > 2 or (stored.ndim == 2 and stored.shape[0] != 1):
        return "the added tensor is not a bias"
    if stored.ndim and stored.shape[-1] not in (1, columns):
        return "the added tensor is not a bias"
    return None
