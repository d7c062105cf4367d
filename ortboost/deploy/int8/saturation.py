r"""int8 products that saturate on x86 processors without VNNI.

On these ONNX Runtime multiplies unsigned by signed bytes with VPMADDUBSW (AVX2, AVX512BW), which
sums two adjacent products in 16 bits::

    p = saturate(a_0 w_0 + a_1 w_1),    0 <= a <= 255,    -32768 <= p <= 32767

There is no saturation, whatever the activations, if ``255 (w_0 + w_1)`` fits for any two weights of
one sign, that is, if they sum to at most 128. Two 7-bit weights always do. Which weights are
adjacent depends on the kernel, so any two of a channel are considered. VNNI (VPDPBUSD) sums in 32
bits.

Source: onnxruntime.ai, Quantize ONNX Models, "When and why do I need to try U8U8?" and
"reduce-range".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import input_at, label, producer_of

__all__ = ["SAFE_WEIGHT", "can_saturate", "saturating_weights"]

SAFE_WEIGHT: Final = 64
"""Largest magnitude with which two weights never saturate: 2 * 64 * 255 = 32640."""

_SUM: Final = 128  # the largest sum of two weights: 128 * 255 = 32640 fits in 16 bits
# Operator to the indices of its weights, and the axis of the output channels.
_PRODUCTS: Final = {
    "Conv": ((1,), 0),
    "ConvInteger": ((1,), 0),
    "DynamicQuantizeLSTM": ((1, 2), -1),
    "QLinearConv": ((3,), 0),
    "Gemm": ((1,), -1),
    "MatMul": ((1,), -1),
    "MatMulInteger": ((1,), -1),
    "QLinearMatMul": ((3,), -1),
}


def can_saturate(weights: NDArray[Any], axis: int) -> bool:
    """Whether the products with these int8 weights can saturate.

    Args:
        weights: Stored int8 weights, of any shape.
        axis: The axis of the output channels; products are summed over the others.

    Example:
        >>> w = np.array([[80, -49], [49, -80]], np.int8)
        >>> can_saturate(w, 1), can_saturate(w.T, 1), can_saturate(w // 2, 1)
        (True, False, False)
    """
    if weights.ndim < 2 or not weights.size:
        return False
    channels = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.int32)
    ordered = np.sort(channels, axis=1)
    above = np.maximum(ordered[:, -2:], 0).sum(1)  # the two largest of each channel
    below = np.minimum(ordered[:, :2], 0).sum(1)
    return bool(above.max() > _SUM or below.min() < -_SUM)


def saturating_weights(model: ir.Model) -> dict[str, str]:
    """Find stored int8 weights whose products can saturate, read by pairs or integer operators.

    Returns:
        Name of the weight to the name of the node that multiplies with it.
    """
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        places, axis = _PRODUCTS.get(node.op_type, ((), 0))
        if node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
            axis = 0
        for place in places:
            value = input_at(node, place)
            producer = producer_of(value, "DequantizeLinear")
            value = value if producer is None else producer.inputs[0]
            stored = None if value is None else value.const_value
            if value is None or stored is None or stored.dtype != ir.DataType.INT8:
                continue
            if can_saturate(stored.numpy(), axis):
                found[value.name or ""] = label(node)
    return found
