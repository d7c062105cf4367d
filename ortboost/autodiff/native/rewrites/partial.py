"""Split nodes with outputs that do not lead to the loss.

The gradient of a Split is a Concat, in which the builder omits unused outputs: the result is too
short, or its parts are in the wrong place. Here each used output becomes a Slice. As this depends
on the loss, it is done for each request and not in ``prepare``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import is_read
from ortboost.graph.reach import Reach
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["partly_used_splits"]


def partly_used_splits(model: ir.Model, reached: Reach) -> Report:
    """Replace Split nodes of which only some outputs lead to the loss by Slices, in place."""
    inside = {id(node) for node in reached.nodes}

    def partly_used(node: ir.Node) -> bool:
        return id(node) in inside and any(o.name not in reached.active for o in node.outputs)

    what = "not all outputs lead to the loss: replaced by Slices"
    return rewrite_nodes(model, "partly_used_splits", {"Split": _split}, what, only=partly_used)


def _split(site: Site) -> list[ir.Value | None]:
    axis = site.axis("axis", 0)
    sizes = _sizes(site, axis)
    ends = np.cumsum(sizes)
    parts: list[ir.Value | None] = []
    for output, size, end in zip(site.node.outputs, sizes, ends, strict=True):
        if not is_read(output):
            parts.append(None)
            continue
        start, stop = site.ints(int(end - size)), site.ints(int(end))
        part = site.op("Slice", site.input(0), start, stop, site.ints(axis), shape=output.shape)
        parts.append(part)
    return parts


def _sizes(site: Site, axis: int) -> list[int]:
    given = site.array(1)
    if given is not None:
        return [int(size) for size in given.reshape(-1)]
    length, count = site.shape()[axis], len(site.node.outputs)
    if site.optional(1) is not None or not isinstance(length, int):
        raise Refusal(
            "only some of its outputs lead to the loss and its sizes are not fixed; "
            "export with fixed sizes"
        )
    chunk = -(-length // count)  # with num_outputs, the last part may be smaller
    return [chunk] * (count - 1) + [length - chunk * (count - 1)]
