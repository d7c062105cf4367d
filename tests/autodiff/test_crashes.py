"""Batches that used to crash the process; each runs in a process of its own."""

import subprocess
import sys

import pytest

from ortboost.autodiff.native import NativeEngine

SCRIPT = """
import sys
import numpy as np, onnx_ir as ir, onnxruntime as ort
from ortboost.autodiff.engine import differentiate
from ortboost.graph.normalize import infer_shapes
TEXT = '''<ir_version: 10, opset_import: ["" : 18]>
g (float[N,2,SIZE] x, float[1] w) => (float loss) {
  [a] h = Mul(x, w)  [b] p = MaxPool<kernel_shape = KERNEL, strides = KERNEL>(h)  [c] loss = ReduceSum<keepdims = 0>(p)
}'''
model = ir.from_onnx_text(TEXT.replace("SIZE", sys.argv[1]).replace("KERNEL", sys.argv[2]))
infer_shapes(model)
step = differentiate(model, "loss", ["w"], "native")
session = ort.InferenceSession(ir.to_proto(step).SerializeToString())
shape = [4, 2, *map(int, sys.argv[1].split(","))]
for _ in range(20):
    (gradient,) = session.run(["w_grad"], {"x": np.full(shape, np.nan, np.float32), "w": np.ones(1, np.float32)})
print("nan" if np.isnan(gradient).all() else gradient)
"""


@pytest.mark.skipif(NativeEngine().unavailable() is not None, reason="no native engine here")
@pytest.mark.parametrize(
    ("size", "kernel"), [("4096", "[2]"), ("64,64", "[2, 2]"), ("16,16,16", "[2, 2, 2]")]
)
def test_max_pool_of_nothing_but_nan(size, kernel):
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, size, kernel], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-500:]
    assert answer.stdout.strip() == "nan"
