"""Merge consecutive Reshape, Squeeze, Unsqueeze and Flatten nodes into at most one Reshape.

None of them reorders elements, nor does a Transpose that moves only dimensions of length 1. Only
the last shape of a chain ``x -> view -> view`` matters, so the last view reads ``x`` directly if
constants can express its shape in terms of ``x``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import (
    constant,
    input_at,
    is_standard,
    known_shape,
    label,
    permutation,
    producer_of,
)
from ortboost.graph.rewriting import Refusal, Site, can_replace, rewrites
from ortboost.graph.shapes.dimensions import REST, as_reshape, dimensions, is_flat, same_view

__all__ = ["merge_views"]

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


@rewrites(*_VIEWS, "Transpose", bypass=True)
def merge_views(site: Site) -> list[ir.Value | None] | None:
    """Merge chains of views, in place, in the main graph."""
    node, middle, out = site.node, site.input(0), site.node.outputs[0]
    first = producer_of(middle)
    if first is None or first.graph is not node.graph or not (_is_view(node) and _is_view(first)):
        return None
    source = first.inputs[0]
    if source is None or (node.op_type == first.op_type == "Transpose"):
        return None
    have, want = dimensions(source), dimensions(out)
    if same_view(have, want) and can_replace(out, source):
        site.note = f"undoes '{label(first)}'"
        return [source]
    if middle.is_graph_output() or not all(_is_view(use.node) for use in middle.uses()):
        return None  # the first view stays, so nothing would be saved
    # The new shape, with the -1 where this Reshape has one.
    target = constant(node.inputs[1]) if is_standard(node, "Reshape") else None
    if want is not None and target is not None and len(want) == len(target):
        want = tuple(REST if t == -1 else key for t, key in zip(target, want, strict=True))
    shape = None if have is None or want is None else as_reshape(want, have)
    if shape is None and target is not None and np.all(target != 0):
        shape = [int(length) for length in target]  # any input with as many elements will do
    site.note = f"merged with '{label(first)}'"
    if shape is None and have is not None and want is not None and is_flat(want, have):
        return [site.op("Flatten", source, dtype=out.dtype, shape=out.shape, axis=1)]
    if shape is None:
        raise Refusal("constants cannot express the shape")
    return [site.op("Reshape", source, site.ints(*shape), dtype=out.dtype, shape=out.shape)]


def _is_view(node: ir.Node) -> bool:
    return is_standard(node, *_VIEWS) or _moves_ones(node)


def _moves_ones(node: ir.Node) -> bool:
    """Whether a node is a Transpose that moves only dimensions of length 1."""
    perm, shape = permutation(node), known_shape(input_at(node, 0))
    kept = [axis for axis in perm or () if shape is not None and shape[axis] != 1]
    return perm is not None and shape is not None and kept == sorted(kept)
