import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import load_kernels
from ortboost.runtime.cuda.placement import place
from ortboost.runtime.peepholes import emulated_for, for_device
from ortboost.runtime.session import open_session, set_seed
from ortboost.transforms.precision import PrecisionConfig
from tests.runtime.cuda.support import inputs, run
from tests.support import batch_for, model_path, text_model

NEWEST, TRAINING = load_kernels("cuda=1.31.1"), load_kernels("cuda=1.19.2")


def step(name: str, compute: str = "fp32"):
    config = ProgramConfig(engine="portable", precision=PrecisionConfig(compute=compute))
    return build_program(model_path(name), config)


def one(text: str, opset: int, **initializers):
    head = f'<ir_version: 8, opset_import: ["" : {opset}]> g '
    return text_model(head + text, **initializers)


def sides(model, kernels=NEWEST):
    return {p.side for p in place(model, kernels)[0] if not p.shape_work}


def outputs(program, model, seed=3):
    """All outputs of a step graph on a batch, 16-bit types emulated on the CPU."""
    set_seed(seed)
    feeds = {**program.initial, **batch_for(program)}
    feeds |= {spec.name: np.asarray(0.1, np.float32) for spec in program.catalogue.hyper}
    session = open_session(emulated_for(model, "cpu"), device="cpu", threads=1)
    wanted = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    answers = session.run(names, {k: v for k, v in feeds.items() if k in wanted})
    return dict(zip(names, answers, strict=True))


@pytest.mark.parametrize(
    "name", ["mlp", "lenet5", "resnet20", "mobilenet_like", "transformer_tiny"]
)
def test_steps_in_bfloat16_stay_on_the_device_with_the_same_bits(name):
    program = step(name, "bf16")
    if program.step.opset_imports[""] < 22:
        pytest.skip("this onnxruntime has no bfloat16 in all operators")
    changed = for_cuda(program.step, NEWEST, fast=False)
    assert "none" in sides(program.step) or "cpu" in sides(program.step)
    assert sides(changed) == {"cuda"}
    before, after = outputs(program, program.step), outputs(program, changed)
    for key, array in before.items():
        np.testing.assert_array_equal(after[key], array, err_msg=key)
    assert for_cuda(changed, NEWEST, fast=False) is changed


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "transformer_tiny"])
def test_other_steps_are_as_they_were(name, compute):
    program = step(name, compute)
    for kernels in (NEWEST, TRAINING):
        assert sides(for_cuda(program.step, kernels), kernels) == {"cuda"}


def test_an_older_opset_that_says_the_same():
    text = """(float[n,6] x, int64[2] s) => (float[a,b] y) {
        r = Relu(x) t = Transpose(r) y = Reshape(t, s) }"""
    model = one(text, 21, s=np.array([3, -1]))
    changed = for_cuda(model, TRAINING)
    assert changed.opset_imports[""] == 20
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    answers = [open_session(m, device="cpu").run(None, {"x": x})[0] for m in (model, changed)]
    np.testing.assert_array_equal(*answers)
    assert for_cuda(model, NEWEST) is model


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        # Another meaning: the names of the modes.
        ("(float[n,1,4,4] x, float[n,4,4,2] g) => (float[a,b,c,d] y) "
         '{ y = GridSample<mode="linear">(x, g) }', 20),
        # A type that came with the opset: Conv of bfloat16.
        ("(bfloat16[n,1,4,4] x, bfloat16[1,1,3,3] w) => (bfloat16[a,b,c,d] y) "
         "{ c = Conv(x, w) y = Dropout(c) }", 22),
    ],
)  # fmt: skip
def test_an_opset_that_is_needed_stays(text, opset):
    for kernels in (NEWEST, TRAINING):
        assert for_cuda(one(text, opset), kernels).opset_imports[""] == opset


def test_operators_are_replaced_inside_branches_too():
    model = one(
        "(float[3] x, bool b) => (float[3] y) { y = If(b) "
        "<then_branch = t () => (float[3] a) { a = Celu<alpha = 2.0>(x) }, "
        "else_branch = e () => (float[3] c) { c = Celu(x) }> }",
        opset=21,
    )
    changed = for_cuda(model, NEWEST)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    assert [n.op_type for n in changed.graph.all_nodes()] == ["If", "Div", "Elu", "Mul", "Elu"]
    for b in (True, False):
        feeds = {"x": np.array([-1, 0, 2], np.float32), "b": np.array(b)}
        np.testing.assert_allclose(run(changed, **feeds), run(model, **feeds), rtol=1e-6)


def test_casts_go_around_what_has_no_short_kernel_inside_branches_too():
    text = (
        "(bfloat16[4] x, bool b) => (bfloat16[4] v) { v = If(b) "
        "<then_branch = t () => (bfloat16[4] a) { a = LeakyRelu(x) }, "
        "else_branch = e () => (bfloat16[4] c) { c = Neg(x) }> }"
    )
    model = one(text, 16)
    changed = for_cuda(model, NEWEST)
    branch = next(iter(changed.graph)).attributes["then_branch"].as_graph()
    assert [node.op_type for node in branch] == ["Cast", "LeakyRelu", "Cast"]
    assert [value.name for value in branch.outputs] == ["a"]
    assert branch.outputs[0].dtype == ir.DataType.BFLOAT16
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    assert [n.op_type for n in model.graph.all_nodes()] == ["If", "LeakyRelu", "Neg"]


def test_a_rank_that_is_known_by_now_brings_no_axes_back_to_the_host():
    model = one(
        "(float[n,3,4] x, int64[1] one) => (float[a,b,c] y) { r = Relu(x) s = Shape(r) k = "
        "Shape(s) o = Expand(one, k) t = Mul(s, o) y = Reshape(r, t) }",
        18,
        one=np.array([1]),
    )
    changed = for_cuda(model, NEWEST)
    assert "Expand" not in {node.op_type for node in changed.graph}
    assert place(changed, NEWEST)[1] == []
    x = np.ones((2, 3, 4), np.float32)
    answers = [open_session(m, device="cpu").run(None, {"x": x})[0] for m in (model, changed)]
    np.testing.assert_array_equal(*answers)


def test_cast_like_is_a_cast():
    model = one("(int64[n] x, float[m] l) => (float[n] y) { y = CastLike(x, l) }", 18)
    changed = for_cuda(model, NEWEST)
    assert [(n.op_type, len(n.inputs)) for n in changed.graph] == [("Cast", 1)]
    answer = open_session(changed, device="cpu").run(
        None, {"x": np.array([1, 2]), "l": np.zeros(1, np.float32)}
    )[0]
    assert answer.dtype == np.float32


def test_steps_get_the_form_for_the_device_that_opens_them():
    model = one("(int64[n] x, float[m] l) => (float[n] y) { y = CastLike(x, l) }", 18)
    assert [n.op_type for n in for_device(model, "cuda").graph] == ["Cast"]
    assert [n.op_type for n in for_device(model, "cpu").graph] == ["CastLike"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axis", [1, -2, 2])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", ["float", "int32"])
def test_the_place_of_the_best_value_is_found_by_top_k(dtype, op, axis, keep):
    """onnxruntime-training 1.19.2 has ArgMax for opset 11 only; on the host, it needs a copy."""
    text = f"""({dtype}[n,3,m] x) => (int64[p,q{",r" if keep else ""}] y) {{
        y = {op}<axis = {axis}, keepdims = {keep}>(x) }}"""
    model = one(text, 18)
    changed = for_cuda(model, TRAINING)
    assert sides(model, TRAINING) == {"cpu"}
    assert sides(changed, TRAINING) == {"cuda"}
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    x = np.random.default_rng(0).integers(0, 3, (4, 3, 5)).astype(dtype.replace("float", "float32"))
    answers = [open_session(m, device="cpu").run(None, {"x": x})[0] for m in (model, changed)]
    np.testing.assert_array_equal(*answers)
    assert for_cuda(changed, TRAINING) is changed


def test_the_last_of_equal_values_is_left_alone():
    model = one("(float[n,3] x) => (int64[n] y) { y = ArgMax<axis = 1, keepdims = 0, "
                "select_last_index = 1>(x) }", 18)  # fmt: skip
    assert for_cuda(model, TRAINING) is model


@pytest.mark.parametrize("alpha", ["", "<alpha = 0.3>"])
def test_celu_is_written_with_elu(alpha):
    model = one(f"(float[n] x) => (float[n] y) {{ y = Celu{alpha}(x) }}", 18)
    changed = for_cuda(model, NEWEST)
    assert sides(changed) == {"cuda"}
    x = np.linspace(-3, 3, 13).astype(np.float32)
    answers = [open_session(m, device="cpu").run(None, {"x": x})[0] for m in (model, changed)]
    np.testing.assert_allclose(*answers, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "mobilenet_like"])
def test_a_whole_step_computes_the_same(name):
    program = build_program(model_path(name), ProgramConfig(engine="portable"))
    changed = for_cuda(program.step, NEWEST)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    feeds = {**program.initial, **batch_for(program, 8), "learning_rate": np.float32(0.01)}
    names = [value.name for value in changed.graph.outputs]
    before = dict(zip(names, run(program.step, **inputs(program.step, feeds)), strict=True))
    after = dict(zip(names, run(changed, **inputs(changed, feeds)), strict=True))
    for key, array in before.items():
        np.testing.assert_allclose(after[key], array, rtol=1e-3, atol=1e-4, err_msg=key)
