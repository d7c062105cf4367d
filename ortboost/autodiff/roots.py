"""Roots of sums of powers: standard deviations and p-norms, whose gradient is 0 where they are 0.

    y = sqrt(s)      becomes    y = Where(s = 0, sqrt(0), sqrt(Where(s = 0, 1, s)))

A standard deviation without an epsilon is 0 where a channel is constant, for example after a Relu.
There the gradient of ``torch.std`` is 0; the product of both slopes, ``inf * 0``, would skip every
step. The native engine takes this form; the rules of the portable one select in the backward pass.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import constant, is_standard, producer_of, scalar
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["roots_by_selection", "sums_powers"]

_SCALES: Final = ("Abs", "Cast", "Div", "Expand", "Relu", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that only scale or copy a sum of powers, if no other input has a gradient."""


def roots_by_selection(model: ir.Model, active: Collection[str]) -> Report:
    """Rewrite the roots of sums of powers, in place.

    Args:
        model: The graph, with shapes inferred.
        active: Names of the values that a gradient flows through.
    """

    def is_root(node: ir.Node) -> bool:
        total, *exponents = node.inputs
        for exponent in exponents:
            number = scalar(exponent)
            trained = exponent is not None and exponent.name in active
            if trained or (number is not None and not 0 < number < 1):
                return False
        return node.outputs[0].name in active and sums_powers(total, active)

    what = "its gradient is 0 where a sum of powers is 0"
    rules = {"Pow": _select, "Sqrt": _select}
    return rewrite_nodes(model, "roots_by_selection", rules, what, only=is_root)


def _select(site: Site) -> list[ir.Value | None]:
    total, node = site.input(0), site.node
    none = site.op("Equal", total, site.const(0.0, total.dtype))
    positive = site.op("Where", none, site.const(1.0, total.dtype), total)
    root = site.op(node.op_type, positive, *node.inputs[1:])
    # 0, but for an exponent that is not known.
    of_none = site.op(node.op_type, site.const(0.0, total.dtype), *node.inputs[1:])
    return [site.op("Where", none, of_none, root)]


def sums_powers(value: ir.Value | None, active: Collection[str]) -> bool:
    """Whether a value is a sum or mean of even powers, or powers of absolute values, or a product.

    Where such a sum is 0, all its terms and their slopes are 0. Factors without a gradient do not
    matter.
    """
    node = value.producer() if value is not None else None
    if node is None or not is_standard(node):
        return False
    if node.op_type == "ReduceSumSquare":
        return True
    if node.op_type in ("AveragePool", "ReduceMean", "ReduceSum"):
        return _is_power(node.inputs[0])
    places = [i for i, v in enumerate(node.inputs) if v is not None and v.name in active]
    if node.op_type == "Mul" or (node.op_type in _SCALES and places == [0]):
        return bool(places) and all(sums_powers(node.inputs[i], active) for i in places)
    return False


def _is_power(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is None or not is_standard(node):
        return False
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    exponent = constant(node.inputs[1]) if node.op_type == "Pow" else None
    if exponent is None or not np.all(exponent > 1):
        return False
    return producer_of(node.inputs[0], "Abs", "Relu") is not None or bool(np.all(exponent % 2 == 0))
