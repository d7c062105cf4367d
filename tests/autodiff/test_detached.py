"""Values that torch's dynamo exporter marks as detached get no gradient, with both engines."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.autodiff.engine import differentiate
from ortboost.core.errors import ModelError
from ortboost.graph.normalize import normalize
from ortboost.graph.reach import dropped_detaches, stops_gradient
from tests.support import ENGINES, run, text_model, weights

HEAD = """<ir_version: 10, opset_import: ["" : 18]>
g (float[N,3] x, float[3,4] w, float[4] u) => (float loss) {"""
TAIL = "loss = ReduceMean<keepdims=0>(y) }"
FX = "pkg.torch.onnx.fx_node"
CALL = "%detach : [num_users=1] = call_function[target=torch.ops.aten.{}.default](args = (%h,))"
X, W, U = weights(2, 3), weights(3, 4, seed=1), weights(4, seed=2)


def model(body: str, call: str = "detach", **stored: np.ndarray):
    found = text_model(HEAD + body + TAIL, **stored)
    for node in found.graph:
        if node.op_type == "Identity":
            node.metadata_props[FX] = CALL.format(call)
    return found


def gradients(found, engine):
    results = run(differentiate(found, "loss", ["w", "u"], engine), {"x": X, "w": W, "u": U})
    return results["w_grad"], results["u_grad"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("call", ["detach", "detach_"])
def test_of_two_paths_one_is_detached(engine, call):
    """`y = u h + h stop(h)`: `dy/dh = u + h`, not `u + 2 h`; `h` itself is used, too."""
    body = "h = MatMul(x, w) d = Identity(h) a = Mul(h, d) b = Mul(h, u) y = Add(a, b) "
    h = X @ W
    of_w, of_u = gradients(model(body, call), engine)
    np.testing.assert_allclose(of_w, X.T @ (U + h) / h.size, rtol=1e-5)
    np.testing.assert_allclose(of_u, h.sum(0) / h.size, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_straight_through_estimator(engine):
    """`y = u (h + stop(round(h) - h))`: the gradient of `h` is `u`."""
    body = (
        "h = MatMul(x, w) r = Round(h) s = Sub(r, h) d = Identity(s) q = Add(h, d) y = Mul(q, u) "
    )
    of_w, of_u = gradients(model(body), engine)
    h = np.round(X @ W)
    np.testing.assert_allclose(of_w, X.T @ np.broadcast_to(U, h.shape) / h.size, rtol=1e-5)
    np.testing.assert_allclose(of_u, h.sum(0) / h.size, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_detached_parameter(engine):
    """`y = stop(u) u h`: the gradient of `u` is that of its other use."""
    body = "h = MatMul(x, w) d = Identity(u) v = Mul(u, d) y = Mul(h, v) "
    of_w, of_u = gradients(model(body), engine)
    h = X @ W
    np.testing.assert_allclose(of_w, X.T @ np.broadcast_to(U * U, h.shape) / h.size, rtol=1e-5)
    np.testing.assert_allclose(of_u, (h * U).sum(0) / h.size, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("like", "value"),
    [
        ("EyeLike(w)", np.eye(3, 4)),
        ("RandomNormalLike<mean=2.0, scale=1e-30>(w)", np.full((3, 4), 2.0)),
        ("RandomUniformLike<low=2.0, high=2.0>(w)", np.full((3, 4), 2.0)),
    ],
)
def test_what_reads_only_the_shape_of_a_parameter(engine, like, value):
    """`y = x (w e) u` with `e` in the shape of `w`; the native builder fails on these operators."""
    body = f"e = {like} v = Mul(w, e) h = MatMul(x, v) y = Mul(h, u) "
    of_w, of_u = gradients(model(body), engine)
    h = X @ (W * value)
    np.testing.assert_allclose(of_w, X.T @ np.tile(U, (2, 1)) * value / h.size, rtol=1e-5)
    np.testing.assert_allclose(of_u, h.sum(0) / h.size, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_behind_a_detach_only_cannot_be_trained(engine):
    with pytest.raises(ModelError, match="does not depend differentiably"):
        gradients(model("h = MatMul(x, w) d = Identity(h) y = Mul(d, u) "), engine)


def test_a_converted_opset_keeps_it():
    found = model("h = MatMul(x, w) d = Identity(h) a = Mul(h, d) y = Mul(a, u) ", w=W, u=U)
    found.opset_imports[""] = 22
    normalize(found, opsets=range(18, 22), ir_version=10)
    assert [stops_gradient(node) for node in found.graph] == [False, True, False, False, False]


def test_conversion_reports_detached_values():
    found = model("h = MatMul(x, w) d = Identity(h) a = Mul(h, d) y = Mul(a, u) ", w=W, u=U)
    program = ob.build_program(found, ob.ProgramConfig(loss=ob.LossConfig("output")))
    (report,) = [r for r in program.reports if r.rewrite == "training_traces"]
    assert report.changed == {"d": "detached: gets no gradient"}
    assert not report.notes


def test_what_an_optimizing_exporter_dropped_is_told():
    found = model("h = MatMul(x, w) a = Mul(h, h) y = Mul(a, u) ", w=W, u=U)
    nodes = {node.outputs[0].name: node for node in found.graph}
    nodes["a"].metadata_props[FX] = (
        "%a : [num_users=1] = call_function[...](args = (%h, %detach_1))"
    )
    nodes["y"].metadata_props[FX] = (
        "%y : [num_users=1] = call_function[...](args = (%a, %detached))"
    )
    assert dropped_detaches(found.graph) == {"detach_1"}
    program = ob.build_program(found, ob.ProgramConfig(loss=ob.LossConfig("output")))
    (report,) = [r for r in program.reports if r.rewrite == "training_traces"]
    assert report.notes[0].startswith(
        "the torch module detaches 1 value (detach_1), but the export"
    )
