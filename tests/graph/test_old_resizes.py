from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError
from ortboost.graph.normalize import normalize
from tests.support import run, text_model, weights


def model(opset: int, mode: str, scales: list[float]) -> ir.Model:
    if opset < 9:
        node = f'y = Upsample<mode = "{mode}", scales = {scales}>(h)'
    else:
        node = f'y = {"Upsample" if opset == 9 else "Resize"}<mode = "{mode}">(h, s)'
    stored = {} if opset < 9 else {"s": np.float32(scales)}
    declared = "".join(f", float[{array.size}] {name}" for name, array in stored.items())
    return text_model(
        f"""<ir_version: 4, opset_import: ["" : {opset}]>
        net (float[N,2,5,6] x{declared}) => (float[N,2,H,W] y) {{ h = Relu(x) {node} }}""",
        **stored,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("opset", "scales"),
    [
        (7, [1.0, 1.0, 2.0, 2.0]),
        (9, [1.0, 1.0, 1.5, 2.5]),
        (10, [1.0, 1.0, 1.5, 2.5]),
        (10, [1.0, 1.0, 0.5, 3.0]),
        (10, [1.0, 1.0, 0.6, 0.4]),
    ],
)
def test_a_converted_node_takes_the_same_positions(opset, mode, scales):
    before = model(opset, mode, scales)
    x = weights(2, 2, 5, 6)
    expected = run(before.clone(), {"x": x})["y"]
    normalize(before, opsets=range(18, 22), ir_version=10)
    np.testing.assert_allclose(run(before, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [8, 9, 10])
def test_so_does_a_node_between_others(opset):  # the converter names its output anew
    before = model(opset, "linear", [1.0, 1.0, 2.0, 2.0])
    last = before.graph[-1]
    last.outputs[0].name = "inner"
    after = ir.node("Sqrt", [last.outputs[0]])
    after.outputs[0].name, after.outputs[0].type = "y", last.outputs[0].type
    after.outputs[0].shape = last.outputs[0].shape
    before.graph.append(after)
    before.graph.outputs[0] = after.outputs[0]
    x = weights(2, 2, 5, 6)
    expected = run(before.clone(), {"x": x})["y"]
    normalize(before, opsets=range(18, 22), ir_version=10)
    np.testing.assert_allclose(run(before, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_nearest_samples_on_both_sides_are_refused():
    with pytest.raises(ModelError, match="shrinks one axis"):
        normalize(model(10, "nearest", [1.0, 1.0, 0.4, 1.5]), opsets=range(18, 22), ir_version=10)
