"""Fuse ``x clip(x + 3, 0, 6) / 6`` to HardSwish, without the first factor to HardSigmoid."""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.patterns import Op, Pattern, match
from ortboost.graph.query import producer_of
from ortboost.graph.rewriting import Site, rewrite_nodes

__all__ = ["fuse_hardswish"]

_OPSET: Final = 14  # the first with HardSwish
_FLOATS: Final = (ir.DataType.FLOAT, ir.DataType.FLOAT16)  # ONNX Runtime has no kernel for others

_CLIPPED: Final = Op("Clip", Op("Add", "x", 3.0, alone=True), 0.0, 6.0, alone=True)


def _sixth(pattern: Pattern, *, alone: bool = False) -> tuple[Op, Op]:
    return Op("Div", pattern, 6.0, alone=alone), Op("Mul", pattern, 1 / 6, alone=alone)


_SIGMOID: Final = _sixth(_CLIPPED)
_SWISH: Final[Pattern] = (
    _sixth(Op("Mul", "x", _CLIPPED, alone=True)),
    Op(
        "Mul",
        "x",
        (_sixth(_CLIPPED, alone=True), Op("HardSigmoid", "x", name="sigmoid", alone=True)),
    ),
)


def fuse_hardswish(model: ir.Model) -> Report:
    """Fuse, in place, in the main graph. Below opset 14, which lacks HardSwish, nothing is done."""
    if model.opset_imports.get("", 0) < _OPSET:
        return Report("fuse_hardswish")
    # HardSwish first: the quotient within it would be a HardSigmoid.
    report = rewrite_nodes(model, "fuse_hardswish", {"Mul": _swish, "Div": _swish})
    rest = rewrite_nodes(model, "fuse_hardswish", {"Mul": _sigmoid, "Div": _sigmoid})
    report.changed.update(rest.changed)
    return report


def _swish(site: Site) -> list[ir.Value | None] | None:
    found = match(site.node.outputs[0], _SWISH)
    if found is None or not _is_float(found["x"]):
        return None
    sigmoid = producer_of(found.get("sigmoid"))
    if sigmoid is not None:
        alpha, beta = (sigmoid.attributes.get_float(*d) for d in (("alpha", 0.2), ("beta", 0.5)))
        if not math.isclose(alpha, 1 / 6, rel_tol=1e-6) or beta != 0.5:
            return None
    site.note = "one HardSwish"
    return [site.op("HardSwish", found["x"], shape=found["x"].shape)]


def _sigmoid(site: Site) -> list[ir.Value | None] | None:
    found = match(site.node.outputs[0], _SIGMOID)
    if found is None or not _is_float(found["x"]):
        return None
    site.note = "one HardSigmoid"
    return [site.op("HardSigmoid", found["x"], shape=found["x"].shape, alpha=1 / 6, beta=0.5)]


def _is_float(x: ir.Value) -> bool:
    """Whether the operators take it. A scalar with constants of shape [1] would get a dimension."""
    return x.dtype in _FLOATS and bool(x.shape)
