"""Scattered sums: without a race between threads, and in float32."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rewrites.normalization import FLOAT
from ortboost.autodiff.portable.rules.indexing import as_rows
from ortboost.autodiff.sizes import joined
from ortboost.graph.query import SHORT_FLOATS, known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["exact_scatter", "scatter_in_float32"]


@rewrites("ScatterND", what="reduces without a race between threads")
def exact_scatter(site: Site) -> list[ir.Value | None] | None:
    """Write ScatterND with a reduction as ScatterElements over rows, in place.

    The CPU kernel of onnxruntime (at least 1.19 to 1.31) reduces in several threads without a lock:
    with repeated indices, updates are lost, differently in every run.

    `x` is viewed as rows, and the indices as row indices.
    """
    reduction = site.text("reduction", "none")
    if reduction == "none":
        return None
    x, indices = site.input(0), site.input(1)
    shape = known_shape(indices)
    if known_shape(x) is None or not shape or not isinstance(shape[-1], int):
        raise Refusal(
            "the shape of its indices is unknown; updates at repeated indices may be "
            "lost on the CPU"
        )
    base, index, rows = as_rows(site, x, indices, site.input(2))
    table = site.op("Reshape", x, joined(site, base), allowzero=1)
    full = site.op("Expand", site.op("Unsqueeze", index, site.ints(1)), site.shape_of(rows))
    made = site.op("ScatterElements", table, full, rows, axis=0, reduction=reduction)
    return [site.op("Reshape", made, site.shape_of(x), shape=x.shape, allowzero=1)]


@rewrites("ScatterElements", "ScatterND", what="adds in float32")
def scatter_in_float32(site: Site) -> list[ir.Value | None] | None:
    """Cast the operands of sums of 16-bit data to float32 and the sum back, in place; idempotent.

    There is no CPU kernel for 16-bit types. On a GPU the order of the additions is arbitrary, and
    in 16 bits every addition to an element loses accuracy. (The gradients of MaxPool, Gather and
    others are such sums.)
    """
    if site.dtype not in SHORT_FLOATS or site.text("reduction", "none") == "none":
        return None
    data, updates = (site.cast(site.input(index), FLOAT) for index in (0, 2))
    options = {"dtype": FLOAT, "shape": data.shape, **site.node.attributes}
    return [site.cast(site.op(site.node.op_type, data, site.input(1), updates, **options))]
