"""``If`` is differentiated through both branches, or refused with a reason."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.autodiff.portable.prepare import prepare
from ortboost.core.errors import ModelError
from tests.autodiff.numeric import numeric_gradients
from tests.autodiff.oracle import graph
from tests.support import run

NET = """g (float[N,3] x, float[3,2] w, float[3,2] v, bool c) => (float loss) {{
    h = Mul(x, x)
    y{more} = If (c) <
      then_branch = t () => (float[N,2] ty{then_more}) {{ {then} }},
      else_branch = e () => (float[N,2] ey{else_more}) {{ {other} }}>
    {tail} }}"""
SQUARE = "s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s)"


def make(then: str, other: str, tail: str = SQUARE, two: bool = False) -> ir.Model:
    return graph(
        NET.format(
            then=then,
            other=other,
            tail=tail,
            more=", z" if two else "",
            then_more=", float[N,2] tz" if two else "",
            else_more=", float[N,2] ez" if two else "",
        )
    )


def value_names(model: ir.Model) -> collections.Counter[str]:
    """How often each name is defined, branches included."""
    nodes = model.graph.all_nodes()
    return collections.Counter(out.name for node in nodes for out in node.outputs if out.name)


def assert_both_branches(model: ir.Model, wrt: list[str]) -> ir.Model:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(4, 3)).astype(np.float32),
        "w": rng.normal(size=(3, 2)).astype(np.float32),
        "v": rng.normal(size=(3, 2)).astype(np.float32),
    }
    result = differentiate(model, "loss", wrt, "portable")
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    before, after = value_names(model), value_names(result)
    assert all(after[name] <= max(before[name], 1) for name in after)  # no name is defined twice
    for choice in (True, False):
        given = {**feeds, "c": np.array(choice)}
        expected = numeric_gradients(model, "loss", wrt, given)
        found = run(result, given)
        for name in wrt:
            np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=2e-5, atol=2e-5)
    return result


def test_each_branch_uses_other_weights():
    model = make("a = MatMul(h, w) ty = Tanh(a)", "a = MatMul(x, v) ey = Sigmoid(a)")
    assert_both_branches(model, ["x", "w", "v"])


def test_weights_used_outside_too_and_in_both_branches():
    tail = "p = MatMul(h, w) q = Add(p, y) s = Mul(q, q) loss = ReduceSum<keepdims = 0>(s)"
    model = make("a = MatMul(h, w) ty = Add(a, a)", "ey = MatMul(x, w)", tail)
    assert_both_branches(model, ["x", "w"])


def test_two_outputs_of_which_one_counts():
    then = "ty = MatMul(h, w) tz = MatMul(x, v)"
    other = "ey = MatMul(x, v) k = Constant<value_float = 2.0>() ez = Mul(ey, k)"
    assert_both_branches(make(then, other, two=True), ["x", "w"])
    tail = "p = Mul(y, z) loss = ReduceSum<keepdims = 0>(p)"
    assert_both_branches(make(then, other, tail, two=True), ["x", "w", "v"])


def test_nested():
    then = """ty = If (c) < then_branch = tt () => (float[N,2] q) { q = MatMul(h, w) },
        else_branch = te () => (float[N,2] q) { q = MatMul(x, v) } >"""
    assert_both_branches(make(then, "ey = MatMul(x, v)"), ["x", "w", "v"])


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("a = MatMul(x, w) ey = Round(a)", "derivative is zero"),
        ("a = MatMul(x, w) ey = Mish(a) r = RandomNormalLike(a)", "random numbers"),
    ],
)
def test_refused_with_a_reason(other, reason):
    model = make("ty = MatMul(h, w)", other)
    (node,) = [node for node in model.graph if node.op_type == "If"]
    assert reason in (get_engine("portable").gradient_support(node) or "")
    with pytest.raises(ModelError, match="no gradient in the portable engine"):
        differentiate(model, "loss", ["w"], "portable")


def test_a_branch_is_decomposed_and_prepared():
    model = make("ty = MatMul(h, w)", "a = MatMul(x, w) ey = LpNormalization(a)")
    result = differentiate(model, "loss", ["x", "w"], "portable")
    given = {"x": np.eye(4, 3, dtype=np.float32) + 1, "c": np.array(False)}
    given["w"] = np.array([[1, 2], [3, -1], [0.5, 2]], np.float32)
    given["v"] = given["w"]
    expected = numeric_gradients(model, "loss", ["x", "w"], given)
    found = run(result, given)
    for name in ("x", "w"):
        np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=2e-5, atol=2e-5)


def test_a_map_over_a_sequence_is_refused():
    reason = get_engine("portable").gradient_support(ir.Node("", "SequenceMap", []))
    assert "no known length" in (reason or "")


def test_branch_of_a_branch_that_is_always_taken():
    """onnxruntime 1.32 crashes the process where it inlines such a branch of the gradient."""
    model = make(
        """one = Constant<value_int = 1>() yes = Equal(one, one)
        ty = If (yes) <then_branch = p () => (float[N,2] py) { a = MatMul(h, w) py = Tanh(a) },
                       else_branch = q () => (float[N,2] qy) { qy = MatMul(h, v) }>""",
        "ey = MatMul(x, v)",
    )
    prepare(model)
    (outer,) = [node for node in model.graph if node.op_type == "If"]
    assert not [node for node in outer.attributes["then_branch"].as_graph() if node.op_type == "If"]
    assert_both_branches(model, ["x", "w"])
