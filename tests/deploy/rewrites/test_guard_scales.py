"""The scale of a float16 attention that onnxruntime 1.32 would read as float32."""

from __future__ import annotations

import numpy as np
import pytest

import ortboost as ob
from ortboost.deploy.rewrites.guard_scales import guard_scales
from ortboost.graph.io import load_model, save_model
from tests.deploy.rewrites.support import check, model_of
from tests.support import text_model, weights

ATTENTION = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1,512,4,4] x, int64[3] flat, int64[5] heads, int64[1] first, int64[3] joined,
     int64[4] image, float[512,1536] w, float[512,512] o, float[512] k, float s)
=> (float[1,512,4,4] y) {
  x1 = Reshape(x, flat)
  x2 = Transpose<perm = [0, 2, 1]>(x1)
  qkv = MatMul(x2, w)
  parts = Reshape(qkv, heads)
  turned = Transpose<perm = [2, 0, 3, 1, 4]>(parts)
  q1, k1, v1 = Split<axis = 0>(turned)
  q2 = Squeeze(q1, first)
  k2 = Squeeze(k1, first)
  v2 = Squeeze(v1, first)
  k3 = Transpose<perm = [0, 1, 3, 2]>(k2)
  q = Mul(q2, s)
  kt = Mul(k3, s)
  scores = MatMul(q, kt)
  p = Softmax<axis = -1>(scores)
  h = MatMul(p, v2)
  h1 = Transpose<perm = [0, 2, 1, 3]>(h)
  h2 = Reshape(h1, joined)
  z = MatMul(h2, o)
  z1 = Add(k, z)
  z2 = Transpose<perm = [0, 2, 1]>(z1)
  y = Reshape(z2, image)
}"""


def attention():
    lists = {
        "flat": [1, 512, 16],
        "heads": [1, 16, 3, 16, 32],
        "first": [0],
        "joined": [1, 16, 512],
        "image": [1, 512, 4, 4],
    }
    stored = {"w": weights(512, 1536), "o": weights(512, 512), "k": weights(512)}
    stored |= {name: np.array(values, np.int64) for name, values in lists.items()}
    return text_model(ATTENTION, s=np.float32(32**-0.25), **stored)


def test_the_file_can_be_opened(tmp_path):
    save_model(attention(), tmp_path / "net.onnx")
    assert ob.export(tmp_path / "net.onnx", tmp_path / "out.onnx", precision="fp16").parity.ok
    model = load_model(tmp_path / "out.onnx")
    scales = [node.inputs[1] for node in model.graph if node.op_type == "Mul"]
    assert [list(scale.shape) for scale in scales] == [[1, 1], [1, 1]]


def test_a_scale_of_another_type_stays():
    assert not guard_scales(attention()).changed


SPLIT = "p, o = Split<axis = 0, num_outputs = 2>(x)"


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (f"{SPLIT} q = Squeeze(p, zero) h = Mul(q, s) y = MatMul(h, q)", True),
        (f"{SPLIT} q = Squeeze(p, zero) h = Mul(s, q) y = MatMul(h, q)", True),
        ("p = Slice(x, zero, one) q = Squeeze(p, zero) h = Mul(q, s) y = MatMul(h, q)", False),
        (f"{SPLIT} q = Abs(p) h = Mul(q, s) y = MatMul(h, q)", False),
        (f"{SPLIT} q = Squeeze(p, zero) h = Mul(q, s) m = MatMul(h, q) y = Add(m, h)", False),
        (f"{SPLIT} q = Squeeze(p, zero) h = Mul(q, v) y = MatMul(h, q)", False),
    ],
)
def test_only_the_scale_of_a_query_or_key_becomes_a_matrix(body, changed):
    model = model_of(
        body,
        "float16[2,4,4] x, float16 s, float16[4] v, int64[1] zero, int64[1] one",
        "float16[...] y".replace("...", "1,4,4" if "Abs" in body else "4,4"),
        s=np.float16(0.5),
        v=weights(4).astype(np.float16),
        zero=np.array([0]),
        one=np.array([1]),
    )
    assert (
        bool(check(guard_scales, model, {"x": weights(2, 4, 4).astype(np.float16)}).changed)
        == changed
    )


def test_a_scaled_vector_keeps_its_shape():
    model = model_of(
        f"{SPLIT} q = Squeeze(p, zero) h = Mul(q, s) y = MatMul(h, w)",
        "float16[2,4] x, float16 s, float16[4,4] w, int64[1] zero",
        "float16[4] y",
        s=np.float16(0.5),
        w=weights(4, 4).astype(np.float16),
        zero=np.array([0]),
    )
    assert not check(guard_scales, model, {"x": weights(2, 4).astype(np.float16)}).changed
