"""The portable engine: its results, their form, and refusals."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import Engine, differentiate, engine_names, get_engine
from ortboost.autodiff.native.engine import NativeEngine
from ortboost.autodiff.portable import registry
from ortboost.core.errors import ModelError
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.numeric import numeric_gradients
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import ENGINES, run, session

NET = """g (float[N,4] x, float[4,3] w, float[3] b) => (float[N,3] h, float loss) {
    m = MatMul(x, w) h = Add(m, b) t = Tanh(h) s = Mul(t, t) loss = ReduceMean<keepdims=0>(s) }"""


def test_is_an_engine_that_can_always_run():
    assert "portable" in engine_names()
    engine = get_engine("portable")
    assert isinstance(engine, Engine)
    assert engine.unavailable() is None
    assert 18 in engine.opsets


def test_it_is_found_without_a_question_to_the_native_engine(monkeypatch):
    monkeypatch.setattr(NativeEngine, "unavailable", None)  # it would import the runtime
    assert get_engine().name == "portable"


def test_order_of_inputs_and_outputs_names_and_source_untouched():
    model = graph(NET)
    model.metadata_props["made_by"] = "test"
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    result = differentiate(model, "loss", ["b", "w"], "portable")
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert [v.name for v in result.graph.inputs] == ["x", "w", "b"]
    assert [v.name for v in result.graph.outputs] == ["h", "loss", "b_grad", "w_grad"]
    assert [str(v.shape) for v in result.graph.outputs] == ["[N,3]", "[]", "[3]", "[4,3]"]
    assert all(v.dtype == ir.DataType.FLOAT for v in result.graph.outputs)
    assert set(result.opset_imports) == {""}
    assert result.metadata_props["made_by"] == "test"
    names = [node.name for node in result.graph.all_nodes()]
    assert all(names)
    assert len(names) == len(set(names))
    onnx.checker.check_model(ir.to_proto(result), full_check=True)


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_at_any_batch_size(batch):
    model = graph(NET)
    assert_gradients(model, ["w", "b", "x"], random_feeds(model, N=batch), engine="portable")


def test_empty_batch():
    model = graph("""g (float[N,4] x, float[4] w) => (float loss) {
        y = Mul(x, w) t = Tanh(y) loss = ReduceSum<keepdims=0>(t) }""")
    result = differentiate(model, "loss", ["w", "x"], "portable")
    found = run(result, random_feeds(model, N=0))
    np.testing.assert_array_equal(found["w_grad"], np.zeros(4, np.float32))
    assert found["x_grad"].shape == (0, 4)


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(w, w)",
        "y = Add(w, w)",
        "a = Exp(w) b = Mul(w, a) y = Sub(b, w)",
        "y = Sum(w, w, w)",
        "a = Tanh(w) b = Tanh(w) c = Mul(a, b) y = Add(c, a)",
        "a = Identity(w) b = Identity(a) y = Mul(b, w)",
        "k, l = Split<num_outputs = 2>(w) y = Mul(k, k)",
    ],
)
def test_a_tensor_used_several_times(body):
    model = graph(f"g (float[4] w) => (float loss) {{ {body} loss = ReduceSum<keepdims=0>(y) }}")
    assert_gradients(model, ["w"], random_feeds(model), engine="portable")


def test_gradient_of_an_inner_value_and_of_what_comes_before_it():
    model = graph("""g (float[3] w) => (float loss) {
        h = Exp(w) s = Mul(h, h) loss = ReduceSum<keepdims=0>(s) }""")
    feeds = random_feeds(model)
    found = run(differentiate(model, "loss", ["h", "w"], "portable"), feeds)
    inner = np.exp(feeds["w"])
    np.testing.assert_allclose(found["h_grad"], 2 * inner, rtol=1e-5)
    np.testing.assert_allclose(found["w_grad"], 2 * inner * inner, rtol=1e-5)


def test_loss_itself_and_a_parameter_that_is_the_loss():
    model = graph("g (float w) => (float loss) { loss = Mul(w, w) }")
    feeds = {"w": np.array(3, np.float32)}
    found = run(differentiate(model, "loss", ["loss", "w"], "portable"), feeds)
    assert found["loss_grad"] == 1
    assert found["w_grad"] == 6


def test_two_parameters_with_one_gradient_are_two_outputs():
    model = graph("""g (float[3] a, float[3] b) => (float loss) {
        y = Add(a, b) loss = ReduceSum<keepdims=0>(y) }""")
    result = differentiate(model, "loss", ["a", "b"], "portable")
    found = run(result, random_feeds(model))
    np.testing.assert_array_equal(found["a_grad"], np.ones(3))
    np.testing.assert_array_equal(found["b_grad"], np.ones(3))


def test_a_name_that_is_taken():
    model = graph("""g (float[3] w) => (float loss) {
        w_grad = Exp(w) loss = ReduceSum<keepdims=0>(w_grad) }""")
    feeds = random_feeds(model)
    found = run(differentiate(model, "loss", ["w"], "portable"), feeds)
    np.testing.assert_allclose(found["w_grad"], np.exp(feeds["w"]), rtol=1e-6)


def test_frozen_parameters_cost_nothing():
    model = graph(NET)
    whole = differentiate(model, "loss", ["w", "b"], "portable")
    part = differentiate(model, "loss", ["b"], "portable")
    assert sum(n.op_type in ("MatMul", "Gemm") for n in part.graph) == 1
    assert len(list(part.graph)) < len(list(whole.graph))


def test_integer_paths_carry_no_gradient():
    model = graph("""g (float[4] w) => (float loss) {
        i = Cast<to = 7>(w) f = Cast<to = 1>(i) y = Mul(w, f) loss = ReduceSum<keepdims=0>(y) }""")
    found = run(
        differentiate(model, "loss", ["w"], "portable"), {"w": np.float32([1.5, 2.5, 3, 4])}
    )
    np.testing.assert_array_equal(found["w_grad"], [1, 2, 3, 4])


def test_unknown_shapes_are_found_out_at_run_time():
    model = graph("""g (float[A,B] x, float[C] w) => (float loss) {
        y = Mul(x, w) e = Tanh(y) s = Add(e, x) loss = ReduceSum<keepdims=0>(s) }""")
    for value in model.graph.inputs:
        value.shape = None
    for node in model.graph:
        for output in node.outputs:
            output.shape = None
    result = differentiate(model, "loss", ["x", "w"], "portable")
    rng = np.random.default_rng(0)
    for x, w in (((2, 3), (3,)), ((2, 3), (1,)), ((4, 1), (5,)), ((), (2, 1))):
        feeds = {"x": np.asarray(rng.normal(size=x), np.float32)}
        feeds["w"] = np.asarray(rng.normal(size=w), np.float32)
        expected = numeric_gradients(model, "loss", ["x", "w"], feeds)
        found = run(result, feeds)
        for name in ("x", "w"):
            assert found[f"{name}_grad"].shape == feeds[name].shape
            np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("opset", get_engine("portable").opsets)
def test_every_opset_that_it_takes(opset):
    model = graph(NET, opset=opset)
    infer_shapes(model)
    assert_gradients(model, ["w", "b"], random_feeds(model), engine="portable")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Round(w)", "derivative is zero"),
        ("y = MaxRoiPool<pooled_shape=[1,1]>(w, w)", "MaxRoiPool"),
        ("a = Tanh(w) y = Hardmax(a)", "derivative is zero"),
    ],
)
def test_refuses_what_has_no_rule(body, reason):
    model = graph(f"g (float[2,2] w) => (float loss) {{ {body} loss = ReduceSum<keepdims=0>(y) }}")
    with pytest.raises(ModelError, match="no gradient in the portable engine") as error:
        differentiate(model, "loss", ["w"], "portable")
    assert reason in error.value.where
    assert error.value.fix


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("i = Constant<value_int = 0>() g = Gather<axis = 5>(x, i) loss = ReduceSum(g)", "axis"),
        ("c = Concat<axis = 5>(x, x) loss = ReduceSum(c)", "axis"),
        ("c = Conv<kernel_shape = [9]>(x, w) loss = ReduceSum(c)", "kernel_shape [9] is not"),
    ],
)
def test_a_node_that_does_not_fit_its_inputs_is_named(body, reason):
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 18]> net (float[2,3,4] x, float[1,3,2] w) '
        f"=> (float loss) {{ {body} }}"
    )
    infer_shapes(model)
    with pytest.raises(ModelError, match=r"does not fit its inputs|portable") as error:
        differentiate(model, "loss", ["x"], engine="portable")
    assert reason in str(error.value)


def test_every_rule_has_its_algebra():
    for (domain, op_type), rule in registry.rules().items():
        if rule.__module__.startswith("ortboost."):
            assert rule.__doc__, f"{domain}::{op_type}"


def test_running_twice_gives_the_same_bits():
    model = graph(NET)
    feeds = random_feeds(model)
    opened = session(differentiate(model, "loss", ["w"], "portable"))
    first, second = (opened.run(["w_grad"], feeds)[0] for _ in range(2))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("opset", [13, 17, 27])
def test_other_opsets_are_refused(opset):
    """In opset 17 the axes of ReduceMean are an attribute, which the rules would not see."""
    model = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[2,3] x) => (float loss) {{ loss = ReduceMean<keepdims = 0>(x) }}""")
    with pytest.raises(ModelError, match="supports opset 18 to"):
        differentiate(model, "loss", ["x"], "portable")


SETTINGS = {
    "OneHot": "i = Constant<value_ints = [0, 2]>() d = Constant<value_int = 3>() "
    "v = Concat<axis = 0>(w, w) y = OneHot(i, d, v)",
    "Pad": "p = Constant<value_ints = [1, 1]>() z = Constant<value_ints = [0]>() "
    "v = Squeeze(w, z) y = Pad(w, p, v)",
    "Range": "a = Constant<value_float = 0.0>() b = Constant<value_float = 3.0>() "
    "z = Constant<value_ints = [0]>() v = Squeeze(w, z) y = Range(a, b, v)",
    "Unique": "y = Unique(w)",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op_type", SETTINGS)
def test_trained_settings_are_refused(engine, op_type):
    """They have gradients that no rule computes; the rest of the gradient would be wrong."""
    model = graph(f"""g (float[1] w) => (float loss) {{
        {SETTINGS[op_type]} s = Mul(y, w) loss = ReduceSum<keepdims = 0>(s) }}""")
    with pytest.raises(ModelError, match=op_type):
        differentiate(model, "loss", ["w"], engine)


def test_native_bounds_of_clip_are_refused():
    model = graph("""g (float[3] x, float w) => (float loss) {
        y = Clip(x, , w) s = Mul(y, w) loss = ReduceSum<keepdims = 0>(s) }""")
    if "native" in ENGINES:
        with pytest.raises(ModelError, match="bounds"):
            differentiate(model, "loss", ["w"], "native")


def test_the_target_of_castlike_gets_no_gradient():
    """torch's dynamo exporter writes bounds of Clip as CastLike(constant, x)."""
    model = graph("""g (float[N,3] x, float[3] w) => (float loss) {
        h = Mul(x, w) c = Constant<value_float = 0.0>() b = CastLike(c, h) y = Clip(h, b)
        loss = ReduceSum<keepdims = 0>(y) }""")
    result = assert_gradients(model, ["w"], random_feeds(model), engine="portable")
    assert "Less" not in [node.op_type for node in result.graph]


def test_the_native_engine_is_there_where_its_package_is():
    """Its tests skip where it says that it cannot run: they would not notice a wrong answer."""
    installed = {distribution.name for distribution in metadata.distributions()}
    runs = bool(installed & {"onnxruntime-training", "onnxruntime-training-cpu"})
    assert (NativeEngine().unavailable() is None) is runs
