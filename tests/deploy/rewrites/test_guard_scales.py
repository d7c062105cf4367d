"""The scale of a float16 attention that onnxruntime 1.32 would read as float32."""

from __future__ import annotations

import numpy as np

import ortboost as ob
from ortboost.deploy.rewrites.guard_scales import guard_scales
from ortboost.graph.io import load_model, save_model
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
