"""Roots of sums of powers: no gradient where they are 0; other roots are infinitely steep."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run


def gradient(model, feeds, engine):
    decompose(model, wrt=["x"], loss="loss", engine=get_engine(engine))
    return run(differentiate(model, "loss", ["x"], engine), feeds)["x_grad"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("square", ["Mul(d, d)", "Pow(d, two)"])
@pytest.mark.parametrize(
    ("scaled", "root"),
    [
        ("Mul(q, c)", "Sqrt(v)"),
        ("Mul(c, q)", "Pow(v, half)"),
        ("Div(q, c)", "Sqrt(v)"),
        ("Mul(q, c)", "Pow(v, cdist)"),
    ],
)
def test_a_deviation_of_zero_passes_no_gradient(square, scaled, root, engine):
    """As ``torch.std`` of a channel that is constant: 0, not 0 / 0."""
    model = graph(
        f"""g (float[2,3] x) => (float loss)
        <float two = {{2.0}}, float half = {{0.5}}, float[1] cdist = {{0.49999976}},
         float[1] c = {{1.5}}, int64[1] ax = {{1}}> {{
        m = ReduceMean(x, ax) d = Sub(x, m) s = {square} q = ReduceMean(s, ax) u = {scaled}
        v = Squeeze(u) y = {root} loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    feeds = {"x": np.array([[1, 2, 4], [3, 3, 3]], np.float32)}
    found = gradient(model, feeds, engine)
    d = np.array([-4, -1, 5]) / 3  # from the mean
    factor = 1 / 1.5 if "Div" in scaled else 1.5
    np.testing.assert_allclose(found[0], np.sqrt(factor / (3 * (d**2).sum())) * d, rtol=1e-5)
    np.testing.assert_array_equal(found[1], 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "norm",
    [
        "p = Pow(a, three) u = ReduceSum<keepdims = 0>(p, ax) y = Pow(u, third)",
        "p = Pow(a, three) u = ReduceSum<keepdims = 0>(p, ax) e = Div(one, three) y = Pow(u, e)",
        "b = Relu(x) p = Pow(b, three) u = ReduceSum<keepdims = 0>(p, ax) y = Pow(u, third)",
        """p = Mul(x, x) q = AveragePool<kernel_shape = [3]>(p) i = Abs(q) j = Relu(i)
        u = Mul(three, j) y = Sqrt(u)""",
        """p = Mul(x, x) q = ReduceSum(p, ax) v = Expand(q, rows) r = ReduceSum(p, ax)
        u = Mul(v, r) w = Sqrt(u) y = Max(w, tiny)""",
    ],
)
def test_other_norms_of_zero_pass_no_gradient(norm, engine):
    """`torch.norm` with `p=3`, its LPPool, and the cosine similarity that TorchScript writes."""
    model = graph(
        f"""g (float[1,2,3] x) => (float loss) <float one = {{1.0}}, float three = {{3.0}},
        float third = {{0.33333334}}, float tiny = {{0.00000001}}, int64[1] ax = {{2}},
        int64[1] rows = {{1}}> {{ a = Abs(x) {norm} loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    feeds = {"x": np.array([[[1, 2, 4], [0, 0, 0]]], np.float32)}
    found = gradient(model, feeds, engine)
    assert np.isfinite(found).all()
    assert (found[0, 0] > 0).all()
    np.testing.assert_array_equal(found[0, 1], 0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "inside",
    [
        *("Mul(x, x)", "ReduceSum(x)", "ReduceSum(c)", "ReduceSum(p3)", "Mul(k, x)"),
        *("ReduceSum(m)", "ReduceSum(p1)"),
    ],
)
def test_another_root_of_zero_is_infinitely_steep(inside, engine):
    """Also of a sum of squares times a value with a gradient, which has no limit at 0."""
    model = graph(
        f"""g (float[1] x) => (float loss) <float one = {{1.0}}, float three = {{3.0}}> {{
        p = Mul(x, x) k = ReduceSum<keepdims = 0>(p) c = Pow(x, one) p3 = Pow(x, three)
        m = Mul(one, x) a = Abs(x) p1 = Pow(a, one) z = {inside}
        y = Sqrt(z) loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    feeds = {"x": np.zeros(1, np.float32)}
    assert not np.isfinite(gradient(model, feeds, engine)).all()
