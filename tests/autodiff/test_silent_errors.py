"""Gradients that the bare builder gets silently wrong, and ortboost right.

Each test shows both: the wrong value of the builder, and ortboost's against central differences.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ortboost.autodiff.engine import get_engine
from tests.autodiff.numeric import evaluate, numeric_gradients
from tests.autodiff.oracle import assert_gradients, graph, random_feeds, raw_gradients
from tests.support import ENGINES, native_only, run

native_only()


def raw_is_wrong(model, wrt, feeds):
    """Whether loss, shape or value of the bare builder differ from central differences."""
    expected = numeric_gradients(model, "loss", wrt, feeds)
    (loss,) = evaluate(model, feeds, ["loss"])
    # The bare builder writes running statistics into its inputs.
    found = raw_gradients(model, wrt, {name: array.copy() for name, array in feeds.items()})
    if not np.allclose(found["loss"], loss, rtol=1e-2, atol=1e-2):
        return True
    return any(
        found[name].shape != expected[name].shape
        or not np.allclose(found[name], expected[name], rtol=1e-2, atol=1e-2)
        for name in wrt
    )


CASES = {
    "conv_same_upper": (
        """g (float[2,3,5,6] x, float[4,3,3,3] w) => (float loss) {
            y = Conv<auto_pad="SAME_UPPER">(x, w) z = Mul(y, y)
              loss = ReduceMean<keepdims=0>(z) }""",
        ["x", "w"],
    ),
    "conv_same_lower_stride": (
        """g (float[2,3,5,6] x, float[4,3,3,3] w) => (float loss) {
            y = Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, w) z = Mul(y, y)
            loss = ReduceMean<keepdims=0>(z) }""",
        ["x", "w"],
    ),
    "inference_batch_norm": (
        """g (float[4,3,5] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float loss) {
            q = Mul(v, v) y = BatchNormalization(x, s, b, m, q) z = Mul(y, y)
            loss = ReduceMean<keepdims=0>(z) }""",
        ["x", "s", "b"],
    ),
    "where_broadcast": (
        """g (float[3,4] x, float[4] w) => (float loss) {
            zero = Constant<value_float=0.0>() c = Greater(x, zero) y = Where(c, x, w)
            z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }""",
        ["w"],
    ),
    "pow_broadcast_base": (
        """g (float[3,4] x, float[4] w) => (float loss) {
            e = Abs(x) p = Exp(w) y = Pow(p, e) loss = ReduceMean<keepdims=0>(y) }""",
        ["w"],
    ),
    "split_partly_used": (
        """g (float[2] x, float[6] w) => (float loss) {
            a, b, c = Split<num_outputs=3>(w) q = Mul(a, b) y = Mul(q, x)
            loss = ReduceMean<keepdims=0>(y) }""",
        ["w"],
    ),
    "gathers_of_all_parts": (
        """g (float[5,3] x, float[3] w) => (float loss) { q = Mul(x, w)
            i = Constant<value_int=0>() j = Constant<value_int=1>() l = Constant<value_int=2>()
            a = Gather<axis=1>(q, i) b = Gather<axis=1>(q, j) d = Gather<axis=1>(q, l)
            zero = Constant<value_float=0.0>() c = Greater(a, zero) y = Where(c, b, zero)
            z = Mul(y, y) k = Greater(d, zero) v = Where(k, z, y)
            loss = ReduceMean<keepdims=0>(v) }""",
        ["w"],
    ),
    "slices_of_all_parts": (
        """g (float[5,3] x, float[3] w) => (float loss) { q = Mul(x, w)
            i = Constant<value_ints=[0]>() j = Constant<value_ints=[1]>()
            l = Constant<value_ints=[2]>() n = Constant<value_ints=[3]>() a = Slice(q, i, j, j)
            b = Slice(q, j, l, j) d = Slice(q, l, n, j)
            zero = Constant<value_float=0.0>() c = Greater(a, zero) y = Where(c, b, zero)
            z = Mul(y, y) k = Greater(d, zero) v = Where(k, z, y)
            loss = ReduceMean<keepdims=0>(v) }""",
        ["w"],
    ),
    "leaky_relu_negative_slope": (
        """g (float[3,4] x) => (float loss) { y = LeakyRelu<alpha=-0.5>(x)
            z = Mul(y, y) loss = ReduceMean<keepdims=0>(z) }""",
        ["x"],
    ),
    "layer_norm_mean_used": (
        """g (float[3,4] x, float[4] s, float[4] b) => (float loss) {
            y, mean, inv = LayerNormalization(x, s, b) z = Mul(y, mean)
            loss = ReduceMean<keepdims=0>(z) }""",
        ["x", "s"],
    ),
    "average_pool_3d": (
        """g (float[1,2,4,4,5] x) => (float loss) {
            y = AveragePool<kernel_shape=[2,2,2]>(x) z = Mul(y, y)
              loss = ReduceSum<keepdims=0>(z) }""",
        ["x"],
    ),
    "average_pool_same": (
        """g (float[1,2,6,7] x) => (float loss) {
            y = AveragePool<kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER">(x)
            z = Mul(y, y) loss = ReduceSum<keepdims=0>(z) }""",
        ["x"],
    ),
    "scatter_add": (
        """g (float[4,3] x, float[2,3] u) => (float loss) {
            i = Constant<value = int64[2,1] {0, 2}>() y = ScatterND<reduction="add">(x, i, u)
            z = Mul(y, y) loss = ReduceSum<keepdims=0>(z) }""",
        ["x", "u"],
    ),
    "log_prob_used": (
        """g (float[3,4] x) => (float loss) { i = Constant<value_ints=[0,3,1]>()
            a, lp = SoftmaxCrossEntropyLoss(x, i) b = ReduceMean<keepdims=0>(lp)
            loss = Sub(a, b) }""",
        ["x"],
    ),
    "gelu_tanh": (
        """g (float[40] x) => (float loss) { k = Constant<value_float=4.0>() h = Mul(x, k)
            y = Gelu<approximate="tanh">(h) r = Mul(y, h) q = Mul(r, k)
            loss = ReduceSum<keepdims=0>(q) }""",
        ["x"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_builder_is_wrong_and_we_are_right(name):
    text, wrt = CASES[name]
    model = graph(text, opset=20)
    feeds = random_feeds(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert raw_is_wrong(model, wrt, feeds)
    assert_gradients(model, wrt, feeds)


@pytest.mark.parametrize("engine", ENGINES)
def test_relu6_has_no_slope_at_0(engine):
    model = graph("""g (float[5] x) => (float loss) {
        low = Constant<value = float {0}>() high = Constant<value = float {6}>()
        y = Clip(x, low, high) loss = ReduceSum<keepdims=0>(y) }""")
    prepared = get_engine(engine)
    prepared.prepare(model)
    found = run(prepared.differentiate(model, "loss", ["x"]), {"x": np.float32([-1, 0, 2, 7, 1])})
    np.testing.assert_array_equal(found["x_grad"], [0, 0, 1, 0, 1])
