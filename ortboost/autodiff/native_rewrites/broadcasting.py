"""Broadcasting that the gradients of the builder forget to sum over.

The gradients of a broadcast branch of Where and of the base of Pow come back in the shape of the
output. Behind an Expand they are summed rightly.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.autodiff.rewriting import Site, rewrite_nodes
from ortboost.graph.query import FLOAT_TYPES, known_shape
from ortboost.report import Report

__all__ = ["expanded_branches"]


def expanded_branches(model: ir.Model) -> Report:
    """Expand broadcast float branches of Where and bases of Pow; cast integer exponents."""
    return rewrite_nodes(
        model,
        "expanded_branches",
        {"Where": _where, "Pow": _pow},
        {
            "Where": "branch expanded to the shape of the output",
            "Pow": "base expanded to the shape of the output, or exponent cast to its type",
        },
    )


def _where(site: Site) -> list[ir.Value | None] | None:
    condition, *branches = (site.input(index) for index in range(3))
    if branches[0].dtype is not None and branches[0].dtype not in FLOAT_TYPES:
        return None
    full = broadcast_shape([condition, *branches])
    if full is not None and all(known_shape(branch) == full for branch in branches):
        return None
    if all(_is_expanded(branch) for branch in branches) or _only_shape(site.node):
        return None
    # The shape is that of a Where whose values nobody reads; no gradient flows through Shape.
    dtype = branches[0].dtype
    shape = site.shape_of(site.op("Where", condition, *branches, dtype=dtype))
    expanded = [site.op("Expand", branch, shape, shape=full) for branch in branches]
    return [site.op("Where", condition, *expanded, dtype=dtype, shape=full)]


def _pow(site: Site) -> list[ir.Value | None] | None:
    base, exponent = site.input(0), site.input(1)
    cast = exponent.dtype is not None and base.dtype is not None and exponent.dtype != base.dtype
    full = broadcast_shape([base, exponent])
    narrow = (full is None or known_shape(base) != full) and not _is_expanded(base)
    single = site.array(1)
    if single is not None and single.size == 1 and single.ndim <= len(known_shape(base) or ()):
        narrow = False
    if (not cast and not narrow) or _only_shape(site.node):
        return None
    if narrow:
        shape = site.shape_of(site.op("Pow", base, exponent))
        base = site.op("Expand", base, shape, shape=full)
    if cast and single is not None:
        exponent = site.const(single)
    elif cast and base.dtype is not None:
        exponent = site.op("Cast", exponent, dtype=base.dtype, to=int(base.dtype))
    return [site.op("Pow", base, exponent, shape=full)]


def _only_shape(node: ir.Node) -> bool:
    """Whether only the shape of the output is of interest, as in the nodes made here."""
    uses = node.outputs[0].uses()
    return bool(uses) and all(usage.node.op_type == "Shape" for usage in uses)


def _is_expanded(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Expand"


def broadcast_shape(values: Sequence[ir.Value]) -> tuple[int | str | None, ...] | None:
    """The shape that the values broadcast to, where that is certain; equal names are equal sizes."""
    shapes = [known_shape(value) for value in values]
    found: list[int | str | None] = []
    for shape in shapes:
        if shape is None:
            return None
        while len(found) < len(shape):
            found.insert(0, 1)
        for offset, dim in enumerate(reversed(shape), 1):
            known = found[-offset]
            if dim == 1 or (dim == known and dim is not None):
                continue
            if known != 1 or dim is None:
                return None
            found[-offset] = dim
    return tuple(found)
