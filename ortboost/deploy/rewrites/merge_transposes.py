"""Transposes in a row are one; two that undo each other are none.

    Transpose_q(Transpose_p(x)) = Transpose_r(x)   with r[i] = p[q[i]]

Exporters also write the transposition of the last two axes around a detour over three dimensions,
``Reshape [n, h, s, d] -> [n h, s, d]``, ``Transpose (0, 2, 1)``, ``Reshape -> [n, h, d, s]``: that is one
Transpose (0, 1, 3, 2).
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.dimensions import dimensions
from ortboost.deploy.rewrites.helpers import is_standard, label, only_user, replace_value
from ortboost.graph.build import Builder

__all__ = ["merge_transposes"]


def merge_transposes(model: ir.Model) -> Report:
    """Merge Transpose nodes, in place, in the main graph."""
    report = Report("merge_transposes")
    builder = Builder(model.graph, "ortboost/transpose")
    for node in list(model.graph):
        if node.graph is not None and is_standard(node, "Reshape"):
            _detour(model, node, builder, report)
    for node in list(model.graph):
        if node.graph is None or not is_standard(node, "Transpose"):
            continue
        first = node.inputs[0].producer() if node.inputs[0] is not None else None
        if first is None or first.graph is not node.graph or not is_standard(first, "Transpose"):
            continue
        source, out = first.inputs[0], node.outputs[0]
        inner, outer = _perm(first), _perm(node)
        if source is None or inner is None or outer is None or len(inner) != len(outer):
            continue
        perm = [inner[i] for i in outer]
        name, other = label(node), label(first)
        if perm == sorted(perm):
            if not replace_value(out, source):
                report.kept[name] = "it gives an output of the model its name"
                continue
            report.changed[name] = f"undoes '{other}'"
        else:
            if only_user(node.inputs[0]) is not node:  # type: ignore[arg-type]
                report.kept[name] = f"'{other}' is needed elsewhere too"
                continue
            made = builder.op("Transpose", source, dtype=out.dtype, shape=out.shape, perm=perm)
            for new in builder.take():
                model.graph.insert_before(node, new)
            replace_value(out, made)
            report.changed[name] = f"merged with '{other}'"
        model.graph.remove(node, safe=True)
        if not any(o.uses() or o.is_graph_output() for o in first.outputs):
            model.graph.remove(first, safe=True)
    return report


def _perm(node: ir.Node) -> list[int] | None:
    perm = node.attributes.get_ints("perm", None)
    if perm is not None:
        return list(perm)
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    return list(range(len(value.shape)))[::-1]


def _detour(model: ir.Model, last: ir.Node, builder: Builder, report: Report) -> None:
    turn = last.inputs[0].producer() if last.inputs[0] is not None else None
    if turn is None or not is_standard(turn, "Transpose") or _perm(turn) != [0, 2, 1]:
        return
    first = turn.inputs[0].producer() if turn.inputs[0] is not None else None
    if first is None or not is_standard(first, "Reshape") or first.graph is not model.graph:
        return
    if only_user(first.outputs[0]) is not turn or only_user(turn.outputs[0]) is not last:
        return
    source, out = first.inputs[0], last.outputs[0]
    before, flat, after = (dimensions(v) for v in (source, first.outputs[0], out))
    if source is None or before is None or flat is None or after is None or len(before) < 4:
        return
    swapped = (*before[:-2], before[-1], before[-2])
    if after != swapped or len(flat) != 3 or tuple(flat[1:]) != tuple(before[-2:]):
        return
    rank = len(before)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    made = builder.op("Transpose", source, dtype=out.dtype, shape=out.shape, perm=perm)
    for new in builder.take():
        model.graph.insert_before(last, new)
    name = label(last)
    replace_value(out, made)
    for node in (last, turn, first):
        model.graph.remove(node, safe=True)
    report.changed[name] = "a transposition over three dimensions became a plain one"
