import numpy as np
import onnx_ir as ir
import pytest

from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.session import open_session
from ortboost.runtime.stepper import Stepper
from tests.support import ENGINES, model_path, needs_native

TEXT = """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
net (float[N, 4] dy, float[N, 4] y) => (float[N, 4] dx) { dx = com.microsoft.ReluGrad(dy, y) }"""


def answers(model, dy, y):
    return open_session(model, device="cpu").run(None, {"dy": dy, "y": y})[0]


@needs_native
def test_relu_gradient_is_the_same_number():
    model = ir.from_onnx_text(TEXT)
    changed = for_device(model, "cpu")
    assert [node.op_type for node in model.graph] == ["ReluGrad"]
    assert [node.op_type for node in changed.graph] == ["HardSigmoid", "Mul"]
    rng = np.random.default_rng(0)
    dy, y = rng.standard_normal((2, 5, 4)).astype(np.float32)
    y = np.maximum(y, 0)
    np.testing.assert_array_equal(answers(changed, dy, y), answers(model, dy, y) + 0.0)
    assert for_device(changed, "cpu") is changed


@needs_native
def test_what_is_not_finite_stays_so_where_the_unit_is_off():
    changed = for_device(ir.from_onnx_text(TEXT), "cpu")
    dy = np.array([[np.inf, np.inf, np.nan, 1.0]], np.float32)
    y = np.array([[1.0, 0.0, 0.0, 0.0]], np.float32)
    np.testing.assert_array_equal(answers(changed, dy, y), [[np.inf, np.nan, np.nan, 0.0]])


def test_other_devices_keep_the_kernel():
    model = ir.from_onnx_text(TEXT)
    assert for_device(model, "cuda") is model


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "mobilenet_like"])
def test_a_step_computes_the_same(name, engine, monkeypatch):
    """Up to the last digits, since sums have another order; one batch overflows."""
    program = build_program(model_path(name), ProgramConfig(engine=engine))
    rng = np.random.default_rng(0)
    spec = program.catalogue.batch[0]
    x = rng.standard_normal((4, 4, *spec.shape[1:])).astype(np.float32)
    x[1] = np.clip(x[1], -3, 3) * 1e38
    labels = rng.integers(0, 10, (4, 4))
    fast = Stepper(program, device="cpu")
    monkeypatch.setattr(
        "ortboost.runtime.compiled_graph.for_device", lambda model, device, **_: model
    )
    plain = Stepper(program, device="cpu")
    for place in range(4):
        feeds = {spec.name: x[place], "labels": labels[place]}
        one, other = (s.step(feeds, {"learning_rate": 1e-4}) for s in (fast, plain))
        assert one.overflow == other.overflow == (place == 1)
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-4)
    state, reference = fast.state(), plain.state()
    for key, value in reference.items():
        scale = np.abs(value).max(initial=0.0)
        np.testing.assert_allclose(state[key], value, atol=1e-3 * scale + 1e-7, err_msg=key)


def test_the_portable_step_takes_the_cpu_forms():
    program = build_program(model_path("mobilenet_like"), ProgramConfig(engine="portable"))
    changed = for_device(program.step, "cpu")
    assert any(node.attributes.get_int("training_mode", 0) == 1 for node in changed.graph)
    assert not any(node.attributes.get_int("training_mode", 0) for node in program.step.graph)
    assert for_device(changed, "cpu") is changed
