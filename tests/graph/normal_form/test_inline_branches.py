from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortboost as ob
from ortboost.graph.normal_form.inline_branches import inline_branches
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.fix_inputs import fix_inputs
from ortboost.graph.shapes.input_config import InputConfig
from tests.support import run, text_model, weights

RATES = """<ir_version: 10, opset_import: ["" : 18]>
net (float[n,t] x, int64 rate, float[4,3] fast) => (float[n,3] y) {
  k = Constant<value = int64 {16000}>()
  c = Equal(rate, k)
  y = If (c) <
    then_branch = wide () => (float[n,3] a) { a = MatMul(x, fast) },
    else_branch = narrow () => (float[n,3] b) {
      w = Constant<value = float[2,3] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}>()
      l = Shape<start = 1>(x)
      two = Constant<value_ints = [2]>()
      d = Equal(l, two)
      b = If (d) <
        then_branch = taken () => (float[n,3] e) { e = MatMul(x, w) },
        else_branch = other () => (float[n,3] f) { h = MatMul(x, fast) f = Neg(h) }
      >
    }
  >
}"""


def normalized(rate: int, length: int) -> ir.Model:
    model = text_model(RATES, fast=weights(4, 3))
    fix_inputs(model, InputConfig({"t": length}, {"rate": rate}))
    normalize(model, opsets=range(18, 22), ir_version=10)
    return model


@pytest.mark.parametrize(("rate", "length"), [(16000, 4), (8000, 2)])
def test_a_known_branch_takes_the_place_of_its_if(rate, length):
    model = normalized(rate, length)
    assert [node.op_type for node in model.graph if node.op_type != "Identity"] == ["MatMul"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = weights(5, length, seed=2)
    raw = text_model(RATES, fast=weights(4, 3))
    expected = run(raw, {"x": x, "rate": np.array(rate)})["y"]
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-6)
    assert not inline_branches(model).modified


def test_an_open_condition_stays():
    model = text_model(RATES, fast=weights(4, 3))
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert [node.op_type for node in model.graph] == ["Equal", "If"]


def test_names_of_weights_stay_apart():
    """A tensor of the branch is renamed if the graph has the same name."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,2] x, bool c, float[2] w) => (float[n,2] y) {
          h = Mul(x, w)
          z = If (c) <
            then_branch = one () => (float[n,2] a) <float[2] w = {5.0, 7.0}> { a = Add(h, w) },
            else_branch = two () => (float[n,2] b) { b = Identity(h) }
          >
          y = Neg(z)
        }""",
        c=np.array(True),
        w=weights(2),
    )
    x = weights(3, 2)
    assert inline_branches(model).changed
    expected = -(x * weights(2) + np.array([5, 7], np.float32))
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-6)
    assert len(model.graph.initializers) >= 2


def test_a_branch_in_the_body_of_a_loop():
    """onnxruntime crashes where it inlines it itself: EmbeddingBag of torch's dynamo exporter."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2] x, int64 n) => (float[k,2] y) {
          one = Constant<value_int = 1>()
          y = Loop(n, "") <body = b (int64 i, bool c) => (bool g, float[2] h) {
            g = Identity(c) at = Less(i, one)
            h = If (at) <then_branch = t () => (float[2] u) { u = Neg(x) },
              else_branch = e () => (float[2] v) {
                two = Constant<value_int = 2>() no = Equal(one, two)
                v = If (no) <then_branch = p () => (float[2] w) { w = Exp(x) },
                             else_branch = q () => (float[2] z) { z = Abs(x) }> }> }> }"""
    )
    feeds = {"x": np.array([-1, 2], np.float32), "n": np.array(3)}
    expected = run(model, feeds)["y"]
    normalize(model, opsets=range(18, 22), ir_version=10)
    operators = [node.op_type for node in model.graph.all_nodes()]
    assert operators.count("If") == 1
    assert "Exp" not in operators
    np.testing.assert_array_equal(run(model, feeds)["y"], expected)


NESTED = """<ir_version: 8, opset_import: ["" : 20]>
net (float[4] x) => (float[4] y) {
  no = Constant<value = bool {0}>()
  y = If (no) <
    then_branch = a () => (float[4] a1) { a1 = Neg(x) },
    else_branch = b () => (float[4] b1) {
      b0 = Constant<value = bool {0}>()
      b1 = If (b0) <
        then_branch = c () => (float[4] c1) { c1 = Neg(x) },
        else_branch = d () => (float[4] d1) {
          local = Exp(x)
          sum = ReduceSum<keepdims = 0>(x)
          open = Cast<to = 9>(sum)
          d1 = If (open) <
            then_branch = e () => (float[4] e1) { e1 = Abs(local) },
            else_branch = f () => (float[4] f1) { f1 = Cos(local) }
          >
        }
      >
    }
  >
}"""


def test_the_reference_of_an_export_is_one_that_the_runtime_inlines_correctly(tmp_path):
    """With both branches of `d` it loses `local`: in files of torch's EmbeddingBag it crashes."""
    source = tmp_path / "net.onnx"
    source.write_bytes(ir.to_proto(text_model(NESTED)).SerializeToString())
    assert ob.export(source, tmp_path / "out.onnx").parity.ok
