"""Fuse ``x clip(x + 3, 0, 6) / 6`` to HardSwish, without the first factor to HardSigmoid."""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from ortboost.graph.patterns import Op, Pattern, match
from ortboost.graph.query import producer_of
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["count_hardswishes", "fuse_hardswish"]

_OPSET: Final = 14  # the first with HardSwish
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # ONNX Runtime has no kernel for others

_CLIPPED: Final = Op("Clip", Op("Add", "x", 3.0, alone=True), 0.0, 6.0, alone=True)


def _sixth(pattern: Pattern, *, alone: bool = False) -> tuple[Op, Op]:
    return Op("Div", pattern, 6.0, alone=alone), Op("Mul", pattern, 1 / 6, alone=alone)


_HARD: Final = (_sixth(_CLIPPED, alone=True), Op("HardSigmoid", "x", name="sigmoid", alone=True))
_FUSED: Final[dict[str, Pattern]] = {
    "HardSwish": (_sixth(Op("Mul", "x", _CLIPPED, alone=True)), Op("Mul", "x", _HARD)),
    "HardSigmoid": _sixth(_CLIPPED),  # also inside a HardSwish, into which it is fused later
}


@rewrites("Mul", "Div")
def fuse_hardswish(site: Site) -> list[ir.Value | None] | None:
    """Fuse, in place, in the main graph. Below opset 14, which lacks HardSwish, nothing is done."""
    for op in _FUSED if site.opset >= _OPSET else ():
        x = _argument(site.node.outputs[0], op)
        if x is not None:
            site.note = f"one {op}"
            settings = {} if op == "HardSwish" else {"alpha": 1 / 6, "beta": 0.5}
            return [site.op(op, x, shape=x.shape, **settings)]
    return None


def count_hardswishes(model: ir.Model) -> int:
    """Count the HardSwishes written as several nodes."""
    return sum(_argument(node.outputs[0], "HardSwish") is not None for node in model.graph)


def _argument(value: ir.Value, op: str) -> ir.Value | None:
    """The argument of an operator that is written as several nodes."""
    found = match(value, _FUSED[op])
    # A scalar with constants of shape [1] would get a dimension.
    if found is None or found["x"].dtype not in _FLOATS or not found["x"].shape:
        return None
    sigmoid = producer_of(found.get("sigmoid"))
    return found["x"] if sigmoid is None or _is_hard(sigmoid) else None


def _is_hard(sigmoid: ir.Node) -> bool:
    """Whether a HardSigmoid has the slope of HardSwish."""
    alpha, beta = (sigmoid.attributes.get_float(*d) for d in (("alpha", 0.2), ("beta", 0.5)))
    return math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5
