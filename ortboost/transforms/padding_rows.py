"""Block the gradient of embedding rows of padding tokens, as torch's ``padding_idx`` does.

    y = Gather(w, ids)    becomes    y = Where(ids mod n == row, w'[row], Gather(w, ids))

where `w'` is a copy of `w`, of `n` rows, as a separate graph input, which is not trained. Once the
graph is differentiated, :func:`join_padding_rows` replaces `w'` by the parameter again. Only this
lookup is blocked: if the table is also the output layer, its row is trained through that, as in
torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import find_nodes, label, source_before, static_shape

__all__ = ["join_padding_rows", "protect_padding_rows"]

_DETACHED = "ortboost/detached/"


def protect_padding_rows(model: ir.Model, rows: Mapping[str, int]) -> Report:
    """Block the gradient from lookups of padding tokens to their rows, in place.

    The parameters of the model, which is not differentiated yet, are graph inputs. ``rows`` has the
    row of the padding token of each trained table.
    """
    report = Report("protect_padding_rows")
    detached: dict[str, ir.Value] = {}
    for node in find_nodes(model.graph, "Gather") if rows else ():
        if node.attributes.get_int("axis", 0) != 0:
            continue  # padding_idx counts along axis 0
        data, ids = node.inputs
        table = source_before(data, "Cast", "Identity")  # mixed precision casts the table
        name = "" if table is None else table.name or ""
        if data is None or ids is None or table is None or name not in rows:
            continue
        row = rows[name]
        b = Builder(model.graph, "ortboost/padding")
        # One copy for all lookups of a table.
        copy = ir.val(_DETACHED + name, shape=table.shape, type=table.type)
        apart = detached.setdefault(name, copy)
        fixed = b.op("Gather", apart, b.const(row, ir.DataType.INT64), axis=0)
        if data.dtype is not None:
            fixed = b.cast(fixed, data.dtype)
        # ONNX counts a negative index from the end; Mod has the sign of the divisor.
        kind = ids.dtype or ir.DataType.INT64
        length, *rest = static_shape(table) or ()
        counted = b.op("Mod", ids, b.const(length, kind))
        is_padding = b.op("Equal", counted, b.const(row, kind), dtype=ir.DataType.BOOL)
        axes = range(-len(rest), 0)  # those of a row, counted from the end: any rank of indices
        mask = b.op("Unsqueeze", is_padding, b.ints(*axes)) if rest else is_padding
        found = b.op("Gather", data, ids, axis=0, shape=node.outputs[0].shape)
        replace_node(node, [b.op("Where", mask, fixed, found, dtype=data.dtype)], b)
        report.changed[label(node)] = f"row {row} of '{name}' gets no gradient"
    model.graph.inputs.extend(detached.values())
    return report


def join_padding_rows(model: ir.Model) -> None:
    """Let all consumers of the detached tables read the parameters again, in place."""
    inputs = {value.name or "": value for value in model.graph.inputs}
    for name, value in inputs.items():
        if name.startswith(_DETACHED):
            ir.convenience.replace_all_uses_with(value, inputs[name.removeprefix(_DETACHED)])
            model.graph.inputs.remove(value)
