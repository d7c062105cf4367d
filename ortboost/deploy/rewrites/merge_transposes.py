"""Merge consecutive Transposes, and remove pairs that cancel.

    Transpose_q(Transpose_p(x)) = Transpose_r(x)   with r[i] = p[q[i]]

Exporters also transpose the last two axes in three dimensions, ``Reshape [n, h, s, d] -> [n h, s,
d]``, ``Transpose (0, 2, 1)``, ``Reshape -> [n, h, d, s]``: that is one Transpose (0, 1, 3, 2).
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import label, permutation, producer_of, sole_consumer
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes
from ortboost.graph.shapes.dimensions import dimensions

__all__ = ["merge_transposes"]


def merge_transposes(model: ir.Model) -> Report:
    """Merge Transpose nodes, in place, in the main graph."""
    rules: dict[str, Rule] = {"Reshape": _detour, "Transpose": _merge}
    return rewrite_nodes(model, "merge_transposes", rules, bypass=True)


def _merge(site: Site) -> list[ir.Value | None] | None:
    first, out = producer_of(site.input(0), "Transpose"), site.node.outputs[0]
    if first is None or first.graph is not site.node.graph:
        return None
    source, inner, outer = first.inputs[0], permutation(first), permutation(site.node)
    if source is None or inner is None or outer is None or len(inner) != len(outer):
        return None
    perm = [inner[i] for i in outer]
    if perm == sorted(perm):
        site.note = f"undoes '{label(first)}'"
        return [source]
    if sole_consumer(site.input(0)) is not site.node:
        raise Refusal(f"'{label(first)}' is needed elsewhere too")
    site.note = f"merged with '{label(first)}'"
    return [site.op("Transpose", source, dtype=out.dtype, shape=out.shape, perm=perm)]


def _detour(site: Site) -> list[ir.Value | None] | None:
    """Replace the last Reshape of a transposition done in three dimensions."""
    last, out = site.node, site.node.outputs[0]
    turn = producer_of(site.input(0), "Transpose")
    if turn is None or permutation(turn) != [0, 2, 1]:
        return None
    first = producer_of(turn.inputs[0], "Reshape")
    if first is None or first.graph is not last.graph:
        return None
    if sole_consumer(first.outputs[0]) is not turn or sole_consumer(turn.outputs[0]) is not last:
        return None
    source = first.inputs[0]
    # [n, h, s, d], [n h, s, d] and [n, h, d, s]
    before, flat, after = (dimensions(v) for v in (source, first.outputs[0], out))
    if source is None or before is None or flat is None or after is None or len(before) < 4:
        return None
    swapped = (*before[:-2], before[-1], before[-2])
    if after != swapped or len(flat) != 3 or tuple(flat[1:]) != tuple(before[-2:]):
        return None
    rank = len(before)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    site.note = "a transposition in three dimensions became a plain one"
    return [site.op("Transpose", source, dtype=out.dtype, shape=out.shape, perm=perm)]
