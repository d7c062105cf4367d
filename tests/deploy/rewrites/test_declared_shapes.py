"""Models whose outputs do not have the shapes that the file declares; runtimes accept them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.deploy.pipeline import optimize
from tests.support import run, text_model, weights

HEAD = '<ir_version: 10, opset_import: ["" : 18]> net '
WRONG = {
    "rank": ("y = Reshape(r, three)", "n,6", []),
    "one axis": ("h = Reshape(r, three) y = Reshape(h, rest)", "n", []),
    "number": ("y = Reshape(r, triples)", "n,6", []),
    "names": ("y = Reshape(r, t)", "n,6", [3, 8]),
    "expanded": ("u = Slice(r, zero, one, zero) y = Expand(u, t)", "n,6", [5, 6]),
    "squeezed": ("h = Reshape(r, t) y = Squeeze(h)", "n,6", [1, 8, 3]),
}
STORED = {
    "three": np.array([2, -1, 3]),
    "rest": np.array([0, -1]),
    "triples": np.array([-1, 3]),
    "zero": np.array([0]),
    "one": np.array([1]),
}


@pytest.mark.parametrize("case", WRONG)
def test_no_rewrite_relies_on_a_declared_shape(case):
    body, declared, target = WRONG[case]
    stored = ", ".join(f"int64[{array.size}] {name}" for name, array in STORED.items())
    model = text_model(
        f"{HEAD} (float[n,6] x, int64[k] t, {stored}) => (float[{declared}] y) "
        f"{{ r = Relu(x) {body} }}",
        **STORED,
    )
    feeds = {"x": weights(4, 6), "t": np.array(target, np.int64)}
    before = run(model, feeds)["y"]
    _, steps = optimize(model)
    np.testing.assert_array_equal(run(model, feeds)["y"], before)
    assert steps[0].name == steps[-1].name == "declared_shapes"


def test_declared_names_come_back():
    model = text_model(
        f"{HEAD} (float[n,m,3] x, int64[2] s) => (float[batch,scores] y) {{ y = Reshape(x, s) }}",
        s=np.array([0, -1]),
    )
    optimize(model)
    assert str(model.graph.outputs[0].shape) == "[batch,scores]"


def test_a_wrong_number_of_axes_is_corrected_and_told():
    model = text_model(
        f"{HEAD} (float[n,2,3] x, int64[2] s) => (float[n] y) {{ y = Reshape(x, s) }}",
        s=np.array([0, 6]),
    )
    reports, _ = optimize(model)
    changed = {name: what for report in reports for name, what in report.changed.items()}
    assert changed["y"] == "declared as [n], is [n, 6]"
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
