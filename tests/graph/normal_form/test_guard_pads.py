"""The runtime computes the guarded graph according to the standard, despite its fusions."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.deploy.export import export_network
from ortboost.graph.normal_form.guard_pads import guard_pads
from tests.autodiff.oracle import graph

MINOR = int(onnxruntime.__version__.split(".")[1])
POOLS = (
    "MaxPool<kernel_shape = [3,3], strides = [2,2]>",
    "MaxPool<kernel_shape = [3,3], pads = [1,1,1,1]>",
    "AveragePool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>",
)


def padded(pool, attributes="", opset=18):
    return graph(
        f"""g (float[N,2,6,6] x) => (float[N,2,H,W] y)
        <int64[8] pads = {{0,0,1,1,0,0,1,1}}> {{ p = Pad{attributes}(x, pads) y = {pool}(p) }}""",
        opset,
    )


def plainly(model, x):
    """As users run the file: with all fusions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options).run(None, {"x": x})[0]


@pytest.mark.parametrize("pool", POOLS)
def test_zeros_stay_zeros(pool):
    x = -1 - np.random.default_rng(0).random((3, 2, 6, 6), np.float32)
    model = padded(pool)
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    assert guard_pads(model).changed
    assert not guard_pads(model).changed
    np.testing.assert_allclose(plainly(model, x), expected, rtol=1e-6)


@pytest.mark.skipif(MINOR >= 32, reason="onnxruntime 1.32 has mended the fusion")
def test_this_runtime_is_one_that_needs_it():
    x = -1 - np.random.default_rng(0).random((3, 2, 6, 6), np.float32)
    wrong = 0
    for pool in POOLS:
        (expected,) = ReferenceEvaluator(ir.to_proto(padded(pool))).run(None, {"x": x})
        wrong += not np.allclose(plainly(padded(pool), x), expected)
    assert wrong


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("opset", [15, 17, 18])  # below 18, a Pad cannot name its axes
def test_exports_have_it(pool, optimize, opset):
    x = -1 - np.random.default_rng(0).random((3, 2, 6, 6), np.float32)
    model = padded(pool, opset=opset)
    (expected,) = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})
    exported = export_network(model, optimize=optimize)
    np.testing.assert_allclose(plainly(exported.model, x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "model",
    [
        padded(POOLS[0], '<mode = "reflect">'),
        padded("Abs"),
        padded(POOLS[0], opset=17),
    ],
    ids=["reflect", "no pool", "opset 17"],
)
def test_others_are_left_alone(model):
    assert not guard_pads(model).changed
