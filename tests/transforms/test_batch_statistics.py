"""BatchNormalization without running statistics becomes arithmetic in both exported forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.transforms.batch_statistics import write_out_batch_statistics
from ortboost.transforms.trainable_norm import to_training
from tests.support import run, text_model, weights

HEADER = '<ir_version: 10, opset_import: ["" : 18]>'
STATISTICS = """
    a = Constant<value_ints = [0, 2]>()
    keep = ReduceMean<keepdims = 1>(x, a) c = Sub(x, keep) sq = Mul(c, c)
    m = ReduceMean<keepdims = 0>(x, a) v = ReduceMean<keepdims = 0>(sq, a)"""
TRAINING = """
    y, um, uv = BatchNormalization<training_mode = 1, momentum = 1.0, epsilon = 0.01>(
    x, s, t, m, v)"""
INFERENCE = "y = BatchNormalization<epsilon = 0.01>(x, s, t, m, v)"


def model(nodes: str, shape: str = "N,3,4", outputs: str = "float[N,3,4] y") -> ir.Model:
    text = f"""{HEADER} g (float[{shape}] x, float[3] s, float[3] t) => ({outputs}) {{ {nodes} }}"""
    return text_model(text, s=weights(3, seed=1), t=weights(3, seed=2))


def test_numbers_of_another_type():
    header = f"{HEADER} g (double[N,3,4] x, double[3] s, double[3] t) => (double[N,3,4] y)"
    stored = {"s": np.float64([1, 2, 3]), "t": np.float64([4, 5, 6])}
    found = text_model(f"{header} {{ {STATISTICS + INFERENCE} }}", **stored)
    infer_shapes(found)
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 3, 4))}
    before = run(found, feeds)["y"]
    assert write_out_batch_statistics(found).changed
    np.testing.assert_allclose(run(found, feeds)["y"], before, rtol=1e-7)


@pytest.mark.parametrize("form", [TRAINING, INFERENCE], ids=["training", "inference"])
def test_the_same_numbers(form):
    found = model(STATISTICS + form)
    feeds = {"x": weights(5, 3, 4, seed=3, scale=2.0) + np.float32(1)}
    before = run(found, feeds)["y"]
    report = write_out_batch_statistics(found)
    assert len(report.changed) == 1
    assert all(node.op_type != "BatchNormalization" for node in found.graph)
    np.testing.assert_allclose(run(found, feeds)["y"], before, rtol=1e-5, atol=1e-6)
    assert not write_out_batch_statistics(found).changed


def test_of_a_matrix():
    nodes = """a = Constant<value_ints = [0]>() m = ReduceMean<keepdims = 0>(x, a)
        v = Mul(m, m) y = BatchNormalization(x, s, t, m, v)"""
    found = model(nodes, "N,3", "float[N,3] y")
    feeds = {"x": weights(5, 3, seed=3)}
    before = run(found, feeds)["y"]
    assert write_out_batch_statistics(found).changed
    np.testing.assert_allclose(run(found, feeds)["y"], before, rtol=1e-4, atol=1e-5)


STORED = "i = Identity(s) y = BatchNormalization(x, s, t, i, t)"
READ = STATISTICS + TRAINING.replace("um", "out")
ELSEWHERE = "m = Mul(s, s) v = Exp(s) " + INFERENCE


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (STORED, "float[N,3,4] y"),
        (READ, "float[N,3,4] y, float[3] out"),
        (ELSEWHERE, "float[N,3,4] y"),
    ],
    ids=["stored", "new-statistics-are-read", "not-of-the-input"],
)
def test_others_are_left(nodes, outputs):
    found = model(nodes, outputs=outputs)
    assert not write_out_batch_statistics(found).changed
    assert any(node.op_type == "BatchNormalization" for node in found.graph)


def test_what_is_left_is_refused():
    with pytest.raises(ModelError, match="are computed, not stored"):
        to_training(model(ELSEWHERE))
