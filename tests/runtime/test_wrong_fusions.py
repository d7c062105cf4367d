"""Fusions of onnxruntime that lose a node's input."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.graph.io import save_model
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.runtime.session import open_session
from ortboost.runtime.wrong_fusions import wrong_optimizers
from tests.support import text_model, weights

LOSES = "p = MatMul(x, w) u = MatMul(x, a) q = Add(p, u) y = Add(q, p)"
OLD, NEW = "1.19.2", "1.31.1"


def model(body: str, shape: str = "N,4"):
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{shape}] x, float[4,3] w, float[4,3] a) => (float[N,M] y) {{ {body} }}""",
        w=weights(4, 3),
        a=weights(4, 3, seed=1),
    )


@pytest.mark.parametrize(
    ("body", "version", "off"),
    [
        (LOSES, OLD, True),
        (LOSES.replace("Add(p, u)", "Add(u, p)"), OLD, True),
        (LOSES, NEW, False),
        ("p = MatMul(x, w) u = Relu(p) q = Add(p, u) y = Add(q, p)", OLD, False),
        ("p = MatMul(x, w) u = MatMul(x, a) y = Add(p, u)", OLD, False),
        ("p = MatMul(x, w) u = MatMul(x, a) q = Add(p, u) y = Mul(q, p)", OLD, False),
    ],
)
def test_where_it_is_turned_off(body, version, off, tmp_path):
    path = tmp_path / "net.onnx"
    save_model(model(body), path)
    for form in (model(body), path):
        assert ("MatMulAddFusion" in wrong_optimizers(form, version)) == off
        assert {"EliminateDropout", "Pad_Fusion"} <= {*wrong_optimizers(form, version)}


def test_products_of_three_axes_are_not_fused_at_all():
    net = model(LOSES, "N,2,4")
    net.graph.outputs[0].shape = None
    infer_shapes(net)
    assert "MatMulAddFusion" not in wrong_optimizers(net, OLD)


def test_a_file_that_only_the_runtime_reads(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"damaged")
    assert wrong_optimizers(path, OLD) == wrong_optimizers(path, NEW)


@pytest.mark.parametrize("body", [LOSES, LOSES.replace("Add(q, p)", "Add(p, q)")])
def test_the_sum_has_all_its_terms(body, tmp_path):
    """With onnxruntime 1.19.2: Missing Input: p."""
    path, x = tmp_path / "net.onnx", weights(5, 4, seed=2)
    save_model(model(body), path)
    expected = x @ (2 * weights(4, 3) + weights(4, 3, seed=1))
    for form in (model(body), path):
        (found,) = open_session(form, device="cpu").run(None, {"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("middle", ["Identity", "Dropout"])
def test_a_quotient_is_computed_as_it_is_written(middle):
    """DivMulFusion: (1 / x) z is no z / x of integers, and the file of floats is not opened."""
    integers = text_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (int64[n] x, int64[n] z) => (int64[n] y) {
            one = Constant <value_int: int = 1> () q = Div(one, x) y = Mul(z, q) }""")
    found = open_session(integers, device="cpu").run(None, {"x": np.array([3]), "z": np.array([6])})
    assert found[0].tolist() == [0]
    floats = text_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[n] x, float[n] z) => (float[n] y) {{ m = {middle}(z)
            one = Constant <value_float: float = 1.0> () q = Div(one, x) y = Mul(m, q) }}""")
    feeds = {"x": np.float32([4]), "z": np.float32([6])}
    assert open_session(floats, device="cpu").run(None, feeds)[0].tolist() == [1.5]


def test_a_product_of_a_third_output_can_be_part_of_a_sum():
    net = text_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N,6] x, float[2,3] w, float[N,3] z) => (float[N,3] y, float[N,2] a, float[N,2] b)
        {
            lengths = Constant <value_ints: ints = [2, 2, 2]> ()
            a, b, c = Split <axis = 1> (x, lengths)
            h = Gemm(c, w)  y = Sum(h, z)
        }""")
    x, w, z = weights(5, 6), weights(2, 3, seed=1), weights(5, 3, seed=2)
    found = open_session(net, device="cpu").run(["y"], {"x": x, "w": w, "z": z})[0]
    np.testing.assert_allclose(found, x[:, 4:] @ w + z, rtol=1e-5, atol=1e-6)


def test_such_a_model_is_trained_evaluated_and_compared(tmp_path):
    run = tmp_path / "run"
    net = model(LOSES)
    ob.convert(net, run, ob.ProgramConfig(loss=ob.LossConfig("mse")))
    data = {"x": weights(8, 4), "labels": weights(8, 3, seed=3)}
    summary = ob.train(run, data, data, epochs=1, batch_size=4, progress=None)
    assert ob.evaluate(run, data)["loss"] == pytest.approx(summary.metrics["val_loss"])
    _, state, _ = ob.load_run(run)
    answers = data["x"] @ (2 * state["w"] + state["a"])
    expected = np.mean((answers - data["labels"]) ** 2)
    assert ob.evaluate(run, data)["loss"] == pytest.approx(expected, rel=1e-5)
    assert not ob.compare(net, run, data=data).parity.ok  # it was trained


def test_a_cubic_resize_that_shrinks_a_transposed_table():
    """The position embedding of a DINOv2 for smaller images, as an input of ``eval.onnx``."""
    net = text_model("""<ir_version: 8, opset_import: ["" : 18]>
        net (float[1,6,6,4] w, float[N,3,3,4] x) => (float[N,3,3,4] y) <int64[4] s = {1,4,3,3}> {
            t = Transpose<perm = [0,3,1,2]>(w) r = Resize<mode = "cubic">(t, , , s)
            u = Transpose<perm = [0,2,3,1]>(r) y = Add(x, u) }""")
    feeds = {"w": weights(1, 6, 6, 4), "x": weights(2, 3, 3, 4, seed=1)}
    (found,) = open_session(net, device="cpu").run(None, feeds)
    (expected,) = open_session(net, device="cpu", optimize=False).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
