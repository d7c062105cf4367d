"""Operators of several inputs: broadcasting of any shapes, ties, exponents, casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from ortboost.autodiff.engine import differentiate
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import run

BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean", "PRelu")


def gradients(body: str, inputs: str, **feeds) -> dict[str, np.ndarray]:
    """Portable gradients of a small graph for all inputs fed as float32."""
    model = graph(f"g ({inputs}) => (float loss) {{ {body} }}")
    arrays = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
    return run(differentiate(model, "loss", list(feeds), "portable"), arrays)


@st.composite
def broadcast(draw):
    """Two shapes that broadcast, either of them dropped to symbols at random places."""
    found = draw(mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=3, min_side=0))
    return found.input_shapes, draw(st.sampled_from(["sizes", "symbols", "ranks"]))


def declared(shape: tuple[int, ...], how: str, name: str) -> str:
    if how == "sizes":
        return f"float[{','.join(map(str, shape))}] {name}" if shape else f"float {name}"
    dims = ",".join(f"{name}{axis}" for axis in range(len(shape)))
    return f"float[{dims}] {name}" if shape else f"float {name}"


@pytest.mark.parametrize("op_type", BINARY)
@given(case=broadcast())
@settings(max_examples=25, deadline=None)
def test_broadcasting(op_type, case):
    (one, other), how = case
    if op_type == "PRelu" and np.broadcast_shapes(one, other) != one:
        return
    rng = np.random.default_rng(len(one) * 7 + len(other))
    feeds = {
        "a": np.asarray(rng.uniform(0.3, 2.0, one), np.float32),
        "c": np.asarray(rng.uniform(0.3, 2.0, other), np.float32),
    }
    if op_type == "PRelu":
        feeds["a"] = np.asarray(feeds["a"] - 1.1, np.float32)
    model = graph(
        f"""g ({declared(one, how, "a")}, {declared(other, how, "c")}) => (float loss) {{
        y = {op_type}(a, c) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}"""
    )
    if how == "ranks":
        for value in model.graph.inputs:
            value.shape = None
    result = differentiate(model, "loss", ["a", "c"], "portable")
    found = run(result, feeds)
    expected = analytic(op_type, feeds["a"].astype(np.float64), feeds["c"].astype(np.float64))
    for name, want in zip("ac", expected, strict=True):
        assert found[f"{name}_grad"].shape == feeds[name].shape
        np.testing.assert_allclose(found[f"{name}_grad"], want, rtol=2e-4, atol=2e-5)


def analytic(op_type: str, a: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """Gradients of ``sum(op(a, c)^2)``, from the textbook."""
    wide_a, wide_c = np.broadcast_arrays(a, c)
    one, with_a = np.ones_like(wide_a), np.where(wide_a >= wide_c, 1.0, 0.0)
    value, slope_a, slope_c = {
        "Add": lambda: (wide_a + wide_c, one, one),
        "Sum": lambda: (wide_a + wide_c, one, one),
        "Mean": lambda: ((wide_a + wide_c) / 2, one / 2, one / 2),
        "Sub": lambda: (wide_a - wide_c, one, -one),
        "Mul": lambda: (wide_a * wide_c, wide_c, wide_a),
        "Div": lambda: (wide_a / wide_c, 1 / wide_c, -wide_a / wide_c**2),
        "Max": lambda: (np.maximum(wide_a, wide_c), with_a, 1 - with_a),
        "Min": lambda: (np.minimum(wide_a, wide_c), 1 - with_a, with_a),
        "Pow": lambda: (
            wide_a**wide_c,
            wide_c * wide_a ** (wide_c - 1),
            wide_a**wide_c * np.log(np.abs(wide_a)),
        ),
        "PRelu": lambda: (
            np.where(wide_a > 0, wide_a, wide_a * wide_c),
            np.where(wide_a > 0, 1.0, wide_c),
            np.minimum(wide_a, 0.0),
        ),
    }[op_type]()
    return [narrow(2 * value * slope_a, a.shape), narrow(2 * value * slope_c, c.shape)]


def narrow(wide: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    total = wide.sum(axis=tuple(range(wide.ndim - len(shape))))
    axes = tuple(k for k, size in enumerate(shape) if size == 1)
    return total.sum(axis=axes, keepdims=True).reshape(shape)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_ties_share_evenly(op_type):
    body = f"y = {op_type}(a, c, c) loss = ReduceSum<keepdims = 0>(y)"
    found = gradients(body, "float[2] a, float[1] c", a=[1, 1], c=[1])
    np.testing.assert_allclose(found["a_grad"], [1 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found["c_grad"], [4 / 3], rtol=1e-6)
    alone = gradients(f"y = {op_type}(a) loss = ReduceSum<keepdims = 0>(y)", "float[2] a", a=[1, 2])
    np.testing.assert_array_equal(alone["a_grad"], [1, 1])


@pytest.mark.parametrize(
    ("bound", "ratio", "slopes"),
    [
        ("float c = {1.0}", "Div(two, y)", [-1, -0.5]),
        ("float[2] c = {1.0, 1.0}", "Div(two, y)", [-1, -0.5]),
        ("float[2] c = {0.0, 2.0}", "Div(y, two)", [0.5, 0.25]),
    ],
)
def test_a_tie_is_shared_where_the_next_slope_is_finite(bound, ratio, slopes):
    """As ``torch.maximum``: a divisor that starts at its bound is trained."""
    model = graph(f"""g (float[2] a) => (float loss) <{bound}, float two = {{2.0}}> {{
        y = Max(a, c) z = {ratio} loss = ReduceSum<keepdims = 0>(z) }}""")
    feeds = {"a": np.array([1, 2], np.float32)}
    found = run(differentiate(model, "loss", ["a"], "portable"), feeds)
    np.testing.assert_array_equal(found["a_grad"], slopes)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("fixed", [True, False])
def test_powers(exponent, fixed):
    base = np.array([0.5, 1.0, 2.5], np.float32)
    if fixed:
        body = f"p = Constant<value_float = {exponent}>() y = Pow(a, p)"
        found = gradients(body + " loss = ReduceSum<keepdims = 0>(y)", "float[3] a", a=base)
    else:
        body = "y = Pow(a, p) loss = ReduceSum<keepdims = 0>(y)"
        found = gradients(body, "float[3] a, float p", a=base, p=exponent)
        wanted = (base**exponent * np.log(base)).sum()
        np.testing.assert_allclose(found["p_grad"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["a_grad"], exponent * base ** (exponent - 1), rtol=1e-5)


def test_powers_at_zero_as_in_pytorch():
    body = "y = Pow(a, p) loss = ReduceSum<keepdims = 0>(y)"
    found = gradients(body, "float[3] a, float[3] p", a=[0, 0, 2], p=[0, 2, 0])
    np.testing.assert_array_equal(found["a_grad"], [0, 0, 0])
    np.testing.assert_allclose(found["p_grad"], [0, 0, np.log(2)], rtol=1e-6)


def test_power_with_an_integer_exponent():
    model = graph("""g (float[3] a, int64[3] p) => (float loss) {
        y = Pow(a, p) loss = ReduceSum<keepdims = 0>(y) }""")
    feeds = {"a": np.array([-2, 0, 3], np.float32), "p": np.array([3, 0, 2])}
    found = run(differentiate(model, "loss", ["a"], "portable"), feeds)
    np.testing.assert_allclose(found["a_grad"], [12, 0, 6])


def test_where_chooses_an_infinite_gradient_away():
    body = """c = Constant<value = bool[2] {1, 0}>() y = Where(c, a, d)
        f = Constant<value_floats = [1.0, inf]>() s = Mul(y, f) loss = ReduceSum<keepdims = 0>(s)"""
    found = gradients(body.replace("inf", "1e30"), "float[2] a, float[1] d", a=[1, 2], d=[1])
    np.testing.assert_array_equal(found["a_grad"], [1, 0])
    np.testing.assert_array_equal(found["d_grad"], np.array([1e30], np.float32))


def test_cast_goes_back_to_the_type_of_its_input():
    model = graph("""g (float[3] a) => (float loss) {
        h = Cast<to = 10>(a) s = Mul(h, h) w = Cast<to = 11>(s) t = CastLike(w, a)
        loss = ReduceSum<keepdims = 0>(t) }""")
    result = differentiate(model, "loss", ["a"], "portable")
    found = run(result, {"a": np.array([1, 2, 3], np.float32)})
    assert result.graph.outputs[1].dtype == ir.DataType.FLOAT
    np.testing.assert_allclose(found["a_grad"], [2, 4, 6])


def test_no_gradient_where_none_is_wanted():
    model = graph("""g (float[N,3] a, float[3] c) => (float loss) {
        y = Mul(a, c) loss = ReduceSum<keepdims = 0>(y) }""")
    result = assert_gradients(model, ["c"], random_feeds(model), engine="portable")
    assert sum(node.op_type == "Mul" for node in result.graph) == 2


@pytest.mark.parametrize("read", ["LogSoftmax(m)", "ReduceLogSumExp(m, ax)"])
def test_a_row_masked_with_infinity_passes_no_gradient(read):
    """As in torch, where ``masked_fill`` or ``where`` hides its NaN or -inf later."""
    model = graph(
        f"""g (float[2,2] x) => (float loss) <bool[2,2] k = {{1, 1, 0, 0}}, float zero = {{0.0}},
        float low = {{-inf}}, int64[1] ax = {{1}}> {{ l = CastLike(low, x) m = Where(k, l, x)
        h = {read} y = Where(k, zero, h) loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    feeds = {"x": np.array([[1, 2], [0, np.log(3)]], np.float32)}
    found = run(differentiate(model, "loss", ["x"], "portable"), feeds)["x_grad"]
    expected = [0.5, 1.5] if "Sum" in read else [0.5, -0.5]
    np.testing.assert_allclose(found[1], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[0], 0)
