"""Large gradients are unscaled where they are used, and checked while still scaled.

A step computes `g = u G` from a scaled gradient `G`, checks whether `0 * 16 sum(g^2)` is zero, and
passes `g` to the update. That writes and reads all of `g`. Here the check reads `G` once: `u^2
sum(G^2)` is equal up to rounding, and if twice that is finite, so is the original expression. Only
otherwise, which is rare, the original expression is evaluated. The update multiplies by `u` itself,
as one more operator of a chain that stays in the cache (:mod:`ortboost.runtime.cpu.chunks`).
Results and decisions are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder, replace_node
from ortboost.graph.patterns import Op, matches
from ortboost.graph.query import input_at, producer_of, scalar, static_shape

__all__ = ["late_unscaling"]

_LARGE = 64 * 1024  # elements; for fewer, an If costs more than it saves
_PRODUCT = Op("Mul", "gradient", "scale", name="product")
_CHECKED = Op("Mul", Op("Mul", Op("ReduceSumSquare", _PRODUCT, name="total"), "factor"), 0.0)


@dataclass(frozen=True)
class _Check:
    """`zero = 0 * factor * sum(product^2)`, where `product = gradient * scale`."""

    zero: ir.Node
    factor: float
    product: ir.Node
    gradient: ir.Value
    scale: ir.Value


def late_unscaling(model: ir.Model) -> bool:
    """Make the check and the update read large scaled gradients; True if there was one."""
    found = [check for node in model.graph if (check := _check(node)) is not None]
    builder = Builder(model.graph, "ortboost/unscale")
    for check in found:
        _check_scaled(check, builder)
        _unscale_in_branches(check, builder)
    return bool(found)


def _check(node: ir.Node) -> _Check | None:
    """Match the check of a large gradient that otherwise only branches read."""
    scaled = (f for f in matches(node.outputs[0], _CHECKED) if static_shape(f["scale"]) == ())
    if (found := next(scaled, None)) is None:
        return None
    total, product = producer_of(found["total"]), producer_of(found["product"])
    factor, gradient = scalar(found["factor"]), found["gradient"]
    if total is None or product is None or factor is None or input_at(total, 1) is not None:
        return None
    shape = static_shape(gradient)
    if gradient.dtype != ir.DataType.FLOAT or shape is None or math.prod(shape) < _LARGE:
        return None
    # Only the check may read the product in the main graph: elsewhere it is computed per branch.
    outside = [use.node for use in product.outputs[0].uses() if use.node.graph is node.graph]
    if outside != [total] or product.outputs[0].is_graph_output():
        return None
    return _Check(node, factor, product, gradient, found["scale"])


def _check_scaled(check: _Check, builder: Builder) -> None:
    """Replace the check: zero if `2 factor u^2 sum(G^2)` is finite, else the original one."""
    b, zero = builder, builder.const(0.0)
    # The branches of an If: the original expression, and the 0 that it gives otherwise.
    exact = b.op("Mul", check.gradient, check.scale, shape=check.gradient.shape)
    exact = b.op("ReduceSumSquare", exact, shape=(), keepdims=0)
    exact = b.op("Mul", exact, b.const(np.float32(check.factor)), shape=())
    exact = b.op("Mul", exact, zero, shape=())
    slow = ir.Graph([], [exact], nodes=b.take(), name=f"{exact.name}/exact")
    passed = b.op("Identity", zero, shape=())
    fast = ir.Graph([], [passed], nodes=b.take(), name=f"{passed.name}/passed")
    # Twice the value, so that rounding in another order cannot hide an inf of the exact one.
    total = b.op("ReduceSumSquare", check.gradient, shape=(), keepdims=0)
    square = b.op("Mul", check.scale, check.scale, shape=())
    bound = b.op("Mul", total, square, shape=())
    bound = b.op("Mul", bound, b.const(np.float32(2 * check.factor)), shape=())
    nothing = b.op("Mul", bound, zero, shape=())
    is_zero = b.op("Equal", nothing, zero, dtype=ir.DataType.BOOL, shape=())
    single = ir.DataType.FLOAT
    chosen = b.op("If", is_zero, dtype=single, shape=(), then_branch=fast, else_branch=slow)
    replace_node(check.zero, [chosen], b)


def _unscale_in_branches(check: _Check, builder: Builder) -> None:
    """Multiply in each branch that reads the product."""
    product = check.product.outputs[0]
    made: dict[int, ir.Value] = {}  # one product per branch, which is the first thing it computes
    for use in list(product.uses()):
        branch = use.node.graph
        if not isinstance(branch, ir.Graph) or branch is check.product.graph:
            continue
        if id(branch) not in made:
            made[id(branch)] = builder.op(
                "Mul", check.gradient, check.scale, shape=check.gradient.shape
            )
            branch.insert_before(branch[0], builder.take())
        use.node.replace_input_with(use.idx, made[id(branch)])
