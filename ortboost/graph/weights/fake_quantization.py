"""Fake quantization, of quantization-aware training: floats are rounded to integers and back.

Exporters write it as a QuantizeLinear that DequantizeLinear nodes of the same scale and zero point
read. Its gradient is that of the identity, within the range of the integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import constant, input_at, is_standard

__all__ = ["integer_range", "is_fake_quantizer"]


def is_fake_quantizer(node: ir.Node) -> bool:
    """Whether a QuantizeLinear is followed only by its inverse, with constant settings."""
    if not is_standard(node, "QuantizeLinear") or integer_range(node) is None:
        return False
    (output,) = node.outputs
    readers = [use.node for use in output.uses() if use.idx == 0]
    return (
        not output.is_graph_output()
        and 0 < len(readers) == len(output.uses())
        and all(is_standard(r, "DequantizeLinear") and _is_inverse(r, node) for r in readers)
    )


def integer_range(node: ir.Node) -> tuple[int, int] | None:
    """The least and the greatest output of a QuantizeLinear; ``None`` if not an integer type."""
    zero = input_at(node, 2)
    given = node.attributes.get_int("output_dtype", 0) or int(ir.DataType.UINT8)
    dtype = zero.dtype if zero is not None else ir.DataType(given)
    if dtype is None or not dtype.is_integer():
        return None
    signed, bits = not dtype.name.startswith("U"), int(8 * dtype.itemsize)
    low = -(2 ** (bits - 1)) if signed else 0
    return low, low + 2**bits - 1


def _is_inverse(node: ir.Node, quantizer: ir.Node) -> bool:
    """Whether two nodes have the same constant scale and zero point, along the same axis."""
    for key, default in (("axis", 1), ("block_size", 0)):
        if node.attributes.get_int(key, default) != quantizer.attributes.get_int(key, default):
            return False
    one, other = _settings(node), _settings(quantizer)
    if one is None or other is None:
        return False
    (scale, zero), (wanted, origin) = one, other
    return np.array_equal(scale, wanted) and bool(np.all(zero == origin))


def _settings(node: ir.Node) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Scale and zero point; ``None`` if they are not constants."""
    scale, zero = constant(input_at(node, 1)), constant(input_at(node, 2))
    if scale is None or (zero is None and input_at(node, 2) is not None):
        return None
    return scale, np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
