"""Swish from opset 25 on; the oracle is the reference implementation of onnx."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.graph.normalize import normalize
from ortboost.graph.query import count_operators
from ortboost.graph.write_out_swish import write_out_swish
from tests.support import text_model


def swish(opset: int, settings: str = "", kind: str = "float") -> ir.Model:
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net ({kind}[N,3] x) => ({kind}[N,3] y) {{ y = Swish{settings}(x) }}"""
    )


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize(("settings", "operators"), [("", 2), ("<alpha=0.5>", 3)])
def test_it_has_the_values_of_the_standard(settings, operators, kind):
    x = np.random.default_rng(0).normal(size=(5, 3)).astype({"float": "f4", "float16": "f2"}[kind])
    model = swish(25, settings, kind)
    wanted = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    report = write_out_swish(model)
    assert list(report.changed.values()) == ["Swish: x sigmoid(alpha x)"]
    assert sum(count_operators(model).values()) == operators
    found = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-3 if kind == "float16" else 1e-6)
    assert not write_out_swish(model).modified


def test_up_to_opset_24_it_stays():
    model = swish(24)
    assert not write_out_swish(model).modified
    assert count_operators(model) == {"Swish": 1}


def test_it_is_part_of_the_normal_form():
    model = swish(25)
    reports = normalize(model, opsets=range(18, 27), ir_version=10)
    assert "write_out_swish" in [report.rewrite for report in reports]
    assert set(count_operators(model)) == {"Mul", "Sigmoid"}
