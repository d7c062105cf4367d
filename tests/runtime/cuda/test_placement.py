"""The oracle is the runtime itself, see :mod:`tests.runtime.cuda.cases`."""

import json

import numpy as np
import pytest

from ortboost.graph.shape_inference import infer_shapes
from ortboost.runtime.cuda.kernels import load_kernels
from ortboost.runtime.cuda.placement import place
from tests.runtime.cuda.cases import NAMES, case
from tests.support import GOLDEN, text_model
from tools.gpu.placement import differences

RELEASES = ("1.19.2", "1.31.1")
ANSWERS = {
    release: json.loads((GOLDEN / "onnxruntime" / f"placement-{release}.json").read_text())
    for release in RELEASES
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", NAMES)
def test_nodes_and_copies_are_those_of_the_runtime(name, release):
    answer = ANSWERS[release][f"{name}.onnx"]
    assert differences(case(name), answer, f"cuda={release}") == []


def test_the_releases_differ_where_their_kernels_do():
    assert ANSWERS["1.19.2"]["opset_21.onnx"] != ANSWERS["1.31.1"]["opset_21.onnx"]


def test_what_the_runtime_computes_at_its_start_is_left_out():
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[1,1,4,4] one, float[n,1,2,2] x) '
        "=> (float[n,1,2,2] y) { s = LpPool<kernel_shape=[2,2], strides=[2,2]>(one) y = Mul(x, s) "
        "}",
        one=np.ones((1, 1, 4, 4), np.float32),
    )
    infer_shapes(model)
    sides = [
        [p.side for p in place(model, load_kernels("cuda"), folds=f)[0]] for f in (True, False)
    ]
    assert sides == [["cuda"], ["cpu", "cuda"]]


def test_values_that_a_branch_reads_from_the_other_side():
    model = text_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[3,3] x, bool b) => (float v) '
        "{ r = Relu(x) v = If(b) <then_branch = t () => (float a) { a = Det(r) }, "
        "else_branch = e () => (float c) { c = ReduceSum<keepdims=0>(r) }> }"
    )
    infer_shapes(model)
    _, copies = place(model, load_kernels("cuda"))
    assert [(c.value.name, c.to_host, c.kind) for c in copies] == [("r", True, "captured")]
