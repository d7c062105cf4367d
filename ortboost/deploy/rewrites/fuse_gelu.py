"""Fuse a Gelu that exporters write as five nodes.

    gelu(x) = x (1 + erf(x / sqrt 2)) / 2

From opset 20 on it is one standard operator. Below that, for ONNX Runtime, the factors are put in
the one order that the runtime fuses itself (together with a preceding bias): ``(x (1 + erf)) / 2``.
The dynamo exporter of PyTorch writes ``x ((1 + erf) / 2)``, which the runtime does not recognize.
"""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.patterns import Op, Pattern, match
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["count_gelus", "fuse_gelu", "is_gelu"]

_OPSET: Final = 20  # the first with Gelu
_ROOT: Final = math.sqrt(2)


def _halved(pattern: Pattern, *, alone: bool = False) -> Pattern:
    return Op("Mul", pattern, 0.5, alone=alone), Op("Div", pattern, 2.0, alone=alone)


def _one_plus_erf(inside: Pattern, op_type: str = "Add") -> Op:
    return Op(op_type, 1.0, Op("Erf", inside, alone=True), alone=True)


_INSIDE: Final = Op("Div", "x", _ROOT), Op("Mul", "x", 1 / _ROOT)
# The standard defines Gelu with a Sum.
_SHIFTED: Final = _one_plus_erf(_INSIDE), _one_plus_erf(_INSIDE, "Sum")
_GELU: Final[Pattern] = (
    _halved(Op("Mul", "x", _SHIFTED, alone=True)),
    Op("Mul", "x", _halved(_SHIFTED, alone=True)),
    Op("Mul", _halved("x", alone=True), _SHIFTED),
)
# GeluFusion of onnxruntime matches only x / sqrt 2, and these two orders of the factors.
_DIVIDED: Final = _one_plus_erf(Op("Div", "x", _ROOT))
_FUSED_BY_ORT: Final[Pattern] = (
    Op("Mul", Op("Mul", "x", _DIVIDED), 0.5),
    Op("Mul", _halved("x"), _DIVIDED),
)


def fuse_gelu(model: ir.Model, *, order: bool = False) -> Report:
    """Fuse, in place, in the main graph; or with ``order``, below opset 20, put it in order."""

    def rule(site: Site) -> list[ir.Value | None] | None:
        out = site.node.outputs[0]
        found = match(out, _GELU)
        if found is None:
            return None
        x = found["x"]
        if not x.shape:  # with constants of shape [1] a scalar gets a dimension
            return None
        if site.opset >= _OPSET:
            site.note = "one Gelu"
            return [site.op("Gelu", x, shape=x.shape, approximate="none")]
        if not order:
            raise Refusal(f"Gelu is an operator only from opset {_OPSET} on")
        if match(out, _FUSED_BY_ORT) is not None:
            raise Refusal("ONNX Runtime fuses it in this form")
        site.note = "in the order that ONNX Runtime fuses"
        inner = site.op("Div", x, site.const(_ROOT), shape=x.shape)
        shifted = site.op(
            "Add", site.op("Erf", inner, shape=x.shape), site.const(1.0), shape=x.shape
        )
        product = site.op("Mul", x, shifted, shape=x.shape)
        return [site.op("Mul", product, site.const(0.5), shape=x.shape)]

    return rewrite_nodes(model, "fuse_gelu", {"Mul": rule, "Div": rule})


def count_gelus(model: ir.Model) -> int:
    """Count the Gelus written as several nodes."""
    return sum(is_gelu(node.outputs[0]) for node in model.graph)


def is_gelu(value: ir.Value) -> bool:
    """Whether a value is a Gelu written as several nodes."""
    return match(value, _GELU) is not None
