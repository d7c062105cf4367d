r"""Sign and Floor where they are a factor of their own argument, piecewise constant.

Their derivative is zero almost everywhere. Elsewhere they are refused: they may be the forward pass
of a straight-through estimator whose ``torch.autograd.Function`` an exporter did not write. But in

    sign(x) f(|x|)           a signed root, power or logarithm; ``lp_pool``
    x - sign(x) c            ``softshrink``
    x - floor(x / c) c       ``remainder``; c may be left out

nothing else can be meant. The gradient is stopped before the operator.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.refused import REFUSED
from ortboost.graph.query import constant, is_standard, producer_of
from ortboost.graph.reach import STOP_MARK
from ortboost.graph.rewriting import Refusal, Site

__all__: list[str] = []

_MAPS = ("Clip", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Relu", "Sqrt", "Tanh")
_ARITHMETIC = ("Add", "Div", "Mul", "Pow", "Sub")


@decomposes("Sign")
def _sign(site: Site) -> list[ir.Value | None]:
    """As a constant, in ``sign(x) * f(|x|)`` and ``x - sign(x) * c``; refused elsewhere."""
    x, sign = site.input(0), site.node.outputs[0]
    if sign.is_graph_output():
        raise Refusal(REFUSED["Sign"])
    # Every use has to be of a known form: one other use might be an estimator.
    for usage in sign.uses():
        other = _other(usage.node, usage.idx, "Mul")
        if other is None or not (
            _is_function_of_abs(other, x)
            or (constant(other) is not None and _only_subtracted(usage.node.outputs[0], x))
        ):
            raise Refusal(REFUSED["Sign"])
    return [_stopped(site)]


@decomposes("Floor")
def _floor(site: Site) -> list[ir.Value | None]:
    """As a constant, in ``x - floor(x / c) * c`` and ``x - floor(x)``; refused elsewhere."""
    argument, floor = site.input(0), site.node.outputs[0]
    quotient = producer_of(argument, "Div")
    # x - floor(x), or each use as x - floor(x / c) c with the divisor of the quotient.
    if not _only_subtracted(floor, argument):
        if quotient is None:
            raise Refusal(REFUSED["Floor"])
        x, divisor = quotient.inputs
        for usage in floor.uses():
            factor = _other(usage.node, usage.idx, "Mul")
            if not _same(factor, divisor) or not _only_subtracted(usage.node.outputs[0], x):
                raise Refusal(REFUSED["Floor"])
    return [_stopped(site)]


def _stopped(site: Site) -> ir.Value:
    x = site.op("Identity", site.input(0), shape=site.input(0).shape)
    site.builder.nodes[-1].metadata_props[STOP_MARK] = "true"
    return site.op(site.node.op_type, x, shape=site.input(0).shape)


def _other(node: ir.Node, index: int, op_type: str) -> ir.Value | None:
    """The other operand of a node with two, if it is of this operator."""
    return node.inputs[1 - index] if is_standard(node, op_type) else None


def _only_subtracted(value: ir.Value, x: ir.Value | None) -> bool:
    """Whether ``x - value`` is the only use, and is not subtracted from or added to `x` again.

    ``x - (x - q)`` is how a straight-through estimator looks without its ``detach``.
    """
    for usage in value.uses():
        if usage.idx != 1 or x is None or _other(usage.node, 1, "Sub") is not x:
            return False
        for further in usage.node.outputs[0].uses():
            if is_standard(further.node, "Add", "Sub") and x in further.node.inputs:
                return False
    return bool(value.uses()) and not value.is_graph_output()


def _is_function_of_abs(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is computed elementwise from ``Abs(x)`` and constants."""
    while (node := producer_of(value)) is not None:
        if is_standard(node, "Abs"):
            return node.inputs[0] is x
        if is_standard(node, *_ARITHMETIC):
            inner = [v for v in node.inputs if not _is_constant(v)]
            value = inner[0] if len(inner) == 1 else None
        else:
            value = node.inputs[0] if is_standard(node, *_MAPS) else None
    return False


def _is_constant(value: ir.Value | None) -> bool:
    cast = producer_of(value, "CastLike")  # of torch's dynamo exporter
    return constant(value if cast is None else cast.inputs[0]) is not None


def _same(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether two values are the same, or equal constants."""
    if one is other:
        return one is not None
    a, b = constant(one), constant(other)
    return a is not None and b is not None and bool(np.array_equal(a, b))
