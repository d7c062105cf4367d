"""Fake quantization, of quantization-aware training: floats are rounded to integers and back.

Exporters write it as a QuantizeLinear that DequantizeLinear nodes of the same scale and zero point
read, Brevitas with a Clip in between. Its gradient is that of the identity, within the range of the
integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import constant, input_at, is_standard, producer_of, source_before

__all__ = ["integer_range", "is_fake_quantizer", "passes_integers", "settings"]


def is_fake_quantizer(node: ir.Node) -> bool:
    """Whether a QuantizeLinear is followed only by its inverse, with constant settings."""
    if not is_standard(node, "QuantizeLinear") or integer_range(node) is None:
        return False
    clip = _clip(node)
    values = [*node.outputs, *(clip.outputs if clip is not None else ())]
    uses = list(values[-1].uses())
    return (
        not any(value.is_graph_output() for value in values)
        and len(uses) > 0
        and all(use.idx == 0 and _is_inverse(use.node, node) for use in uses)
    )


def passes_integers(node: ir.Node) -> bool:
    """Whether a node rounds for a fake quantization: its QuantizeLinear, or its Clip."""
    quantizer = producer_of(node.inputs[0], "QuantizeLinear") if node.op_type == "Clip" else node
    return quantizer is not None and is_fake_quantizer(quantizer)


def _clip(quantizer: ir.Node) -> ir.Node | None:
    """The Clip with constant bounds that alone reads the integers, if there is one."""
    uses = list(quantizer.outputs[0].uses())
    clip = uses[0].node if len(uses) == 1 and uses[0].idx == 0 else None
    if clip is None or not is_standard(clip, "Clip"):
        return None
    bounds = [value for value in clip.inputs[1:] if value is not None]
    return clip if all(constant(bound) is not None for bound in bounds) else None


def integer_range(node: ir.Node) -> tuple[int, int] | None:
    """The least and the greatest output of a QuantizeLinear; ``None`` if not an integer type."""
    zero = input_at(node, 2)
    given = node.attributes.get_int("output_dtype", 0) or int(ir.DataType.UINT8)
    dtype = zero.dtype if zero is not None else ir.DataType(given)
    if dtype is None or not dtype.is_integer():
        return None
    signed, bits = not dtype.name.startswith("U"), int(8 * dtype.itemsize)
    low = -(2 ** (bits - 1)) if signed else 0
    high, clip = low + 2**bits - 1, _clip(node)
    if clip is not None:
        least, most = constant(input_at(clip, 1)), constant(input_at(clip, 2))
        low = low if least is None else max(low, int(least))
        high = high if most is None else min(high, int(most))
    return low, high


def _is_inverse(node: ir.Node, quantizer: ir.Node) -> bool:
    """Whether a node is a DequantizeLinear of the same constants, along the same axis."""
    if not is_standard(node, "DequantizeLinear"):
        return False
    for key, default in (("axis", 1), ("block_size", 0)):
        if node.attributes.get_int(key, default) != quantizer.attributes.get_int(key, default):
            return False
    one, other = settings(node), settings(quantizer)
    if one is None or other is None:
        return False
    (scale, zero), (wanted, origin) = one, other
    return np.array_equal(scale, wanted) and bool(np.all(zero == origin))


def settings(node: ir.Node) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Scale and zero point of a quantizer; ``None`` if they are not constants.

    Without constant folding, torch casts those of each channel, which are buffers.
    """
    scale, zero = (constant(source_before(input_at(node, i), "Cast")) for i in (1, 2))
    if scale is None or (zero is None and input_at(node, 2) is not None):
        return None
    return scale, np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
