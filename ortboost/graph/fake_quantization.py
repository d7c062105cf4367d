"""Fake quantization, of quantization-aware training: floats are rounded to integers and back.

Exporters write it as a QuantizeLinear that DequantizeLinear nodes of the same scale and zero point
read. Its gradient is that of the identity, within the range of the integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import constant, input_at, is_standard

__all__ = ["integer_range", "is_fake_quantizer"]


def is_fake_quantizer(node: ir.Node) -> bool:
    """Whether a QuantizeLinear is followed by its inverse alone, with constant settings."""
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
    """The least and the greatest integer that a QuantizeLinear gives; ``None`` for other types."""
    zero = input_at(node, 2)
    given = node.attributes.get_int("output_dtype", 0) or int(ir.DataType.UINT8)
    dtype = zero.dtype if zero is not None else ir.DataType(given)
    if dtype is None or not dtype.is_integer():
        return None
    signed, bits = not dtype.name.startswith("U"), int(8 * dtype.itemsize)
    low = -(2 ** (bits - 1)) if signed else 0
    return low, low + 2**bits - 1


def _is_inverse(node: ir.Node, quantizer: ir.Node) -> bool:
    numbers = [(constant(input_at(n, 1)), constant(input_at(n, 2))) for n in (node, quantizer)]
    settings = [
        (n.attributes.get_int("axis", 1), n.attributes.get_int("block_size", 0))
        for n in (node, quantizer)
    ]
    (scale, zero), (other, origin) = numbers
    if scale is None or other is None or settings[0] != settings[1]:
        return False
    known = all(
        number is not None or input_at(n, 2) is None
        for n, (_, number) in zip((node, quantizer), numbers, strict=True)
    )
    least = np.zeros((), np.int64)
    pair = (least if number is None else number for number in (zero, origin))
    return known and np.array_equal(scale, other) and not np.any(np.subtract(*map(_wide, pair)))


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.int64)
