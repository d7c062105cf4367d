"""Write Bernoulli in other operators, because onnxruntime gets it wrong.

- It draws 1 with the chance `1 - p` instead of `p`.
- It merges Bernoullis that read the same `p`, in sessions (``CommonSubexpressionElimination``) and
  in its gradient builder: two masks of a stochastic depth would be one.

Neither happens to the definition of the operator in the standard:

    y = RandomUniformLike(p) < p

Source: measured with onnxruntime 1.19.2 and 1.31.1.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import input_at, is_standard, label

__all__ = ["guard_draws"]

_FLOAT = ir.DataType.FLOAT


def guard_draws(model: ir.Model) -> Report:
    """Replace each Bernoulli, in place.

    Args:
        model: The forward graph, its types inferred.
    """
    report = Report("guard_draws")
    builder = Builder(model.graph, "ortboost/draw")
    for node in list(model.graph.all_nodes()):
        chance = input_at(node, 0) if is_standard(node, "Bernoulli") else None
        if chance is None:
            continue
        report.changed[label(node)] = "written as a comparison: onnxruntime inverts its chance"
        replace_node(node, [_drawn(node, chance, builder)], builder)
    return report


def _drawn(node: ir.Node, chance: ir.Value, b: Builder) -> ir.Value:
    dtype = ir.DataType(node.attributes.get_int("dtype", chance.dtype or _FLOAT))
    if chance.dtype != ir.DataType.DOUBLE:  # RandomUniformLike has kernels for these two types
        chance = b.cast(chance, _FLOAT)
    seeds: dict[str, Any] = {k: v for k, v in node.attributes.items() if k == "seed"}
    uniform = b.op("RandomUniformLike", chance, shape=chance.shape, **seeds)
    on = b.op("Less", uniform, chance, dtype=ir.DataType.BOOL, shape=chance.shape)
    return b.op("Cast", on, to=int(dtype), dtype=dtype, shape=chance.shape)
