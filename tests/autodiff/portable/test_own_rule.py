"""Rules that return something else than one gradient for each input are named."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.autodiff.portable import registry
from ortboost.core.errors import ModelError, UsageError
from ortboost.graph.rewriting import Refusal
from tests.autodiff.oracle import graph
from tests.support import run

DOUBLE = ir.DataType.DOUBLE


def gradient(rule):
    """The gradient graph of a Round with this rule."""
    model = graph("""g (float[N,5] w) => (float loss) {
        [step] y = Round(w) loss = ReduceSum<keepdims = 0>(y) }""")
    registry.register_gradient("Round", replace=True)(rule)
    try:
        return differentiate(model, "loss", ["w"], "portable")
    finally:
        registry._OWN.clear()


def refuse(b):
    raise Refusal("it is too round")


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (lambda b: b.gradient(), "returns a Value, not a list"),
        (lambda b: [b.gradient()] * 2, "returns 2 gradients for 1 input"),
        (lambda b: [], "returns 0 gradients for 1 input"),
        (lambda b: [1.0], "returns a float, not a tensor, for input 0"),
        (lambda b: [b.cast(b.gradient(), DOUBLE)], "DOUBLE for input 0, which is FLOAT"),
        (lambda b: [b.op("ReduceSum", b.gradient())], r"\[1, 1\] for input 0 of shape \[N, 5\]"),
        (lambda b: [b.op("ReduceMean", b.gradient(), b.ints(1))], r"shape \[N, 1\]"),
        (lambda b: [b.op("NoSuchOp", b.gradient())], "wrong NoSuchOp: opset 18 has no NoSuchOp"),
        (lambda b: [1 / 0], "fails: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_rule_is_named(rule, what):
    with pytest.raises(UsageError, match=f"The gradient rule for Round .*{what}") as error:
        gradient(rule)
    assert error.value.where == f"node 'step', rule {__name__}.<lambda>"
    assert error.value.fix


def test_a_rule_that_stops_all_gradients_of_a_parameter_is_named():
    with pytest.raises(ModelError, match="no gradient") as error:
        gradient(lambda b: [None])
    assert "the rule registered for Round" in error.value.fix


def test_a_rule_may_refuse_a_form_and_use_unknown_shapes():
    with pytest.raises(ModelError, match="it is too round"):
        gradient(refuse)
    found = gradient(lambda b: [b.op("Reshape", b.gradient(), b.shape_of(b.input(0)))])
    w = np.ones((2, 5), np.float32)
    np.testing.assert_array_equal(run(found, {"w": w})["w_grad"], w)
