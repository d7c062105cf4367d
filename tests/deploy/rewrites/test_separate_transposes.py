"""float16 MatMul nodes that onnxruntime would fuse with the Transpose before them, and crash."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.deploy.rewrites.separate_transposes import separate_transposes
from ortboost.runtime.session import open_session
from tests.deploy.rewrites.support import model_of, ops
from tests.support import text_model, weights

# What is not opened in the process of the tests: it would take it down.
OPEN = "import sys, onnxruntime as o; o.InferenceSession(sys.argv[1])"


def half(*shape, seed=0):
    return weights(*shape, seed=seed).astype(np.float16)


def product(perm, matrix, *, left=False, dims="n,3,4", dtype="float16"):
    """``MatMul(Transpose(x), w)``, or with the matrix on the left."""
    operands = "w, t" if left else "t, w"
    axes = ",".join(map(str, perm))
    w = half(*matrix).astype(np.float32 if dtype == "float" else np.float16)
    declared = ",".join(map(str, w.shape))
    return model_of(
        f"t = Transpose<perm = [{axes}]>(x) y = MatMul({operands})",
        f"{dtype}[{dims}] x, {dtype}[{declared}] w",
        f"{dtype}[{','.join('abcd'[: len(perm)])}] y",
        w=w,
    )


@pytest.mark.parametrize(
    ("perm", "matrix", "left", "dims", "moved"),
    [
        ((1, 0, 2), (4, 5), False, "n,3,4", True),
        ((1, 2, 0, 3), (4, 5), False, "n,3,2,4", True),
        ((1, 2, 0), (6, 5), False, "6,n,4", False),
        ((1, 0, 2), (2, 6), True, "6,n,4", False),
        ((1, 2, 0), (2, 4), True, "6,n,4", False),
        ((1, 2, 3, 0), (6, 5), False, "6,3,n,4", False),
    ],
)
def test_they_are_parted(perm, matrix, left, dims, moved, tmp_path):
    model = product(perm, matrix, left=left, dims=dims)
    shape = [3 if d == "n" else int(d) for d in dims.split(",")]
    x, w = half(*shape, seed=1), model.graph.initializers["w"].const_value.numpy()
    assert len(separate_transposes(model).changed) == 1
    assert ops(model) == {"Transpose": 1, "MatMul": 1}
    assert (model.graph[0].op_type == "MatMul") is moved
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert not separate_transposes(model).changed
    turned = x.transpose(perm).astype(np.float64)
    expected = w.astype(np.float64) @ turned if left else turned @ w.astype(np.float64)
    ir.save(model, tmp_path / "m.onnx")
    opened = subprocess.run([sys.executable, "-c", OPEN, str(tmp_path / "m.onnx")], check=False)
    assert opened.returncode == 0
    (have,) = open_session(tmp_path / "m.onnx").run(["y"], {"x": x})
    np.testing.assert_allclose(have, expected, rtol=2e-3, atol=2e-3)
    (value,) = model.graph.outputs
    assert value.name == "y"


@pytest.mark.parametrize(
    "model",
    [
        product((1, 0, 2), (4, 5), dtype="float"),
        product((0, 2, 1), (3, 5)),
        product((2, 0, 1), (3, 5)),
        product((1, 0), (4, 5), dims="4,n"),
    ],
    ids=["float32", "last two axes", "another turn", "a matrix"],
)
def test_what_is_left_alone(model):
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not separate_transposes(model).changed
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_what_others_read_stays():
    model = model_of(
        "t = Transpose<perm = [1,0,2]>(x) y = MatMul(t, w) z = Mul(t, t) u = Add(w, w)",
        "float16[n,3,4] x, float16[4,5] w",
        "float16[3,n,5] y, float16[3,n,4] z, float16[4,5] u",
        w=half(4, 5),
    )
    assert separate_transposes(model).changed
    assert ops(model) == {"Transpose": 2, "MatMul": 1, "Mul": 1, "Add": 1}
    assert "w" in model.graph.initializers


def test_the_export_of_a_time_first_model(tmp_path):
    model = text_model(
        """<ir_version: 10, opset_import: ["": 18]>
        net (float[n,3,4] x, float[4,5] w) => (float[n,3,5] y) {
            t = Transpose<perm = [1,0,2]>(x) r = MatMul(t, w) s = Relu(r)
            y = Transpose<perm = [1,0,2]>(s) }""",
        w=weights(4, 5),
    )
    ir.save(model, tmp_path / "m.onnx")
    command = [sys.executable, "-m", "ortboost", "export", "m.onnx", "-o", "h.onnx"]
    done = subprocess.run(
        [*command, "--precision", "fp16", "--no-keep-io-types"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
