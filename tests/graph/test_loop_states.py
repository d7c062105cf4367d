"""The states of a loop have the shapes that each step leaves as they are."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.graph.loop_states import shape_loop_states
from ortboost.graph.query import known_shape
from ortboost.graph.shape_inference import infer_shapes
from tests.support import text_model, weights

WHOLE = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3] x, float[N,3] z, int64 n, bool go, float[3,3] w) => (y) {{
  a, b = Loop(n, go, x, z) <body = step (int64 i, bool c, float h, float k) =>
    (bool d, float s, float t) {{ d = Identity(c) {body} }}>
  r = Relu(a)
  y = Add(r, b) }}"""


def looped(body: str) -> ir.Model:
    model = text_model(WHOLE.format(body=body), w=weights(3, 3))
    for value in model.graph[0].attributes["body"].as_graph().inputs[2:]:
        value.shape = None  # the text format has no tensors of unknown rank
    for value in model.graph[0].attributes["body"].as_graph().outputs[1:]:
        value.shape = None
    infer_shapes(model)
    return model


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        ("s = MatMul(h, w) t = Tanh(k)", ("N", 3), ("N", 3)),
        ("s = Add(h, k) t = Identity(h)", ("N", 3), ("N", 3)),
        ("s = Concat<axis = 0>(h, h) t = Neg(k)", None, ("N", 3)),
        ("s = ReduceSum<keepdims = 0>(h) t = Neg(k)", None, ("N", 3)),
        ("s = Concat<axis = 0>(h, k) t = Neg(h)", None, None),  # the one by the other
    ],
)
def test_states_keep_what_a_step_keeps(body, first, second):
    model = looped(body)
    assert known_shape(model.graph[0].outputs[0]) is None
    shape_loop_states(model)
    states = model.graph[0].attributes["body"].as_graph().inputs[2:]
    assert [known_shape(value) for value in states] == [first, second]
    assert [known_shape(value) for value in model.graph[0].outputs] == [first, second]
    assert known_shape(model.graph[1].outputs[0]) == first


def test_a_model_without_loops_is_not_inferred_again(monkeypatch):
    monkeypatch.delattr("ortboost.graph.loop_states.infer_shapes")
    shape_loop_states(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]> net (float[N] x) => (y) { y = Neg(x) }"""
        )
    )
