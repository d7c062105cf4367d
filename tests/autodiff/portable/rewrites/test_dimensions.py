"""Lengths that must be equal get one name, so that no nodes are added to sum them."""

from __future__ import annotations

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.graph.query import known_shape
from tests.autodiff.oracle import assert_gradients, graph, random_feeds

HEADS = """g (float[batch,4,6] x, float[6,6] w, int64[1] one) => (float loss) {
    h = MatMul(x, w) n = Shape<end = 1>(x) m = Mul(n, one)
    r = Constant<value_ints = [4, 2, 3]>() s = Concat<axis = 0>(m, r)
    a = Reshape(h, s) b = Mul(a, a) c = Constant<value_ints = [-1, 4, 6]>() d = Reshape(b, c)
    y = Add(d, x) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }"""


def test_a_reshape_keeps_the_batch():
    model = graph(HEADS)
    get_engine("portable").prepare(model)
    shapes = {out.name: known_shape(out) for node in model.graph for out in node.outputs}
    assert [shapes[name][0] for name in "abdyz"] == ["batch"] * 5
    result = differentiate(graph(HEADS), "loss", ["x", "w"], "portable")
    reductions = [node for node in result.graph if node.op_type == "ReduceSum"]
    assert all(
        node.inputs[1] is None or node.inputs[1].producer() is None for node in reductions[1:]
    )


def test_a_product_of_lengths_comes_back():
    model = graph(
        """g (float[batch,4,6] x, int64[1] k) => (float loss) {
        r = Constant<value_ints = [6]>() s = Concat<axis = 0>(k, r) a = Reshape(x, s) b = Sin(a)
        c = Constant<value_ints = [-1, 4, 6]>() d = Reshape(b, c) y = Mul(d, x)
        loss = ReduceSum<keepdims = 0>(y) }"""
    )
    get_engine("portable").prepare(model)
    shapes = {out.name: known_shape(out) for node in model.graph for out in node.outputs}
    assert shapes["d"] == shapes["y"] == ("batch", 4, 6)
    assert shapes["a"][0] != "batch"


def test_different_lengths_stay_different():
    model = graph(
        """g (float[N,4] x, float[M,4] w) => (float loss) {
        y = Add(x, w) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }"""
    )
    for n, m in ((3, 1), (1, 3), (2, 2)):
        feeds = random_feeds(model, N=n, M=m)
        assert_gradients(model.clone(), ["x", "w"], feeds, engine="portable")
