"""Standard operators that an engine without a gradient for them refuses, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["REFUSED"]

_STEP = (
    "its derivative is zero almost everywhere, so nothing before it would be trained; if no "
    "gradient is meant to pass, or only that of a straight-through estimator, say so by detach() "
    "in torch and export with dynamo=True and optimize=False, which keep it; else replace the "
    "operator, or freeze the parameters before it"
)
_RECURRENT = "recurrent operators have no gradient; use --engine portable"
_CONTROL = "control flow has no gradient; use --engine portable"
_QUANTIZED = "quantized; start from the float model"

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Ceil", "Floor", "Hardmax", "Round", "Sign"), _STEP),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _RECURRENT),
    **dict.fromkeys(("If", "Loop", "Scan"), _CONTROL),
    **dict.fromkeys(
        (
            *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"),
            *("QLinearConv", "QLinearMatMul", "QuantizeLinear"),
        ),
        _QUANTIZED,
    ),
    "Det": "it has no gradient; use --engine portable",
    "GlobalLpPool": "it has no gradient; use --engine portable",
    "LpPool": "it has no gradient; use --engine portable",
    "MaxUnpool": "it has no gradient; use Resize or ConvTranspose",
    "Mod": "it has no gradient; use --engine portable",
    "RoiAlign": "it has no gradient",
    "SequenceMap": "its sequence has no known length; export one tensor, with a Loop or Scan",
}
"""Operator to the reason. An engine looks here only if it has no gradient for the operator.

Operators in no table are refused as unknown.
"""
