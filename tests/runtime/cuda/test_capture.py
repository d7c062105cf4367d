import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.input_config import InputConfig
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cuda.capture import capturable, draws
from ortboost.runtime.cuda.kernels import load_kernels
from ortboost.runtime.cuda.placement import place
from ortboost.runtime.session import open_session
from tests.support import batch_for, model_path, needs_native


def fixed(name, **settings):
    config = ProgramConfig(inputs=InputConfig(dims={"batch": 8}), **settings)
    return build_program(model_path(name), config)


def answers(program, model, scale):
    feeds = {**program.initial, **batch_for(program, 8)}
    feeds["ortboost/loss_scale"] = np.asarray(scale, np.float32)
    feeds |= {spec.name: np.asarray(0.1, np.float32) for spec in program.catalogue.hyper}
    session = open_session(model, device="cpu", threads=1)
    wanted = {value.name for value in session.get_inputs()}
    assert "ortboost/loss_scale" in wanted
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, {k: v for k, v in feeds.items() if k in wanted})
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("scale", [1024.0, np.inf])
@pytest.mark.parametrize("name", ["lenet5", "resnet20", "mobilenet_like"])
def test_the_numbers_are_those_of_the_step(name, scale):
    program = fixed(name, engine="portable")
    form = capturable(program.step)
    before, after = answers(program, program.step, scale), answers(program, form, scale)
    assert bool(before["overflow"]) == (scale == np.inf)
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array, err_msg=key)


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "mobilenet_like"])
def test_nothing_is_left_that_a_capture_refuses(name):
    form = capturable(fixed(name, engine="portable").step)
    onnx.checker.check_model(ir.to_proto(form))
    assert "If" not in {node.op_type for node in form.graph.all_nodes()}
    for release in ("1.19.2", "1.31.1"):
        placed, copies = place(form, load_kernels(f"cuda={release}"))
        assert {row.side for row in placed} == {"cuda"}
        assert copies == []


@needs_native
def test_accumulation_has_two_gates():
    program = fixed("mlp", engine="native", accumulate=2)
    form = capturable(program.step)
    assert "If" not in {node.op_type for node in form.graph.all_nodes()}
    before, after = (answers(program, model, 1024.0) for model in (program.step, form))
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array, err_msg=key)


def test_random_numbers_are_found():
    assert draws(build_program(model_path("transformer_tiny"), ProgramConfig()).step) is not None
    assert draws(build_program(model_path("mlp"), ProgramConfig()).step) is None
