import numpy as np
import onnx_ir as ir
import pytest

from ortboost.program.build import build_program
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import open_session
from ortboost.runtime.stepper import Stepper
from tests.support import model_path, native_only

native_only()

TEXT = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
net (float[N, 4] dy, float[N, 4] y) => (float[N, 4] dx) { dx = com.microsoft.ReluGrad(dy, y) }"""


def answers(model, dy, y):
    return open_session(model, device="cpu").run(None, {"dy": dy, "y": y})[0]


def test_relu_gradient_is_the_same_number():
    model = ir.from_onnx_text(TEXT)
    changed = for_device(model, "cpu")
    assert [node.op_type for node in model.graph] == ["ReluGrad"]
    assert [node.op_type for node in changed.graph] == ["Greater", "Cast", "Mul"]
    rng = np.random.default_rng(0)
    dy, y = rng.standard_normal((2, 5, 4)).astype(np.float32)
    y = np.maximum(y, 0)
    np.testing.assert_array_equal(answers(changed, dy, y), answers(model, dy, y) + 0.0)
    assert for_device(changed, "cpu") is changed


def test_what_is_not_finite_stays_so_where_the_unit_is_off():
    changed = for_device(ir.from_onnx_text(TEXT), "cpu")
    dy = np.array([[np.inf, np.inf, np.nan, 1.0]], np.float32)
    y = np.array([[1.0, 0.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(answers(changed, dy, y), [[np.inf, np.nan, np.nan, 0.0]])


def test_other_devices_keep_the_kernel():
    model = ir.from_onnx_text(TEXT)
    assert for_device(model, "cuda") is model


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_a_step_gives_the_same_bits(name, monkeypatch):
    program = build_program(model_path(name))
    rng = np.random.default_rng(0)
    spec = program.catalogue.batch[0]
    feeds = {
        spec.name: rng.standard_normal((4, *spec.shape[1:])).astype(np.float32),
        "labels": rng.integers(0, 10, 4),
    }
    fast = Stepper(program, device="cpu")
    monkeypatch.setattr("ortboost.runtime.compiled_graph.for_device", lambda model, device: model)
    plain = Stepper(program, device="cpu")
    for _ in range(3):
        one, other = (s.step(feeds, {"learning_rate": 0.05}) for s in (fast, plain))
        assert one.loss == other.loss
    state, reference = fast.state(), plain.state()
    assert all(np.array_equal(state[key], reference[key]) for key in reference)
