"""Separate a float16 MatMul with a stored matrix from the Transpose of the batch axes before it.

onnxruntime fuses the two for ``Transpose (1, 0, 2)`` or ``(1, 2, 0)`` and the like with more axes,
and 1.31 then crashes while it opens the file on a CPU; torch's attention layers begin like this.
So:

    MatMul(Transpose_p(x), W) = Transpose_p(MatMul(x, W))     if p leaves the last axis in place
    MatMul(Transpose_p(x), W) = MatMul(Transpose_p(x), W[None])     else, and with W on the left

The second form is not fused, but takes onnxruntime twice the time of the first.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import is_read, is_standard, label, producer_of
from ortboost.graph.rewriting import replace_value

__all__ = ["part_transposes"]


def part_transposes(model: ir.Model) -> Report:
    """Separate float16 MatMul nodes from the Transpose before them, in place, in the main graph."""
    report = Report("part_transposes")
    builder = Builder(model.graph, "ortboost/part")
    for node in list(model.graph):
        if not is_standard(node, "MatMul"):
            continue
        for turned, index in zip(node.inputs, (1, 0), strict=True):
            stored = node.inputs[index]
            turn = producer_of(turned)
            if stored is None or turn is None or not is_standard(turn, "Transpose"):
                continue
            perm = list(turn.attributes.get_ints("perm", ()))
            if not _turns_batch(perm) or not _is_half_matrix(stored):
                continue
            if index == 1 and perm[-1] == len(perm) - 1:
                _behind(node, turn, perm, builder)
                report.changed[label(node)] = f"computed before '{label(turn)}'"
            else:
                _widen(model, node, index, len(perm), builder)
                report.changed[label(node)] = "its matrix has as many axes as the other input"
            break
    return report


def _turns_batch(perm: list[int]) -> bool:
    rank = len(perm)
    kept, moved = [*range(1, rank - 1), 0, rank - 1], [*range(1, rank), 0]
    return rank > 2 and perm in (kept, moved)


def _is_half_matrix(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or value.is_graph_input():
        return False
    return tensor.dtype == ir.DataType.FLOAT16 and len(tensor.shape) == 2


def _behind(node: ir.Node, turn: ir.Node, perm: list[int], builder: Builder) -> None:
    out, source, graph = node.outputs[0], turn.inputs[0], node.graph
    assert graph is not None
    assert source is not None
    shape = None
    if source.shape is not None and out.shape is not None:
        shape = ir.Shape([*source.shape[:-1], out.shape[-1]])
    product = builder.op("MatMul", source, node.inputs[1], dtype=out.dtype, shape=shape)
    made = builder.op("Transpose", product, dtype=out.dtype, shape=out.shape, perm=perm)
    product.producer().name = node.name  # type: ignore[union-attr]
    graph.insert_before(node, builder.take())
    replace_value(out, made)
    graph.remove(node, safe=True)
    if not is_read(turn.outputs[0]):
        graph.remove(turn, safe=True)


def _widen(model: ir.Model, node: ir.Node, index: int, rank: int, builder: Builder) -> None:
    stored = node.inputs[index]
    assert stored is not None
    assert stored.const_value is not None
    array = np.asarray(stored.const_value.numpy())
    name = builder.unique(f"{stored.name}/wide")
    array = array.reshape((1,) * (rank - 2) + array.shape)
    wide = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=wide, type=stored.type, shape=ir.Shape(array.shape))
    model.graph.register_initializer(value)
    node.replace_input_with(index, value)
    if not is_read(stored):
        model.graph.initializers.pop(stored.name or "", None)
