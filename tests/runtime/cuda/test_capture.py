import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.shapes.input_config import InputConfig
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


def text(body, inputs="float[2,3] x, bool c", outputs="float[a,b] y"):
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )


@pytest.mark.parametrize("condition", ["bool c", "bool[1] c"])
def test_branches_of_different_shapes_stay(condition):
    """Where would broadcast the mean to all rows; a condition of shape [1] would add an axis."""
    model = text(
        """y = If(c) <then_branch = t () => (float[2,3] a) { a = Identity(x) },
        else_branch = e () => (float[1,3] m) { k = Constant<value_ints = [0]>()
            m = ReduceMean(x, k) }>""",
        inputs=f"float[2,3] x, {condition}",
    )
    assert [node.op_type for node in capturable(model).graph] == ["If"]
    same = text(
        """y = If(c) <then_branch = t () => (float[2,3] a) { a = Relu(x) },
        else_branch = e () => (float[2,3] m) { m = Neg(x) }>""",
        inputs=f"float[2,3] x, {condition}",
    )
    kept = [node.op_type for node in capturable(same).graph]
    assert kept == (["If"] if "[1]" in condition else ["Relu", "Neg", "Where"])


def test_branches_that_use_the_same_names():
    model = text(
        """y = If(c) <then_branch = t () => (float[2,3] r) { h = Relu(x) r = Exp(h) },
        else_branch = e () => (float[2,3] r) { h = Neg(x) r = Exp(h) }>"""
    )
    form = capturable(model)
    onnx.checker.check_model(ir.to_proto(form), full_check=True)
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    for c in (True, False):
        feeds = {"x": x, "c": np.asarray(c)}
        found = [open_session(m, device="cpu").run(None, feeds)[0] for m in (model, form)]
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("count", [33, 70])
def test_many_operands_are_taken_in_groups(count):
    names = [f"p{i}" for i in range(count)]
    lengths = ", ".join(["1"] * count)
    model = text(
        f"""k = Constant<value_ints = [{lengths}]>() {", ".join(names)} = Split<axis = 1>(x, k)
        y = Concat<axis = 0>({", ".join(reversed(names))})""",
        inputs=f"float[2,{count}] x",
    )
    form = capturable(model)
    assert max(len(node.inputs) for node in form.graph) <= 32
    assert max(len(node.outputs) for node in form.graph) <= 32
    x = np.arange(2 * count, dtype=np.float32).reshape(2, count)
    found = [open_session(m, device="cpu").run(None, {"x": x})[0] for m in (model, form)]
    np.testing.assert_array_equal(*found)
