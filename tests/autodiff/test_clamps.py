"""Bounds before an infinite slope: no gradient, the same values; other clamps stay."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.clamps import clamps_by_selection, has_steep_reader
from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run


def gradient(model, feeds, engine):
    decompose(model, wrt=["x"], loss="loss", engine=get_engine(engine))
    return run(differentiate(model, "loss", ["x"], engine), feeds)["x_grad"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("bounded", "steep", "slope_at_4"),
    [
        ("Clip(x, zero)", "Sqrt(y)", 0.25),
        ("Max(x, zero)", "Sqrt(y)", 0.25),
        ("Relu(x)", "Sqrt(y)", 0.25),
        ("Max(zero, x)", "Pow(y, half)", 0.25),
        ("Min(h, five)", "Acosh(y)", 15**-0.5),
        ("Clip(x, zero)", "Pow(y, half)", 0.25),
        ("Where(m, x, zero)", "Log(y)", 0.25),
        ("Where(m, x, zero)", "Div(one, y)", -1 / 16),
        ("Clip(x, one)", "Acosh(y)", 15**-0.5),
        ("Max(x, like)", "Sqrt(y)", 0.25),  # as the dynamo exporter writes a clamp
    ],
)
def test_a_bound_before_an_infinite_slope_passes_no_gradient(bounded, steep, slope_at_4, engine):
    """As in torch: of `clamp(x, min=0).sqrt()`, and of values that a mask removes later."""
    model = graph(f"""g (float[3] x) => (float loss)
        <float zero = {{0.0}}, float half = {{0.5}}, float one = {{1.0}},
        float five = {{5.0}}> {{
        m = Greater(x, zero) h = Max(x, one)
        like = CastLike(zero, x) y = {bounded} z = {steep} s = Where(m, z, zero)
        loss = ReduceSum<keepdims = 0>(s) }}""")
    feeds = {"x": np.array([-1, 0, 4], np.float32)}
    found = gradient(model, feeds, engine)
    np.testing.assert_allclose(found, [0, 0, slope_at_4], rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("steep", "slope"), [("Acos", -(0.75**-0.5)), ("Asin", 0.75**-0.5), ("Atanh", 1 / 0.75)]
)
def test_a_bound_before_an_inverse_function(steep, slope, engine):
    """The native engine computes these by formulas in which the slope no longer shows."""
    model = graph(f"""g (float[3] x) => (float loss)
        <float one = {{1.0}}, float minus = {{-1.0}}> {{
        y = Clip(x, minus, one) z = {steep}(y) loss = ReduceSum<keepdims = 0>(z) }}""")
    found = gradient(model, {"x": np.array([-2, 0.5, 2], np.float32)}, engine)
    np.testing.assert_allclose(found, [0, slope, 0], rtol=1e-6)


def test_a_factor_moves_a_bound_away_from_the_infinite_slope_but_not_zero():
    model = graph("""g (float[N] x, float[N] c) => (float[N] u, float[N] v) <float half = {0.5}> {
        a = Mul(x, half) u = Atanh(a) b = Mul(c, half) v = Sqrt(b) }""")
    x, c = model.graph.inputs
    assert not has_steep_reader(x, np.array(1.0))
    assert has_steep_reader(c, np.array(0.0))


@pytest.mark.parametrize(
    "to_the_slope",
    [
        "h = Mul(c, half) n = Neg(c) y = Where(m, h, n)",
        "n = Neg(c) h = Mul(c, half) y = Where(m, n, h)",
        "h = Mul(half, c) y = Concat<axis = 0>(h, c)",
        "k = Cast<to = 1>(m) y = Mul(c, k)",
        "y = Mul(signs, c)",
    ],
)
def test_a_bound_that_also_reaches_the_infinite_slope_as_it_is(to_the_slope):
    model = graph(f"""g (float[2] c, bool[2] m) => (float[N] z)
        <float half = {{0.5}}, float[2] signs = {{-1.0, 1.0}}> {{ {to_the_slope} z = Acos(y) }}""")
    assert has_steep_reader(model.graph.inputs[0], np.array(1.0))


@pytest.mark.parametrize(
    "bounded",
    [
        *("Clip(x, zero)", "Clip(x, none, zero)", "Clip(x, zero, one)", "Clip(x, one, zero)"),
        *("Max(x, zero)", "Min(zero, x)", "Relu(x)"),
    ],
)
def test_the_values_stay(bounded):
    text = f"""g (float[N] x) => (float[N] z) <float zero = {{0.0}}, float one = {{1.0}}> {{
        y = {bounded.replace("none", "")} r = Identity(y) z = Reciprocal(r) }}"""
    kept, rewritten = graph(text), graph(text.replace("Reciprocal(r)", "Reciprocal(y)"))
    assert not clamps_by_selection(kept).modified
    assert clamps_by_selection(rewritten).modified
    assert not clamps_by_selection(rewritten).modified
    assert not {"Clip", "Max", "Min", "Relu"} & {node.op_type for node in rewritten.graph}
    # Not infinity, which becomes the largest number in Clip of onnxruntime.
    x = np.array([-1e30, -2, 0, 0.5, 1, 3, 1e30, np.nan], np.float32)
    np.testing.assert_array_equal(run(rewritten, {"x": x})["z"], run(kept, {"x": x})["z"])


def test_another_clamp_stays_as_it_is():
    model = graph("""g (float[N] x, float[N] c) => (float[N] z, float[N] v, float[N] w)
        <float small = {0.01}, float zero = {0.0}, int16 none = {0}> {
        y = Relu(x) e = Exp(y) z = Div(y, e) u = Max(x, c) v = Sqrt(u)
        a = Clip(x, small) w = Log(a)
        b = Max(x, c, zero) d = Sqrt(b)
        i = Cast<to = 5>(x) j = Max(i, none) f = Cast<to = 1>(j) k = Reciprocal(f) }""")
    stored = len(model.graph.initializers)
    assert not clamps_by_selection(model).modified
    assert len(model.graph.initializers) == stored  # nothing is left behind


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "between",
    [
        *("Reshape(c, shape)", "Unsqueeze(c, axis)", "Mul(four, c)", "Div(c, four)"),
        *("Concat<axis = 0>(c, one)", "Slice(c, axis, shape)", "Abs(n)"),
    ],
)
@pytest.mark.parametrize("clamp", ["Relu(x)", "Max(x, zero)"])
def test_other_operators_between_a_bound_and_an_infinite_slope(clamp, between, engine):
    model = graph(f"""g (float[3] x) => (float loss) <float zero = {{0.0}}, float[1] one = {{1.0}},
        float four = {{4.0}}, int64[1] shape = {{3}}, int64[1] axis = {{0}}> {{
        c = {clamp} n = Neg(c) y = {between} z = Sqrt(y) loss = ReduceSum<keepdims = 0>(z) }}""")
    feeds = {"x": np.array([-1, 0, 4], np.float32)}
    found = gradient(model, feeds, engine)
    slope = {"Mul": 0.5, "Div": 0.125}.get(between[:3], 0.25)
    np.testing.assert_allclose(found, [0, 0, slope], rtol=1e-6)


def test_long_chains_of_masks():
    """A recurrent layer that is written out, with lengths: each step keeps some of the states."""
    steps = "".join(f"c{i} = Clip(h{i}, one) h{i + 1} = Where(m, c{i}, h{i})\n" for i in range(400))
    model = graph(f"""g (float[2] x) => (float[2] y) <float one = {{1.0}}> {{
        m = Greater(x, one) h0 = Identity(x) {steps} y = Sqrt(h400) z = Relu(x) }}""")
    assert not has_steep_reader(model.graph.inputs[0], np.array(1.0))
    assert has_steep_reader(model.graph.node("h0/Identity").outputs[0])
