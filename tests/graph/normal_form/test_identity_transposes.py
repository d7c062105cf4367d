from __future__ import annotations

import numpy as np
import pytest

from ortboost.graph.normal_form.identity_transposes import bypass_identity_transposes
from ortboost.graph.normalize import normalize
from tests.support import run, text_model, weights

HEAD = '<ir_version: 10, opset_import: ["" : 18]> g (float[3,3] x, float[3,3] w) => (float[3,3] y) '
FEEDS = {"x": np.arange(9, dtype=np.float32).reshape(3, 3)}


def model(body: str):
    return text_model(HEAD + body, w=weights(3, 3))


def test_the_runtime_answers_right_before_a_gemm():
    found = model("{ t = Transpose<perm=[0,1]>(x) y = Gemm(t, w) }")
    normalize(found, opsets=range(18, 22), ir_version=10)
    assert [node.op_type for node in found.graph] == ["Gemm"]
    np.testing.assert_allclose(run(found, FEEDS)["y"], FEEDS["x"] @ weights(3, 3), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("{ t = Transpose<perm=[1,0]>(x) y = Gemm(t, w) }", ["Transpose", "Gemm"]),
        ("{ t = Transpose(x) y = Gemm(t, w) }", ["Transpose", "Gemm"]),
        ("{ y = Transpose<perm=[0,1]>(x) z = Gemm(y, w) }", ["Transpose", "Gemm"]),
        ("{ t = Transpose<perm=[0,1]>(x) u = Transpose<perm=[0,1]>(t) y = Add(u, w) }", ["Add"]),
    ],
)
def test_others_stay(body, kept):
    found = model(body)
    bypass_identity_transposes(found)
    assert [node.op_type for node in found.graph] == kept
    assert not bypass_identity_transposes(found).modified
