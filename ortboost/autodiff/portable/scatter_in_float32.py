"""Scattered sums in float32 for 16-bit data.

``ScatterElements`` and ``ScatterND`` with addition have no CPU kernel for 16-bit types. On a GPU
they add in arbitrary order, and in 16 bits every addition to an element loses accuracy. (The
gradients of MaxPool, Gather and others are such sums.) Float32 avoids both problems.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.rewriting import Site, rewrites

__all__ = ["scatter_in_float32"]

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = ir.DataType.FLOAT


@rewrites("ScatterElements", "ScatterND", what="adds in float32")
def scatter_in_float32(site: Site) -> list[ir.Value | None] | None:
    """Cast the operands to float32 and the sum back, in place; idempotent."""
    if site.dtype not in _HALF or site.text("reduction", "none") == "none":
        return None
    data, updates = (site.cast(site.input(index), _FLOAT) for index in (0, 2))
    options = {"dtype": _FLOAT, "shape": data.shape, **site.node.attributes}
    return [site.cast(site.op(site.node.op_type, data, site.input(1), updates, **options))]
