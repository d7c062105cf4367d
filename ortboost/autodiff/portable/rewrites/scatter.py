"""ScatterND with addition, written as ScatterElements with addition.

The CPU kernel of onnxruntime (at least 1.19 to 1.31) adds from several threads without a lock: with
repeated indices, updates are lost, differently in every run.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rules.indexing import as_rows
from ortboost.autodiff.sizes import joined
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["exact_scatter"]


@rewrites("ScatterND", what="adds without a race between threads")
def exact_scatter(site: Site) -> list[ir.Value | None] | None:
    """Write ScatterND with reduction="add" as ScatterElements over rows, in place.

    `x` is viewed as rows, and the indices as row indices.
    """
    if site.text("reduction", "none") != "add":
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
    added = site.op("ScatterElements", table, full, rows, axis=0, reduction="add")
    return [site.op("Reshape", added, site.shape_of(x), shape=x.shape, allowzero=1)]
