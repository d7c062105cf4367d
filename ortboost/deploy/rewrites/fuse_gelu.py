"""Fuse the Gelu that exporters write with five nodes.

    gelu(x) = x (1 + erf(x / sqrt 2)) / 2

From opset 20 on it is one standard operator. Below that, for ONNX Runtime, the factors are put in
the one order that the runtime fuses itself (with the bias before it): ``(x (1 + erf)) / 2``. The
dynamo exporter of PyTorch writes ``x ((1 + erf) / 2)``, which the runtime does not recognize.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.query import is_standard, is_unused, label, producer_of, scalar, sole_consumer
from ortboost.graph.rewriting import replace_value

__all__ = ["fuse_gelu", "gelus"]

_CLOSE = 1e-5
_OPSET = 20


def fuse_gelu(model: ir.Model, *, order: bool = False) -> Report:
    """Fuse or reorder, in place, in the main graph.

    Args:
        model: The model.
        order: Below opset 20, put the factors in the order that ONNX Runtime fuses.
    """
    report = Report("fuse_gelu")
    builder = Builder(model.graph, "ortboost/gelu")
    whole = model.opset_imports.get("", 0) >= _OPSET
    for erf in [node for node in model.graph if is_standard(node, "Erf")]:
        match = _match(erf)  # now: its x may be the result of the Gelu before
        if match is None:
            continue
        add, factors, x = match
        last = factors[-1]
        out, name = last.outputs[0], label(last)
        if whole:
            made = builder.op("Gelu", x, dtype=x.dtype, shape=x.shape, approximate="none")
        elif not order:
            report.kept[name] = f"Gelu is an operator from opset {_OPSET} on only"
            continue
        elif _in_order(erf, add, factors, x):
            report.kept[name] = "ONNX Runtime fuses it as it is"
            continue
        else:
            half = builder.const(np.array(0.5), x.dtype or ir.DataType.FLOAT)
            root = builder.const(np.array(math.sqrt(2)), x.dtype or ir.DataType.FLOAT)
            one = builder.const(np.array(1.0), x.dtype or ir.DataType.FLOAT)
            inner = builder.op("Div", x, root, shape=x.shape)
            shifted = builder.op("Add", builder.op("Erf", inner, shape=x.shape), one, shape=x.shape)
            made = builder.op(
                "Mul", builder.op("Mul", x, shifted, shape=x.shape), half, shape=x.shape
            )
        for new in builder.take():
            model.graph.insert_before(last, new)
        replace_value(out, made)
        inside = erf.inputs[0].producer()  # type: ignore[union-attr]
        for node in (*reversed(factors), add, erf, inside):
            if node is not None and is_unused(node):
                model.graph.remove(node, safe=True)
        report.changed[name] = "one Gelu" if whole else "in the order that ONNX Runtime fuses"
    return report


def gelus(model: ir.Model) -> list[tuple[ir.Node, ir.Node, list[ir.Node], ir.Value]]:
    """Where a Gelu is written out: the Erf, the Add of one, the two products, and x."""
    matches = ((erf, _match(erf)) for erf in model.graph if is_standard(erf, "Erf"))
    return [(erf, *match) for erf, match in matches if match is not None]


def _match(erf: ir.Node) -> tuple[ir.Node, list[ir.Node], ir.Value] | None:
    scaled = erf.inputs[0]
    inside = producer_of(scaled)
    x = None if inside is None else _scaled(inside)
    add = sole_consumer(erf.outputs[0])
    if x is None or add is None or not is_standard(add, "Add"):
        return None
    if not any(_is(value, 1.0) for value in add.inputs):
        return None
    # Two more products, with x and one half, in any order.
    first = sole_consumer(add.outputs[0])
    if first is None or not is_standard(first, "Mul", "Div"):
        return None
    other = _other(first, add.outputs[0])
    if other is None:
        return None
    if is_standard(first, "Mul") and other is not x and (split := _half_of(other, x)) is not None:
        return (add, [split, first], x)  # (x / 2) (1 + erf)
    second = sole_consumer(first.outputs[0])
    if second is None or not is_standard(second, "Mul", "Div"):
        return None
    rest = _other(second, first.outputs[0])
    if rest is None:
        return None
    if is_standard(first, "Mul") and other is x and _halves(second, rest):
        return (add, [first, second], x)  # (x (1 + erf)) / 2
    if _halves(first, other) and is_standard(second, "Mul") and rest is x:
        return (add, [first, second], x)  # x ((1 + erf) / 2)
    return None


def _scaled(node: ir.Node) -> ir.Value | None:
    """The x of ``x / sqrt 2``."""
    if is_standard(node, "Div") and _is(node.inputs[1], math.sqrt(2)):
        return node.inputs[0]
    if is_standard(node, "Mul"):
        for index in (0, 1):
            if _is(node.inputs[index], math.sqrt(0.5)):
                return node.inputs[1 - index]
    return None


def _half_of(value: ir.Value, x: ir.Value) -> ir.Node | None:
    node = value.producer()
    if node is None or sole_consumer(value) is None or not is_standard(node, "Mul", "Div"):
        return None
    other = _other(node, x)
    return node if other is not None and _halves(node, other) else None


def _halves(node: ir.Node, operand: ir.Value) -> bool:
    if is_standard(node, "Div"):
        return node.inputs[1] is operand and _is(operand, 2.0)
    return _is(operand, 0.5)


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    if len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
        return None
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _is(value: ir.Value | None, wanted: float) -> bool:
    found = scalar(value)
    if found is None or value is None or value.const_value is None:
        return False
    return value.const_value.shape.rank() <= 1 and abs(found / wanted - 1) < _CLOSE


def _in_order(erf: ir.Node, add: ir.Node, factors: list[ir.Node], x: ir.Value) -> bool:
    first, second = factors
    inside = erf.inputs[0].producer()  # type: ignore[union-attr]
    return (
        inside is not None
        and is_standard(inside, "Div")
        and _other(first, add.outputs[0]) is x
        and is_standard(second, "Mul")
        and _other(second, first.outputs[0]) is not x
    )
