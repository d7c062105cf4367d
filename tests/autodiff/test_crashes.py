"""Batches that crash the process without a rewrite; each runs in a separate process."""

import subprocess
import sys

import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.autodiff.native.engine import NativeEngine
from ortboost.core.errors import ModelError
from tests.autodiff.oracle import graph

SCRIPT = """
import sys
import numpy as np, onnx_ir as ir, onnxruntime as ort
from ortboost.autodiff.engine import differentiate
from ortboost.graph.shapes.shape_inference import infer_shapes
TEXT = '''<ir_version: 10, opset_import: ["" : 18]>
g (float[N,2,SIZE] x, float[1] w) => (float loss) {
  [a] h = Mul(x, w)  [b] p = MaxPool<kernel_shape = KERNEL, strides = KERNEL>(h)
  [c] loss = ReduceSum<keepdims = 0>(p)
}'''
model = ir.from_onnx_text(TEXT.replace("SIZE", sys.argv[1]).replace("KERNEL", sys.argv[2]))
infer_shapes(model)
step = differentiate(model, "loss", ["w"], "native")
session = ort.InferenceSession(ir.to_proto(step).SerializeToString())
shape = [4, 2, *map(int, sys.argv[1].split(","))]
for _ in range(20):
    feeds = {"x": np.full(shape, np.nan, np.float32), "w": np.ones(1, np.float32)}
    (gradient,) = session.run(["w_grad"], feeds)
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


GROUPED = """
import numpy as np, onnx_ir as ir, onnxruntime as ort
from ortboost.autodiff.engine import differentiate
from ortboost.graph.shapes.shape_inference import infer_shapes
model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
g (float[N,8,L] x, float[8,2,16] w) => (float loss) {
  [a] y = Conv<kernel_shape = [16], pads = [8, 8], group = 4>(x, w)
  [b] loss = ReduceSum<keepdims = 0>(y) }''')
infer_shapes(model)
step = differentiate(model, "loss", ["x", "w"], "native")
options = ort.SessionOptions()
options.enable_cpu_mem_arena = False  # the system's allocator detects writes out of bounds
session = ort.InferenceSession(ir.to_proto(step).SerializeToString(), options)
for _ in range(20):
    session.run(None, {"x": np.ones((2, 8, 39), np.float32), "w": np.ones((8, 2, 16), np.float32)})
"""


@pytest.mark.skipif(NativeEngine().unavailable() is not None, reason="no native engine here")
def test_convolution_in_groups_over_one_axis():
    answer = subprocess.run([sys.executable, "-c", GROUPED], capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr[-500:]


@pytest.mark.skipif(NativeEngine().unavailable() is not None, reason="no native engine here")
def test_convolution_in_groups_over_three_axes_is_refused():
    model = graph("""g (float[N,4,3,3,3] x, float[4,2,1,1,1] w) => (float loss) {
        y = Conv<group = 2>(x, w) loss = ReduceSum<keepdims = 0>(y) }""")
    with pytest.raises(ModelError) as error:
        differentiate(model, "loss", ["w"], "native")
    assert "writes out of bounds" in error.value.where
    assert differentiate(model, "loss", ["w"], "portable")
