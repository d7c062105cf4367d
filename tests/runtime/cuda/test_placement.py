"""The oracle is the runtime itself, see :mod:`tests.runtime.cuda.cases`."""

import json

import numpy as np
import pytest

from ortboost.graph.shapes.shape_inference import infer_shapes
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


@pytest.mark.parametrize(("peephole", "side"), [("", "cuda"), (", , , , , p", "cpu")])
def test_an_lstm_with_peepholes_is_left_to_the_cpu(peephole, side):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 14]> g (float[5,n,3] x, float[1,16,3] w,
        float[1,16,4] r, float[1,12] p) => (float[5,1,n,4] y) {{
          y = LSTM<hidden_size = 4>(x, w, r{peephole}) }}""",
        w=np.ones((1, 16, 3), np.float32),
        r=np.ones((1, 16, 4), np.float32),
        p=np.ones((1, 12), np.float32),
    )
    infer_shapes(model)
    assert [p.side for p in place(model, load_kernels("cuda"))[0]] == [side]
