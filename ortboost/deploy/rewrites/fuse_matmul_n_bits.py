"""Fuse DequantizeLinear of a blockwise weight with its MatMul to MatMulNBits of onnxruntime.

    x (q - zero_point) scale = MatMulNBits(x, q, scale, zero_point)

A session does this itself, but by default it then rounds the activations to 8 bits
(``session.qdq_matmulnbits_accuracy_level`` is 4), which changes the outputs by about 1 %. The fused
node in the file computes in float32. It is the inverse of
:func:`ortboost.graph.normal_form.runtime_quantized.matmul_n_bits`; sources are named there.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.query import constant, producer_of, sole_consumer
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["fuse_matmul_n_bits"]

_DOMAIN = "com.microsoft"
_BITS = {ir.DataType.UINT4: 4, ir.DataType.INT4: 4, ir.DataType.UINT8: 8, ir.DataType.INT8: 8}
_SIGNED = (ir.DataType.INT4, ir.DataType.INT8)
_SMALLEST = 16  # block


def fuse_matmul_n_bits(model: ir.Model) -> Report:
    """Fuse products with weights of 4 or 8 bits in blocks along their first axis, in place."""
    report = rewrite_nodes(model, "fuse_matmul_n_bits", {"MatMul": _fused})
    if report.changed:
        model.opset_imports.setdefault(_DOMAIN, 1)
    return report


def _fused(site: Site) -> list[ir.Value] | None:
    source = producer_of(site.input(1), "DequantizeLinear")
    if source is None or sole_consumer(site.input(1)) is not site.node:
        return None
    block, axis = (source.attributes.get_int(k, d) for k, d in (("block_size", 0), ("axis", 1)))
    weight = source.inputs[0]
    bits = 0 if weight is None or weight.dtype is None else _BITS.get(weight.dtype, 0)
    arrays = [constant(value) for value in source.inputs]
    if not bits or axis not in (0, -2) or block < _SMALLEST or block & (block - 1):
        return None
    if any(array is None for array in arrays) or weight is None:
        return None
    stored, scales, *points = (array for array in arrays if array is not None)
    shape = (math.ceil(len(stored) / block), *stored.shape[1:])
    if stored.ndim != 2 or not stored.size or scales.dtype != np.float32:
        return None
    if any(array.shape != shape for array in (scales, *points)):  # not a valid file
        return None
    half = 1 << (bits - 1)
    shift = half if weight.dtype in _SIGNED else 0  # the fused operator counts from zero
    inner, outer = stored.shape
    padded = np.full((outer, len(scales) * block), half, np.uint8)
    padded[:, :inner] = stored.T.astype(np.int16) + shift
    packed = _packed(padded, bits).reshape(outer, len(scales), block * bits // 8)
    zero = points[0].astype(np.int16) + shift if points else np.full(scales.shape, shift)
    given = None
    if (zero != half).any():  # else it is the default
        given = site.const(_packed(zero.T.astype(np.uint8), bits).ravel(), ir.DataType.UINT8)
    site.note = f"MatMulNBits of {bits} bits"
    return [
        site.op(
            "MatMulNBits",
            site.input(0),
            site.const(packed, ir.DataType.UINT8),
            site.const(scales.T.ravel()),
            given,
            domain=_DOMAIN,
            shape=site.node.outputs[0].shape,
            K=inner,
            N=outer,
            bits=bits,
            block_size=block,
        )
    ]


def _packed(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Each row of numbers in bytes, the first number in the lowest bits."""
    count = 8 // bits
    rows = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % count)))
    shifted = rows.reshape(len(rows), -1, count) << (bits * np.arange(count, dtype=np.uint8))
    packed: NDArray[np.uint8] = np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint8)
    return packed
