"""Quantized graphs, and obstacles to fusion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ortboost.deploy.findings import Finding, error, info, warn
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import input_at, label, producer_of

__all__: list[str] = []

_PAIR: Final = ("QuantizeLinear", "DequantizeLinear")
_SYMMETRIC: Final = "Quantize symmetrically: ortboost export --precision int8 --target tensorrt."
_HOSTS: Final = ("Conv", "ConvTranspose", "Gemm")


@rule("TRT060", "zero points")
def zero_points(context: Context) -> Iterator[Finding]:
    """TensorRT quantizes symmetrically."""
    for node in context.standard(*_PAIR):
        point = input_at(node, 2)
        if point is None:
            continue
        stored = context.array(point)
        if stored is None:
            if context.constness(point) == "computed":
                yield error(
                    node, "Its zero point is computed, but must be the constant 0.", _SYMMETRIC
                )
        elif np.any(stored.astype(np.float32)):
            yield error(
                node,
                f"Its zero point is {int(stored.astype(np.int64).ravel()[0])}, but must be 0.",
                _SYMMETRIC,
            )


@rule("TRT061", "BatchNormalization that could be folded")
def unfolded(context: Context) -> Iterator[Finding]:
    """A normalization after a convolution costs time, and keeps Q/DQ pairs from being fused."""
    quantized = any(node.op_type in _PAIR for node in context.nodes)
    found = warn if quantized else info
    for node in context.standard("BatchNormalization"):
        host = producer_of(input_at(node, 0))
        if host is None or host.op_type not in _HOSTS:
            continue
        stored = all(v is None or v.is_initializer() for v in (*host.inputs[1:], *node.inputs[1:]))
        yield found(
            node,
            f"It is not folded into '{label(host)}'"
            + (": this blocks the fusion of the Q/DQ pairs around it." if quantized else "."),
            "Fold before quantizing." if quantized else "Fold it: ortboost check --fix does.",
            fixable=stored and not quantized,
        )


@rule("TRT062", "QuantizeLinear without its partner")
def lonely(context: Context) -> Iterator[Finding]:
    """Only pairs are fused; the parser rejects any other reader of a quantized tensor."""
    for node in context.standard("QuantizeLinear"):
        readers = {use.node.op_type for use in node.outputs[0].uses()} - {"DequantizeLinear"}
        if readers:
            yield error(
                node,
                f"{', '.join(sorted(readers))} reads its quantized output: only DequantizeLinear "
                "may.",
                "Put a DequantizeLinear right after it.",
            )
