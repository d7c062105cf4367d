"""Reductions over no axes; the oracle is the reference implementation of onnx."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.graph.normal_form.empty_reductions import empty_reductions
from ortboost.graph.normalize import normalize
from tests.support import run, text_model

OPS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()


def reduction(op: str, axes: str = "", noop: int = 1) -> ir.Model:
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,3] x, int64[k] b) => (float y) <int64[0] a = {{}}, int64[1] c = {{1}}> {{
        r = {op}<noop_with_empty_axes = {noop}>(x{axes}) y = ReduceMean<keepdims = 0>(r) }}"""
    )


@pytest.mark.parametrize("axes", ["", ", a"])
@pytest.mark.parametrize("op", OPS)
def test_values_are_those_of_the_reference(op, axes):
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    feeds = {"x": abs(x) if op == "ReduceLogSum" else x, "b": np.zeros(1, np.int64)}
    model = reduction(op, axes)
    (wanted,) = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    assert normalize(model, opsets=range(18, 22), ir_version=10)
    np.testing.assert_allclose(run(model, feeds)["y"], wanted, rtol=1e-6)
    assert not empty_reductions(model).modified


@pytest.mark.parametrize(("axes", "noop"), [("", 0), (", a", 0), (", b", 1), (", c", 1)])
def test_other_reductions_are_left_alone(axes, noop):
    assert not empty_reductions(reduction("ReduceSum", axes, noop)).modified
