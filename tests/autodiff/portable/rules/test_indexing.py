"""Gathers and scatters: repeated and negative indices, large tables, several threads."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.autodiff.portable.adjoint import assert_adjoint
from tests.support import run

few = settings(max_examples=40, deadline=None)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
named = st.integers(0, 7)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@few
@given(
    shapes,
    st.lists(st.integers(0, 4), max_size=2).map(tuple),
    named,
    st.booleans(),
    st.sampled_from([np.int32, np.int64]),
    st.randoms(use_true_random=False),
)
def test_gather(shape, index_shape, named, fed, kind, random):
    axis = random.randrange(len(shape))
    rng = np.random.default_rng(random.randrange(1000))
    index = rng.integers(-shape[axis], shape[axis], index_shape).astype(kind)
    axis -= random.choice([0, len(shape)])
    assert_adjoint("Gather", shape, [np.asarray(index)], named=named, fed=fed, axis=axis)


@pytest.mark.parametrize(
    "places", [0, -1, [0, 1], [-2, -1], [1, 2, 3], [0, 1, 2, 3], [2, 1], [-1, 0]]
)
@pytest.mark.parametrize("named", [0, 2])
def test_gather_of_a_run(places, named):
    index = np.array(places, dtype=np.int64)
    result = assert_adjoint("Gather", (2, 4, 3), [index], named=named, axis=1)
    ops = {node.op_type for node in result.graph}
    if places not in ([2, 1], [-1, 0]):
        assert not ops & {"ScatterElements", "OneHot"}


def test_embedding_is_exact_with_threads():
    rng = np.random.default_rng(0)
    for rows, width, count in ((30, 16, 40_000), (3_000, 64, 4_000)):
        model = graph(
            f"""g (float[{rows},{width}] w, int64[N] i, float[N,{width}] r) => (float loss) {{
            y = Gather(w, i) z = Mul(y, r) loss = ReduceSum<keepdims = 0>(z) }}"""
        )
        index = rng.integers(0, min(rows, 7), count)
        r = rng.integers(-4, 5, (count, width)).astype(np.float32)
        expected = np.zeros((rows, width), np.float32)
        np.add.at(expected, index, r)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 4
        data = ir.to_proto(differentiate(model, "loss", ["w"], "portable")).SerializeToString()
        opened = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        needed = {value.name for value in opened.get_inputs()}
        feeds = {"w": np.zeros((rows, width), np.float32), "i": index, "r": r}
        for _ in range(5):
            (found,) = opened.run(["w_grad"], {k: v for k, v in feeds.items() if k in needed})
            np.testing.assert_array_equal(found, expected)


@few
@given(st.integers(0, 2), named, st.booleans(), st.randoms(use_true_random=False))
def test_gather_nd(batch, named, fed, random):
    shape = (2, 3, 4, 2)
    depth = random.randint(1, len(shape) - batch)
    middle = random.choice([(), (3,), (2, 2)])
    index = np.stack(
        [
            np.random.default_rng(axis).integers(
                -shape[batch + axis], shape[batch + axis], (*shape[:batch], *middle)
            )
            for axis in range(depth)
        ],
        axis=-1,
    )
    assert_adjoint("GatherND", shape, [index], named=named, fed=fed, batch_dims=batch)


@few
@given(shapes, named, st.booleans(), st.randoms(use_true_random=False))
def test_gather_elements(shape, named, fed, random):
    axis = random.randrange(len(shape))
    places = tuple(random.randint(1, dim) if i != axis else 4 for i, dim in enumerate(shape))
    index = np.random.default_rng(1).integers(-shape[axis], shape[axis], places)
    assert_adjoint("GatherElements", shape, [index], named=named, fed=fed, axis=axis)


@pytest.mark.parametrize("dim", ["4", "N"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(
    ("op", "index"),
    [
        ("ScatterND", "int64[2,1] i = {-1, 1}"),
        ("ScatterElements<axis = 0", "int64[2,3] i = {0, 1, 2, 3, -1, 0}"),
    ],
)
def test_scatter(op, index, reduction, dim):
    name = f'{op}{", " if "<" in op else "<"}reduction = "{reduction}">'
    model = graph(
        f"""g (float[{dim},3] x, float[2,3] u) => (float loss) <{index}> {{
        y = {name}(x, i, u) q = Exp(y) loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    assert_gradients(model, ["x", "u"], random_feeds(model, N=4), engine="portable")


@pytest.mark.parametrize("dim", ["4", "N"])
@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scattered_extrema(reduction, axis, dim):
    """The softmax of a graph attention takes a maximum for each node of its edges."""
    model = graph(
        f"""g (float[{dim},3] x, float[2,3] u) => (float loss)
        <int64[2,3] i = {{0, 1, 2, 0, -1, 0}}> {{
        y = ScatterElements<axis = {axis}, reduction = "{reduction}">(x, i, u) q = Exp(y)
        loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    assert_gradients(model, ["x", "u"], random_feeds(model, N=4), engine="portable")


def test_equal_extrema_share_the_gradient():
    """``torch.zeros(3).scatter_reduce(0, i, u, "amax")``: 1/2 for each, and 1/3 with the data."""
    model = graph(
        """g (float[3] x, float[4] u) => (float loss) <int64[4] i = {0, 0, 2, 2}> {
        y = ScatterElements<reduction = "max">(x, i, u) loss = ReduceSum<keepdims = 0>(y) }"""
    )
    gradient = differentiate(model, "loss", ["x", "u"], "portable")
    feeds = {"x": np.zeros(3, np.float32), "u": np.array([1, 1, 0, 0], np.float32)}
    found = run(gradient, feeds)
    np.testing.assert_allclose(found["x_grad"], [0, 1, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(found["u_grad"], [1 / 2, 1 / 2, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.parametrize("axes", ["batch_axis = 0, time_axis = 1", "batch_axis = 1, time_axis = 0"])
def test_reversed_sequences(axes):
    """Of two backward layers in a file of tf2onnx."""
    model = graph(
        f"""g (float[3,3,2] x) => (float loss) <int64[3] n = {{2, 3, 1}}, float[3,3,2] w = {{
        1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9}}> {{
        y = ReverseSequence<{axes}>(x, n) q = Mul(y, w) e = Exp(q) loss = ReduceSum<keepdims = 0>(e)
        }}"""
    )
    feeds = {"x": 0.1 * random_feeds(model)["x"]}
    assert_gradients(model, ["x"], feeds, engine="portable")


def test_zeros_of_scattered_products():
    """``torch.scatter_reduce`` with "prod": a factor of 0 has the product of the others."""
    model = graph(
        """g (float[4] x, float[5] u) => (float loss) <int64[5] i = {0, 0, 1, 2, 2}> {
        y = ScatterElements<reduction = "mul">(x, i, u) loss = ReduceSum<keepdims = 0>(y) }"""
    )
    gradient = differentiate(model, "loss", ["x", "u"], "portable")
    feeds = {
        "x": np.array([2, 0, 5, 7], np.float32),
        "u": np.array([3, 0, 4, 0, 0], np.float32),
    }
    found = run(gradient, feeds)
    np.testing.assert_array_equal(found["x_grad"], [0, 4, 0, 1])
    np.testing.assert_array_equal(found["u_grad"], [0, 6, 0, 0, 0])


def test_scatter_nd_that_adds_is_exact_with_threads():
    """The kernel of onnxruntime loses updates; it is not used."""
    model = graph(
        """g (float[5,8] x, int64[N,1] i, float[N,8] u) => (float[5,8] y) {
        y = ScatterND<reduction = "add">(x, i, u) }"""
    )
    engine = get_engine("portable")
    engine.prepare(model)
    assert "ScatterND" not in {node.op_type for node in model.graph}
    assert not engine.prepare(model)
    rng = np.random.default_rng(0)
    index, u = rng.integers(-5, 5, (30_000, 1)), rng.integers(-4, 5, (30_000, 8)).astype(np.float32)
    expected = np.zeros((5, 8), np.float32)
    np.add.at(expected, index[:, 0], u)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    data = ir.to_proto(model).SerializeToString()
    opened = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (found,) = opened.run(None, {"x": np.zeros((5, 8), np.float32), "i": index, "u": u})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(largest, axis):
    model = graph(
        f"""g (float[4,N] x) => (float loss) <int64[1] k = {{2}}> {{
        y, i = TopK<axis = {axis}, largest = {largest}>(x, k) q = Exp(y)
        loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    assert_gradients(model, ["x"], random_feeds(model, N=5), engine="portable")


@pytest.mark.parametrize("rows", [5, 100])
@pytest.mark.parametrize("dtype", [ir.DataType.DOUBLE, ir.DataType.BFLOAT16])
def test_gather_in_types_that_the_fast_operators_lack(rows, dtype):
    """OneHot has no float64 and no bfloat16, in opset 18 neither has ConstantOfShape."""
    model = graph(f"""g (float[{rows},4] x, int64[3] i) => (float loss) {{
        d = Cast<to = {int(dtype)}>(x) y = Gather(d, i) f = Cast<to = 1>(y) s = Mul(f, f)
        loss = ReduceSum<keepdims = 0>(s) }}""")
    feeds = {"x": random_feeds(model)["x"].round(), "i": np.array([0, -1, 0], np.int64)}
    result = differentiate(model, "loss", ["x"], "portable")
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    expected = np.zeros_like(feeds["x"])
    np.add.at(expected, feeds["i"], 2 * feeds["x"][feeds["i"]])
    np.testing.assert_array_equal(run(result, feeds)["x_grad"], expected)
