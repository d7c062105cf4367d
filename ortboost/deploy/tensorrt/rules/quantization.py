"""Quantized graphs, and what keeps operators from being fused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ortboost.deploy.tensorrt.rules.registry import Context, Finding, rule
from ortboost.graph.query import is_standard, label, producer_of

__all__: list[str] = []

_PAIR: Final = ("QuantizeLinear", "DequantizeLinear")
_HOSTS: Final = ("Conv", "ConvTranspose", "Gemm")


@rule("TRT060", "zero points")
def zero_points(context: Context) -> Iterator[Finding]:
    """TensorRT quantizes symmetrically."""
    for node in context.nodes:
        if node.op_type not in _PAIR or not is_standard(node) or len(node.inputs) < 3:
            continue
        point = node.inputs[2]
        if point is None:
            continue
        stored = context.array(point)
        if stored is None:
            if context.constness(point) == "computed":
                yield Finding(
                    "TRT060",
                    "error",
                    label(node),
                    node.op_type,
                    "Its zero point is computed, and must be the constant 0.",
                    "Quantize symmetrically: ortboost export --precision int8 --target tensorrt.",
                )
        elif np.any(stored.astype(np.float32)):
            yield Finding(
                "TRT060",
                "error",
                label(node),
                node.op_type,
                f"Its zero point is {int(stored.astype(np.int64).ravel()[0])}, and must be 0.",
                "Quantize symmetrically: ortboost export --precision int8 --target tensorrt.",
            )


@rule("TRT061", "BatchNormalization that could be folded")
def unfolded(context: Context) -> Iterator[Finding]:
    """A normalization after a convolution costs time, and keeps Q/DQ pairs from being fused."""
    quantized = any(node.op_type in _PAIR for node in context.nodes)
    for node in context.nodes:
        if node.op_type != "BatchNormalization" or not is_standard(node) or not node.inputs:
            continue
        value = node.inputs[0]
        host = producer_of(value)
        if host is None or host.op_type not in _HOSTS:
            continue
        stored = all(v is None or v.is_initializer() for v in (*host.inputs[1:], *node.inputs[1:]))
        yield Finding(
            "TRT061",
            "warn" if quantized else "info",
            label(node),
            node.op_type,
            f"It is not folded into '{label(host)}'"
            + (": this blocks the fusion of the Q/DQ pairs around it." if quantized else "."),
            "Fold before quantizing." if quantized else "Fold it: ortboost check --fix does.",
            fixable=stored and not quantized,
        )


@rule("TRT062", "QuantizeLinear without its partner")
def lonely(context: Context) -> Iterator[Finding]:
    """Only pairs are fused; a quantized tensor that anything else reads is refused."""
    for node in context.nodes:
        if node.op_type != "QuantizeLinear" or not is_standard(node):
            continue
        others = sorted(
            {
                use.node.op_type
                for use in node.outputs[0].uses()
                if use.node.op_type != "DequantizeLinear"
            }
        )
        if others:
            yield Finding(
                "TRT062",
                "error",
                label(node),
                node.op_type,
                f"{', '.join(others)} reads its quantized output: only DequantizeLinear may.",
                "Put a DequantizeLinear right after it.",
            )
