"""Prevent ONNX Runtime's CPU provider from fusing a residual Add into the next normalization.

The fused kernel, SkipLayerNormalization, is slower there than Add and LayerNormalization: an
encoder of the size of BERT base, with 24 of them, took 7 % longer (onnxruntime 1.31, one thread;
1.19 shows no difference). The fusion matches Add, so the residual is written as Sum, which is equal
for two operands. This is done for the CPU only; on a GPU the fused kernel is faster.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import is_standard, sole_consumer
from ortboost.graph.rewriting import Refusal, Site, rewrites
from ortboost.graph.shapes.dimensions import same_shape

__all__ = ["split_skip_norm"]


@rewrites("Add")
def split_skip_norm(site: Site) -> list[ir.Value | None] | None:
    """Replace each Add that only a LayerNormalization reads by Sum, in place, in the main graph."""
    out, operands = site.node.outputs[0], (site.input(0), site.input(1))
    consumer = sole_consumer(out)
    if consumer is None or not is_standard(consumer, "LayerNormalization"):
        return None
    if consumer.inputs[0] is not out or any(operand.is_initializer() for operand in operands):
        return None
    if not same_shape(*operands):
        raise Refusal("its operands may differ in shape, so it is not fused")
    site.note = "written as Sum"
    return [site.op("Sum", *operands, dtype=out.dtype, shape=out.shape)]
