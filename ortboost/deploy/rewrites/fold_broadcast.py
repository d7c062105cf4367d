"""Store operands that are the same number, or the same row, everywhere.

``Add(scores, mask)`` where the mask is 0 for every length becomes ``Add(scores, 0)``, which
:mod:`~ortboost.deploy.rewrites.drop_noops` drops; ``Add(words, Gather(types, zeros))``, the sum
for a text without token types, becomes ``Add(words, types[0])``. The result must have the shape of
another operand, so that it does not need the shape of the one that is stored.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.query import constant, producer_of
from ortboost.graph.rewriting import Site, rewrite_nodes
from ortboost.graph.shapes.dimensions import same_shape
from ortboost.graph.uniform import UniformValues

__all__ = ["fold_broadcast"]

_ELEMENTWISE: Final = ("Add", "And", "Div", "Max", "Min", "Mul", "Or", "Sub", "Sum", "Where")


def fold_broadcast(model: ir.Model) -> Report:
    """Store operands of elementwise operators that a small constant can stand for, in place."""
    uniform = UniformValues(model.opset_imports.get("", 0))

    def rule(site: Site) -> list[ir.Value] | None:
        node = site.node
        found = [_smaller(value, uniform) for value in node.inputs]
        left = [v for v, array in zip(node.inputs, found, strict=True) if array is None]
        if len(left) == len(found) or not any(same_shape(v, node.outputs[0]) for v in left):
            return None
        for index, (value, array) in enumerate(zip(node.inputs, found, strict=True)):
            if array is not None and value is not None:
                node.replace_input_with(index, site.const(array, value.dtype))
        return list(node.outputs)

    rules = dict.fromkeys(_ELEMENTWISE, rule)
    what = "an operand is the same everywhere"
    return rewrite_nodes(model, "fold_broadcast", rules, what, subgraphs=True)


def _smaller(value: ir.Value | None, uniform: UniformValues) -> NDArray[Any] | None:
    """A constant that a computed value repeats."""
    if value is None or value.dtype is None or producer_of(value) is None:
        return None
    number = uniform.number(value)
    if number is not None:
        return number
    gather = producer_of(value, "Gather")
    if gather is None or gather.attributes.get_int("axis", 0) != 0:
        return None
    row = uniform.number(gather.inputs[1])
    table = None if row is None else constant(gather.inputs[0])
    if table is None or row is None or not -len(table) <= row < len(table):
        return None
    return np.asarray(table[int(row)])
