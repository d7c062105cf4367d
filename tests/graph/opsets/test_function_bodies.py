from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.graph.normalize import normalize
from ortboost.graph.opsets.function_bodies import expand_by_definition
from ortboost.graph.rewriting import rewrite_nodes
from ortboost.graph.weights.parameters import find_parameters
from tests.support import run, text_model, weights

pytestmark = pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="needs opset 23")

NEWER = {
    "RMSNormalization": "y = RMSNormalization<axis = -1, epsilon = 0.01>(x, w)",
    "Attention": "h = Mul(x, w)  y = Attention<q_num_heads = 2, kv_num_heads = 2>(h, x, x)",
    "RotaryEmbedding": "h = Mul(x, w)  y = RotaryEmbedding<num_heads = 2>(h, c, s, p)",
}


def net(body: str) -> ir.Model:
    return text_model(
        f"""<ir_version: 11, opset_import: ["" : 23]>
        net (float[2,3,8] x, float[8] w, float[5,2] c, float[5,2] s, int64[2,3] p)
          => (float[2,3,8] y) {{ {body} }}""",
        w=weights(8),
        c=weights(5, 2),
        s=weights(5, 2),
        p=np.array([[0, 1, 2], [2, 3, 4]]),
    )


@pytest.mark.parametrize("operator", NEWER)
def test_an_operator_of_a_newer_opset_becomes_its_definition(operator):
    model, x = net(NEWER[operator]), weights(2, 3, 8)
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(["y"], {"x": x})
    reports = {r.rewrite: r for r in normalize(model, opsets=range(18, 22), ir_version=10)}
    assert model.opset_imports[""] == 21
    assert operator not in {node.op_type for node in model.graph.all_nodes()}
    changed = set(reports["convert_opset"].changed.values())
    assert f"{operator}: not in opset 21: expanded as defined by the standard" in changed
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert find_parameters(model)["w"].trainable


def test_an_opset_that_has_the_operator_keeps_it():
    model = net(NEWER["RMSNormalization"])
    normalize(model, opsets=range(18, 24), ir_version=11)
    assert [node.op_type for node in model.graph] == ["RMSNormalization"]


@pytest.mark.parametrize(
    "node",
    [
        *("Elu(x)", "Elu<alpha = 0.5>(x)", "Selu<gamma = 2.0>(x)", "HardSigmoid(x)"),
        *("ThresholdedRelu(x)", "Celu<alpha = 2.0>(x)", "Celu(x)", "ReduceLogSum<keepdims = 0>(x)"),
    ],
)
def test_attributes_are_given_or_have_the_defaults_of_the_operator(node):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3] x) => (y) {{ h = {node} y = Identity(h) }}"""
    )
    x = {"x": np.abs(weights(2, 3)) + np.float32(0 if "Log" in node else -0.5)}
    expected = run(model, x)["y"]
    operator = model.graph[0].op_type
    assert rewrite_nodes(model, "expand", {operator: expand_by_definition}).modified
    assert operator not in {made.op_type for made in model.graph}
    np.testing.assert_allclose(run(model, x)["y"], expected, rtol=1e-6)
