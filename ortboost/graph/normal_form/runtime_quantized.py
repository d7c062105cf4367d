"""MatMulNBits of onnxruntime, written out as DequantizeLinear and MatMul.

Source: ``docs/ContribOperators.md`` of https://github.com/microsoft/onnxruntime, and its CPU kernel
for the order of the bits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import constant
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["BLOCKWISE_OPSET", "matmul_n_bits"]

BLOCKWISE_OPSET: Final = 21
"""The first opset whose DequantizeLinear has blocks, and types of 4 bits."""


def matmul_n_bits(site: Site) -> list[ir.Value]:
    """``x W`` with the columns of `W` quantized in blocks, ``W = (q - zero_point) scale``.

    Inputs: x ``[..., K]``; q ``[N, blocks, bytes of a block]``; scales ``[N, blocks]``, in any
    shape; zero points ``[N, bytes]``, ``2^(bits - 1)`` if not given; bias ``[N]`` as the sixth.
    Numbers of 4 and 2 bits are packed in bytes, the first one in the lowest bits. The result has q
    as ``[K, N]``, with blocks along the first axis, the form that onnxruntime fuses again.
    """
    if site.opset < BLOCKWISE_OPSET:
        raise Refusal(f"DequantizeLinear has blocks from opset {BLOCKWISE_OPSET} on only")
    inner, outer = site.integer("K", 0), site.integer("N", 0)
    bits, block = site.integer("bits", 4), site.integer("block_size", 0)
    if bits not in (2, 4, 8) or block < 1 or site.optional(4) is not None:
        raise Refusal("only 2, 4 or 8 bits in blocks, without g_idx, are supported")
    packed, scales, points = site.array(1), site.array(2), site.array(3)
    if packed is None or scales is None or (points is None and site.optional(3) is not None):
        raise Refusal("its weight is computed, not stored")
    if packed.dtype != np.uint8 or (points is not None and points.dtype != np.uint8):
        raise Refusal("its weight or its zero points are not packed in bytes")
    blocks = math.ceil(inner / block)
    sizes = [(packed.size * 8, outer * blocks * block * bits), (scales.size, outer * blocks)]
    if points is not None:
        sizes.append((points.size, outer * math.ceil(blocks * bits / 8)))
    if inner < 1 or outer < 1 or any(found != expected for found, expected in sizes):
        raise Refusal("its weight does not have the size that K, N and block_size say")
    stored = ir.DataType.UINT4 if bits == 4 else ir.DataType.UINT8
    q = _unpacked(packed.reshape(outer, -1), bits)[:, :inner].T
    if points is None:
        zero = np.full((blocks, outer), 1 << (bits - 1), np.uint8)
    else:
        zero = _unpacked(points.reshape(outer, -1), bits)[:, :blocks].T
    weight = site.op(
        "DequantizeLinear",
        _stored(site, q, stored),
        site.const(scales.reshape(outer, blocks).T, site.input(2).dtype),
        site.const(zero, stored),
        dtype=site.input(2).dtype,
        shape=(inner, outer),
        axis=0,
        block_size=block,
    )
    product, bias = site.op("MatMul", site.input(0), weight), site.optional(5)
    return [product if bias is None else site.op("Add", product, bias)]


def _unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The numbers in each row of bytes, as bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(len(packed), -1)


def _stored(site: Site, array: NDArray[Any], dtype: ir.DataType) -> ir.Value:
    """The weight in its new form, under its name, by which users select layers."""
    old = site.input(1)
    if len(old.uses()) > 1 or constant(old) is None or not old.is_initializer():
        return site.const(array, dtype)
    old.const_value = ir.tensor(array.astype(dtype.numpy()), dtype=dtype, name=old.name)
    old.type, old.shape = ir.TensorType(dtype), ir.Shape(array.shape)
    return old
