"""Protect float16 attention from a fusion of onnxruntime that reads its scale as float32.

``AttentionFusion`` (1.32, onnxruntime pull request 27883) recognizes the attention of MobileCLIP
and FastViT, as the TorchScript exporter writes it: query, key and value are squeezed parts of a
Split, and query and key are multiplied by a scalar. In float16 the file then cannot be opened. A
scale of shape [1, 1] is equivalent and is not recognized.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import is_standard, known_shape, producer_of, source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["guard_scales"]


@rewrites("Mul")
def guard_scales(site: Site) -> list[ir.Value | None] | None:
    """Write the scalar that scales a query or key in float16 as a matrix, in place."""
    for index in (0, 1):
        scaled, scale = site.input(index), site.array(1 - index)
        if scale is None or scale.size != 1 or scale.ndim > 1 or scale.dtype != "float16":
            continue
        part = producer_of(source_before(scaled, "Transpose"), "Squeeze")
        rank = len(known_shape(scaled) or ())
        if part is None or producer_of(part.inputs[0], "Split") is None or rank < 2:
            continue
        if not all(is_standard(use.node, "MatMul") for use in site.node.outputs[0].uses()):
            continue
        matrix = site.const(scale.reshape(1, 1), ir.DataType.FLOAT16)
        site.node.replace_input_with(1 - index, matrix)
        site.note = "its scale is a matrix now; onnxruntime would read a scalar as float32"
        return list(site.node.outputs)
    return None
