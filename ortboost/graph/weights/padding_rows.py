"""Rows of embedding tables excluded from training by torch: ``nn.Embedding(padding_idx=...)``.

In torch, looking up a padding token sends no gradient to its row
(https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html). ONNX has only Gather,
without such a setting. Exporters leave these traces:

- torch's dynamo exporter stores the call with each node, ``aten.embedding.default(weight, ids,
  0)``;
- the TorchScript exporter leaves only the row itself: zeros, as ``nn.Embedding`` initializes it.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ortboost.graph.query import input_at, is_standard, static_shape
from ortboost.graph.weights.origins import CALL_KEY, made_by_torch

__all__ = ["find_padding_rows", "padding_rows", "stamp_padding_rows"]

_META = "ortboost.padding_rows"
_EMBEDDING = re.compile(r"aten\.embedding\.default\]\(args = \(%[^,]+, %[^,)]+(?:, (-?\d+))?")


def find_padding_rows(model: ir.Model) -> dict[str, int]:
    """Embedding table to padding row, in a model as loaded with its functions inlined."""
    found: dict[str, int] = {}
    torch = made_by_torch(model)
    for node in model.graph:
        table = _table(node)
        shape = static_shape(table)
        if table is None or not table.is_initializer() or shape is None or len(shape) != 2:
            continue
        call = _EMBEDDING.search(node.metadata_props.get(CALL_KEY, ""))
        if call is not None:  # torch writes -1 for no padding_idx
            row = None if call[1] is None or int(call[1]) < 0 else int(call[1])
        else:
            row = _zero_row(table) if torch else None
        if row is not None and row < shape[0]:
            found[table.name or ""] = row
    return found


def _table(node: ir.Node) -> ir.Value | None:
    """The table that a node looks up."""
    if node.op_type == "EmbedLayerNormalization":  # of onnxruntime's optimizer
        return input_at(node, 2)
    if is_standard(node, "Gather") and node.attributes.get_int("axis", 0) == 0:
        return node.inputs[0]
    return None


def _zero_row(table: ir.Value) -> int | None:
    """The row of zeros of a table, if there is exactly one."""
    if table.const_value is None:
        return None
    rows = table.const_value.numpy()
    zero = np.flatnonzero(~rows.any(axis=1))
    # Too few rows: a zero row among two says nothing.
    return int(zero[0]) if len(zero) == 1 and len(rows) > 2 else None


def stamp_padding_rows(model: ir.Model, rows: dict[str, int]) -> None:
    """Store the rows with the graph (in its ``meta``, which is not written to files)."""
    model.graph.meta.setdefault(_META, rows)


def padding_rows(model: ir.Model) -> dict[str, int]:
    """Embedding table to padding row, as stored by :func:`stamp_padding_rows`."""
    found = model.graph.meta.get(_META, {})
    return dict(found) if isinstance(found, dict) else {}
