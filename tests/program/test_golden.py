"""Gradients, losses, logits and running statistics of the shipped models against PyTorch."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig
from ortboost.optimizers import Momentum
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import ENGINES, NAMES, WITH_NORM, golden, model_path, run, stepper

SCALES = {"off": NO_SCALE, "dynamic": DynamicScaleConfig(init_scale=2.0**12)}


def without_dropout(name: str) -> onnx.ModelProto:
    """The shipped file with every dropout ratio at 0, which is how PyTorch computed the numbers."""
    proto = onnx.load(model_path(name))
    zero = onnx.numpy_helper.from_array(np.float32(0), "no_dropout")
    for node in proto.graph.node:
        if node.op_type == "Dropout":
            node.input[1] = "no_dropout"
            if zero.name not in [i.name for i in proto.graph.initializer]:
                proto.graph.initializer.append(zero)
    return proto


def feeds_of(name: str) -> dict[str, np.ndarray]:
    z = golden(name)
    divisor = int(z["input_divisor"])
    x = z["input"] if divisor == 0 else (z["input"] / divisor).astype(np.float32)
    key = "tokens" if divisor == 0 else "x"
    return {key: x.astype(np.int64) if divisor == 0 else x, "labels": z["labels"]}


@functools.cache
def stepped(name: str, scale: str, engine: str):
    """The state after one step of SGD with momentum, whose slots are the exact gradients."""
    config = ProgramConfig(optimizer=Momentum(), loss_scale=SCALES[scale], engine=engine)
    program = build_program(without_dropout(name), config)
    training = stepper(program)
    result = training.step(feeds_of(name), {"learning_rate": 0.0})
    assert not result.overflow
    return program, result, training.state()


def gradient_errors(name: str, scale: str, engine: str) -> dict[str, tuple[float, float, float]]:
    """Parameter to error over the stored entries, gradient norm, PyTorch's float32 error."""
    z = golden(name)
    _, _, state = stepped(name, scale, engine)
    found = {}
    for i, parameter in enumerate(z["param_names"]):
        piece = slice(z["sample_offsets"][i], z["sample_offsets"][i + 1])
        gradient = state[f"ortboost/slot/momentum/{parameter}"].reshape(-1).astype(np.float64)
        off = gradient[z["sample_indices"][piece]] - z["sample_values"][piece]
        found[str(parameter)] = (
            float(np.linalg.norm(off)),
            float(z["grad_norms"][i]),
            float(z["grad_errors_f32"][i]),
        )
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, scale, engine):
    # Where PyTorch's own float32 gradient is further off than 1e-5 (gradients that are zero in
    # exact arithmetic, or nearly), its error is the measure; see tools/golden/torch_gradients.py.
    bad = {
        parameter: (error, norm, own)
        for parameter, (error, norm, own) in gradient_errors(name, scale, engine).items()
        if not error <= max(1e-5 * norm, 4 * own)
    }
    assert not bad


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_gradient_has_the_norm_of_pytorch(name, engine):
    # The entries above are a sample; the norms cover every element.
    z = golden(name)
    _, _, state = stepped(name, "off", engine)
    for parameter, norm, own in zip(
        z["param_names"], z["grad_norms"], z["grad_errors_f32"], strict=True
    ):
        found = np.linalg.norm(state[f"ortboost/slot/momentum/{parameter}"].astype(np.float64))
        assert abs(found - norm) <= max(1e-5 * norm, 4 * own), parameter


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_logits(name, engine):
    z = golden(name)
    program, result, _ = stepped(name, "off", engine)
    np.testing.assert_allclose(result.loss, z["loss"], rtol=2e-6)
    model = program.step.clone()
    known = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs[:] = [known[program.prediction]]
    feeds = {**program.initial, **feeds_of(name), "learning_rate": np.zeros((), np.float32)}
    logits = run(model, feeds)[program.prediction]
    np.testing.assert_allclose(logits, z["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WITH_NORM)
def test_running_statistics(name, engine):
    z = golden(name)
    _, _, state = stepped(name, "off", engine)
    for i, buffer in enumerate(z["buffer_names"]):
        expected = z["buffer_values"][z["buffer_offsets"][i] : z["buffer_offsets"][i + 1]]
        np.testing.assert_allclose(state[str(buffer)], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WITH_NORM)
def test_biased_running_variance_on_request(name, engine):
    z = golden(name)
    config = ProgramConfig(running_variance="onnx", loss_scale=NO_SCALE, engine=engine)
    training = stepper(build_program(without_dropout(name), config))
    training.step(feeds_of(name), {"learning_rate": 0.0})
    state, different = training.state(), 0
    for i, buffer in enumerate(z["buffer_names"]):
        expected = z["buffer_values"][z["buffer_offsets"][i] : z["buffer_offsets"][i + 1]]
        if str(buffer).endswith("running_var"):
            # unbiased = 0.9 + 0.1 v n / (n - 1): what is above 0.9 shrinks by (n - 1) / n.
            ratio = (state[str(buffer)] - 0.9) / (expected - 0.9)
            count = 1 / (1 - ratio)
            np.testing.assert_allclose(count, np.median(count), rtol=0.5)
            different += int((ratio < 1).all())
        else:
            np.testing.assert_allclose(state[str(buffer)], expected, rtol=1e-5, atol=1e-6)
    assert different > 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NAMES)
def test_evaluation_agrees_with_the_file_in_inference_mode(name, engine):
    """The evaluation graph on the initial state has the same outputs as the user's file."""
    from tests.graph.test_normalize import inference_bytes

    program, _, _ = stepped(name, "off", engine)
    evaluator = stepper(program).evaluator()
    feeds = feeds_of(name)
    answers = evaluator.evaluate(feeds)
    data = {key: value for key, value in feeds.items() if key != "labels"}
    expected = run(inference_bytes(model_path(name)), data)["logits"]
    np.testing.assert_allclose(answers["logits"], expected, rtol=1e-4, atol=1e-5)
    shifted = expected.astype(np.float64) - expected.max(1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_softmax[np.arange(len(expected)), feeds["labels"]].mean()
    np.testing.assert_allclose(answers["loss"], loss, rtol=1e-4)
