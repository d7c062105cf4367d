"""Reductions over fixed, computed, absent and negative axes; cumulative sums; softmax."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.numeric import numeric_gradients
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import ENGINES, run

OPS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
IDENTITY = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")


def positive(model: ir.Model, **symbols: int) -> dict[str, np.ndarray]:
    return {name: np.abs(x) + np.float32(0.2) for name, x in random_feeds(model, **symbols).items()}


@pytest.mark.parametrize("op_type", [*OPS, "ReduceLogSum"])
@pytest.mark.parametrize("axes", ["", "0", "-1", "0, 2", "-1, -2", "0, 1, 2"])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("shape", ["2,3,2", "N,M,2"])
def test_fixed_axes(op_type, axes, keep, shape):
    given = f"a = Constant<value_ints = [{axes}]>()" if axes else ""
    model = graph(
        f"""g (float[{shape}] x) => (float loss) {{ {given}
        y = {op_type}<keepdims = {keep}>(x{", a" if axes else ""}) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    assert_gradients(model, ["x"], positive(model, N=2, M=3), engine="portable")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceMax", "ReduceMean", "ReduceSum"])
@pytest.mark.parametrize("keep", [0, 1])
def test_repeated_axes(engine, op_type, keep):
    """The standard does not say what they mean; onnxruntime reduces each axis once."""
    text = f"""g (float[3,4] x) => (float loss) {{{{ a = Constant<value_ints = [{{}}]>()
        y = {op_type}<keepdims = {keep}>(x, a) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s) }}}}"""
    once, twice = graph(text.format("1")), graph(text.format("1, -1"))
    feeds = random_feeds(once)
    expected = numeric_gradients(once, "loss", ["x"], feeds)["x"]
    decompose(twice, wrt=["x"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(twice, "loss", ["x"], engine), feeds)["x_grad"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("axes", [[1], [-1, 0], [0, 1, 2], []])
@pytest.mark.parametrize("keep", [0, 1])
def test_axes_computed_in_the_graph(op_type, axes, keep):
    model = graph(
        f"""g (float[N,3,2] x, int64[K] a) => (float loss) {{
        y = {op_type}<keepdims = {keep}>(x, a) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    feeds = {"x": random_feeds(model)["x"], "a": np.array(axes, np.int64)}
    fixed = graph(
        f"""g (float[N,3,2] x) => (float loss) {{ a = Constant<value_ints = {axes or [0, 1, 2]}>()
        y = {op_type}<keepdims = {keep}>(x, a) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    expected = numeric_gradients(fixed, "loss", ["x"], {"x": feeds["x"]})["x"]
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)["x_grad"]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("op_type", IDENTITY)
@pytest.mark.parametrize("given", ["", ", a"])
def test_no_axes_and_noop_is_the_identity(op_type, given):
    model = graph(f"""g (float[2,3] x) => (float loss) {{
        a = Constant<value = int64[0] {{}}>() y = {op_type}<noop_with_empty_axes = 1>(x{given})
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""")
    feeds = random_feeds(model)
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)
    np.testing.assert_allclose(found["x_grad"], 2 * feeds["x"], rtol=1e-6)
    np.testing.assert_allclose(found["loss"], (feeds["x"] ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSumExp"])
def test_no_axes_and_noop_is_refused_where_runtimes_disagree(op_type):
    model = graph(f"""g (float[2,3] x) => (float loss) {{ y = {op_type}<noop_with_empty_axes = 1>(x)
        loss = ReduceSum<keepdims = 0>(y) }}""")
    (reason,) = [r for n in model.graph if (r := get_engine("portable").gradient_support(n))]
    assert "implementations disagree" in reason


@pytest.mark.parametrize("op_type", OPS)
def test_unknown_rank_and_length_zero(op_type):
    model = graph(f"""g (float[N,3] x) => (float loss) {{ a = Constant<value_ints = [1]>()
        y = {op_type}<keepdims = 0>(x, a) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""")
    model.graph.inputs[0].shape = None
    for node in model.graph:
        node.outputs[0].shape = None
    result = differentiate(model, "loss", ["x"], "portable")
    x = np.float32([[1, 2, 3], [0.5, -1, 2]])
    expected = numeric_gradients(model, "loss", ["x"], {"x": x})["x"]
    np.testing.assert_allclose(run(result, {"x": x})["x_grad"], expected, rtol=2e-5, atol=2e-5)
    assert run(result, {"x": np.zeros((0, 3), np.float32)})["x_grad"].shape == (0, 3)


def gradient(body: str, x: list, **more) -> np.ndarray:
    array = np.array(x, np.float32)
    dims = ",".join(map(str, array.shape))
    model = graph(f"g (float[{dims}] x) => (float loss) {{ {body} }}")
    return run(differentiate(model, "loss", ["x"], "portable"), {"x": array})["x_grad"]


def test_ties_of_extrema_share_evenly():
    body = "y = ReduceMax<keepdims = 0>(x) loss = Identity(y)"
    np.testing.assert_allclose(gradient(body, [1, 3, 3, 2]), [0, 0.5, 0.5, 0])
    np.testing.assert_allclose(gradient(body.replace("Max", "Min"), [3, 3, 3]), [1 / 3] * 3)


@pytest.mark.parametrize(
    ("x", "expected"),
    [([2, 3, 4], [12, 8, 6]), ([2, 0, 4], [0, 8, 0]), ([0, 3, 0], [0, 0, 0]), ([-2, 5], [5, -2])],
)
def test_product_with_zeros(x, expected):
    body = "y = ReduceProd<keepdims = 0>(x) loss = Identity(y)"
    np.testing.assert_allclose(gradient(body, x), expected, rtol=1e-6)


def test_norm_of_zeros_has_a_zero_gradient():
    body = "y = ReduceL2<keepdims = 0>(x) loss = Identity(y)"
    np.testing.assert_array_equal(gradient(body, [0, 0]), [0, 0])


def test_log_sum_exp_does_not_overflow():
    body = "y = ReduceLogSumExp<keepdims = 0>(x) loss = Identity(y)"
    np.testing.assert_allclose(gradient(body, [1000, 1000, -1000]), [0.5, 0.5, 0], rtol=1e-4)


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumulative_sum(reverse, exclusive, axis):
    model = graph(f"""g (float[N,4] x) => (float loss) {{ a = Constant<value_int = {axis}>()
        h = Neg(x) y = CumSum<reverse = {reverse}, exclusive = {exclusive}>(h, a) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s) }}""")
    assert_gradients(model, ["x"], random_feeds(model), engine="portable")


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_softmax(op_type, axis, size):
    model = graph(f"""g (float[N,4,2] x, float[N,4,2] r) => (float loss) {{
        y = {op_type}<axis = {axis}>(x) s = Mul(y, r) loss = ReduceSum<keepdims = 0>(s) }}""")
    feeds = random_feeds(model)
    feeds["x"] *= size
    assert_gradients(model, ["x"], feeds, engine="portable")


def test_forms_that_are_decomposed_still_work():
    model = graph("""g (float[2,3] x) => (float loss) { y = ReduceL1<noop_with_empty_axes = 1>(x)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }""")
    work, engine = model.clone(), get_engine("portable")
    assert decompose(work, wrt=["x"], loss="loss", engine=engine).modified
    x = random_feeds(model)["x"]
    found = run(engine.differentiate(work, "loss", ["x"]), {"x": x})["x_grad"]
    np.testing.assert_allclose(found, 2 * x, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_extrema_behind_a_convolution_of_unknown_length(op_type):
    """The convolution's rule selects its form by the declared shape of the gradient."""
    model = graph(f"""g (float[N,2,L] x, float[3,2,1] w) => (float loss) <int64[1] last = {{2}}> {{
        a = Abs(x) c = Conv<kernel_shape=[1]>(a, w) m = {op_type}<keepdims=0>(c, last)
        z = Mul(m, m) loss = ReduceSum<keepdims=0>(z) }}""")
    assert_gradients(model, ["x", "w"], random_feeds(model, N=2, L=5), engine="portable")


@pytest.mark.parametrize("body", ["y = ReduceMean(h, a)", "y = GlobalAveragePool(h)"])
@pytest.mark.parametrize("shape", ["1,1,512,256", "N,1,H,W"])
def test_means_over_many_elements_in_16_bits(body, shape):
    """A count above 65,504 is infinite in float16; the CPU runtime would compute it in float32."""
    model = graph(f"""g (float[{shape}] x) => (float loss) {{
        a = Constant<value_ints = [2, 3]>() h = Cast<to = 10>(x) {body} f = Cast<to = 1>(y)
        k = Constant<value_float = 1000.0>() s = Mul(f, k) loss = ReduceSum<keepdims = 0>(s) }}""")
    proto = ir.to_proto(differentiate(model, "loss", ["x"], "portable"))
    given = {"x": np.ones((1, 1, 512, 256), np.float32)}
    with np.errstate(over="ignore"):  # of the evaluator's own mean in float16
        (found,) = ReferenceEvaluator(proto).run(["x_grad"], given)
    np.testing.assert_allclose(found, 1000 / (512 * 256), rtol=1e-2)
