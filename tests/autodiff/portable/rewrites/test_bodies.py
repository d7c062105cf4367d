"""Bodies are rewritten, and shapes of states inferred only where every iteration keeps them."""

from __future__ import annotations

import onnx_ir as ir

from ortboost.autodiff.portable.rewrites.bodies import prepare_bodies
from ortboost.graph.normal_form.unchanged_states import capture_unchanged_states
from tests.autodiff.oracle import graph

GROWING = """g (int64 n, float[1,H] a, float[B,H] x) => (float[P,Q] y, float[R,S] z) {
    one = Constant<value_int = 1>() on = Cast<to = 9>(one)
    y, z = Loop<body = b (int64 i, bool k, float[M,N] s, float[O,L] t) =>
        (bool ko, float[U,V] so, float[W,Z] to) { ko = Identity(k) so = Add(s, x) to = Tanh(t) }
        >(n, on, a, x) }"""


def prepared(text: str) -> ir.Graph:
    model = graph(text)
    prepare_bodies(model, lambda body: False)
    (node,) = [node for node in model.graph if node.op_type == "Loop"]
    return node.attributes["body"].as_graph()


def test_a_length_that_an_iteration_changes_is_unknown():
    body = prepared(GROWING)
    assert [str(dim) for dim in body.inputs[2].shape] == ["None", "H"]  # [1, H] becomes [B, H]
    assert [str(dim) for dim in body.inputs[3].shape] == ["B", "H"]


def test_unchanged_states_are_captured():
    model = graph(
        """g (int64 n, float[2] h, float[2] w) => (float[2] y, float[2] v, float[T,2] e) {
        one = Constant<value_int = 1>() on = Cast<to = 9>(one)
        v, y, e = Loop<body = b (int64 i, bool k, float[2] q, float[2] s) =>
            (bool ko, float[2] qo, float[2] so, float[2] eo) {
            ko = Identity(k) qo = Identity(q) so = Mul(s, q) eo = Identity(q) }>(n, on, w, h) }"""
    )
    report = capture_unchanged_states(model)
    assert report.modified
    (node,) = [node for node in model.graph if node.op_type == "Loop"]
    assert [value.name for value in node.inputs] == ["n", "on", "h"]
    assert len(node.outputs) == 2
    reads = {v.name for inner in node.attributes["body"].as_graph() for v in inner.inputs}
    assert "w" in reads
    assert not capture_unchanged_states(model).modified
