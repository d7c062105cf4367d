"""Clamps before a function with an infinite slope, so that a bound passes no gradient, as in torch.

    Relu(x)              becomes    Where(x <= 0, 0, x)
    Max(x, c)            becomes    Where(x <= c, c, x) for a number c; Min likewise
    Clip(x, low, high)   becomes    Where(u >= high, high, u) with u = Where(x <= low, low, x)

In `sqrt(clamp(x, min=0))`, the gradient of the root is infinite at the bound. A product with the
mask of the clamp would be ``0 * inf``, and one such element would make every step overflow; Where
selects. The gradient is 0 also where x is exactly a bound, see the rule of Clip.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import is_standard, scalar
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["clamps_by_selection", "has_steep_reader"]

_STEEP = ("Acos", "Acosh", "Asin", "Atanh", "Log", "Reciprocal", "Sqrt")
_PASSING = ("Cast", "Clip", "Max", "Min")  # a clamp may be two nodes


@rewrites("Clip", "Max", "Min", "Relu", what="a bound before an infinite slope has no gradient")
def clamps_by_selection(site: Site) -> list[ir.Value | None] | None:
    """Rewrite the clamps of a model that is not differentiated yet, in place."""
    if not has_steep_reader(site.node.outputs[0]):
        return None
    x, kind = site.input(0), site.node.op_type
    if kind == "Clip":
        for index, beyond in ((1, "LessOrEqual"), (2, "GreaterOrEqual")):
            if (bound := site.optional(index)) is not None:
                x = site.op("Where", site.op(beyond, x, bound), bound, x)
        return None if x is site.input(0) else [x]
    bound = site.const(0.0, x.dtype) if kind == "Relu" else _number(site)
    if bound is None:
        return None
    if x is bound:  # Max(0, x)
        x = site.input(1)
    reached = site.op("GreaterOrEqual" if kind == "Min" else "LessOrEqual", x, bound)
    return [site.op("Where", reached, bound, x)]


def _number(site: Site) -> ir.Value | None:
    """The bound of a Max or Min of two values one of which is a number."""
    if len(site.node.inputs) != 2:
        return None
    return next((value for value in site.node.inputs if scalar(value) is not None), None)


def has_steep_reader(value: ir.Value) -> bool:
    """Whether a function whose slope is infinite somewhere reads a value."""
    return any(_steep(node, index) for node, index in value.uses())


def _steep(node: ir.Node, index: int) -> bool:
    if is_standard(node, *_PASSING) or (is_standard(node, "Where") and index):
        return has_steep_reader(node.outputs[0])
    if is_standard(node, "Div"):
        return index == 1
    if is_standard(node, "Pow"):
        exponent = scalar(node.inputs[1])
        return index == 0 and (exponent is None or exponent < 1)
    return is_standard(node, *_STEEP)
