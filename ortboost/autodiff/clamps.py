"""Clamps before a function with an infinite slope, so that a bound passes no gradient, as in torch.

    Relu(x)              becomes    Where(x <= 0, 0, x)
    Max(x, c)            becomes    Where(x <= c, c, x) for a stored c; Min likewise
    Clip(x, low, high)   becomes    Where(u >= high, high, u) with u = Where(x <= low, low, x)

In `sqrt(clamp(x, min=0))`, the gradient of the root is infinite at the bound. A product with the
mask of the clamp would be ``0 * inf``, and one such element would make every step overflow; Where
selects. The gradient is 0 also where x is exactly a bound, see the rule of Clip.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import FLOAT_TYPES, constant, is_standard, scalar, source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["clamps_by_selection", "has_steep_reader"]

_STEEP = {"Acos": 1, "Acosh": 1, "Asin": 1, "Atanh": 1, "Log": 0, "Reciprocal": 0, "Sqrt": 0}
"""Functions to the absolute value at which their slope is infinite."""
_PASSING = frozenset(
    "Abs Cast Clip Concat Expand Flatten Gather Max Min Mul Neg Reshape Slice Split Squeeze "
    "Transpose Unsqueeze".split()
)
"""Operators of which a bound comes out as it is, or where 0 stays 0; a clamp may be two nodes."""


@rewrites("Clip", "Max", "Min", "Relu", what="a bound with an infinite slope has no gradient")
def clamps_by_selection(site: Site) -> list[ir.Value | None] | None:
    """Rewrite the clamps of a model that is not decomposed yet, in place."""
    output = site.node.outputs[0]
    # Integers have no gradient, and often no kernel of Where.
    if site.dtype not in FLOAT_TYPES or not has_steep_reader(output):
        return None
    bounds = _bounds(site)
    if not any(has_steep_reader(output, _number(bound)) for _, bound in bounds):
        return None
    x = site.input(0)
    if x is bounds[0][1]:  # Max(0, x)
        x = site.input(1)
    for beyond, bound in bounds:
        x = site.op("Where", site.op(beyond, x, bound), bound, x)
    return [x]


def _bounds(site: Site) -> list[tuple[str, ir.Value]]:
    """The bounds, with the operator that says which values are replaced by them."""
    kind, inputs = site.node.op_type, site.node.inputs
    if kind == "Relu":
        return [("LessOrEqual", site.const(0.0, site.input(0).dtype))]
    if kind == "Clip":
        bounds = zip(("LessOrEqual", "GreaterOrEqual"), inputs[1:], strict=False)
        return [(beyond, bound) for beyond, bound in bounds if bound is not None]
    stored = [v for v in inputs if v is not None and _number(v) is not None]
    if len(inputs) != 2 or len(stored) != 1:
        return []
    return [("GreaterOrEqual" if kind == "Min" else "LessOrEqual", stored[0])]


def _number(value: ir.Value) -> NDArray[Any] | None:
    """A stored bound; the dynamo exporter converts it to the type of the tensor."""
    return constant(source_before(value, "Cast", "CastLike"))


def has_steep_reader(value: ir.Value, at: NDArray[Any] | None = None) -> bool:
    """Whether a function with an infinite slope, at these values if given, reads a value."""
    waiting = [(value, False)]
    seen = set(waiting)
    while waiting:  # no recursion: a recurrent layer with a mask is a long chain of Where
        passed, moved = waiting.pop()
        for node, index in passed.uses():
            if _passes(node, index):
                after = moved or _moves_one(node, index)
                reached = [(v, after) for v in node.outputs if (v, after) not in seen]
                waiting += reached
                seen.update(reached)
            elif _steep(node, index, at) and not (moved and _STEEP.get(node.op_type)):
                return True
    return False


def _passes(node: ir.Node, index: int) -> bool:
    if is_standard(node, "Div", "Where"):
        return index == 0 if node.op_type == "Div" else index > 0
    return is_standard(node, *_PASSING)


def _moves_one(node: ir.Node, index: int) -> bool:
    """Whether a stored factor moves 1 away; 0 it leaves in place. A mask of 1 and 0 does not."""
    factor = constant(node.inputs[1 - index]) if is_standard(node, "Div", "Mul") else None
    return factor is not None and not (abs(factor) == 1).any()


def _steep(node: ir.Node, index: int, at: NDArray[Any] | None) -> bool:
    place = _STEEP.get(node.op_type, 0)
    if not is_standard(node) or (at is not None and not (abs(at) == place).any()):
        return False
    if node.op_type == "Div":
        return index == 1
    if node.op_type == "Pow":
        exponent = scalar(node.inputs[1])
        return index == 0 and (exponent is None or exponent < 1)
    return node.op_type in _STEEP
