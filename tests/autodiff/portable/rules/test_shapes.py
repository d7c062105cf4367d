"""Operators that move elements: the gradient is the adjoint, for all declared shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.autodiff.engine import differentiate
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.autodiff.portable.adjoint import assert_adjoint
from tests.support import run

few = settings(max_examples=40, deadline=None)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
named = st.integers(0, 15)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@few
@given(shapes, named, st.booleans(), st.randoms(use_true_random=False))
def test_reshape(shape, named, fed, random):
    count = int(np.prod(shape))
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    first = random.choice(divisors)
    target = random.choice([[first, -1], [-1], [first, count // first], [*shape, 1]])
    assert_adjoint("Reshape", shape, [ints(*target)], named=named, fed=fed)


def test_a_slice_from_the_front_needs_no_place_to_be_found():
    model = graph(
        """g (float[N,3] x) => (float loss) <int64[1] s = {0}, int64[1] e = {2}, int64[1] a = {0}> {
        y = Slice(x, s, e, a) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }"""
    )
    result = differentiate(model, "loss", ["x"], "portable")
    assert "Less" not in {node.op_type for node in result.graph}
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = np.where(np.arange(4)[:, None] < 2, 2 * x, 0)
    np.testing.assert_array_equal(run(result, {"x": x})["x_grad"], expected)


def test_reshape_of_zeros():
    assert_adjoint("Reshape", (2, 3, 4), [ints(0, -1, 2)], named=1)
    assert_adjoint("Reshape", (2, 0, 4), [ints(0, 3)], allowzero=1)
    assert_adjoint("Reshape", (2, 0, 4), [ints(0, 3)], allowzero=1, named=3)
    assert_adjoint("Flatten", (0, 3, 4), [], named=1, axis=1)


@few
@given(shapes, named, st.randoms(use_true_random=False))
def test_transpose_flatten_and_single_axes(shape, named, random):
    order = list(range(len(shape)))
    random.shuffle(order)
    assert_adjoint("Transpose", shape, [], named=named, perm=order)
    assert_adjoint("Transpose", shape, [], named=named)
    assert_adjoint("Flatten", shape, [], named=named, axis=random.randint(-len(shape), len(shape)))
    axes = random.choice([(0,), (-1,), (0, len(shape) + 1)])
    assert_adjoint("Unsqueeze", shape, [ints(*axes)], named=named)
    assert_adjoint("Squeeze", (1, *shape), [ints(random.choice([0, -len(shape) - 1]))], named=named)
    assert_adjoint("Squeeze", (1, *shape), [])


@few
@given(shapes, named, st.booleans(), st.randoms(use_true_random=False))
def test_slice(shape, named, fed, random):
    count = random.randint(1, len(shape))
    axes = random.sample(range(len(shape)), count)
    bounds = [-100, -6, -5, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 100]
    starts, ends = (ints(*(random.choice(bounds) for _ in axes)) for _ in range(2))
    steps = ints(*(random.choice([-3, -2, -1, 1, 2, 3]) for _ in axes))
    given_axes = ints(*(axis - random.choice([0, len(shape)]) for axis in axes))
    if not fed:
        assert_adjoint("Slice", shape, [starts, ends, given_axes, steps], named=named)
        return
    text = ", ".join(str(dim) if not named >> i & 1 else f"d{i}" for i, dim in enumerate(shape))
    model = graph(
        f"""g (float[{text}] x, int64[{count}] s, int64[{count}] e) => (float loss, y)
        <int64[{count}] a = {{{", ".join(map(str, given_axes))}}},
         int64[{count}] t = {{{", ".join(map(str, steps))}}}> {{
            y = Slice(x, s, e, a, t) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = run(differentiate(model, "loss", ["x"], "portable"), {"x": x, "s": starts, "e": ends})
    every = [slice(None)] * len(shape)
    mask = np.zeros(shape, dtype=bool)
    ones = run(
        model, {"x": np.arange(x.size, dtype=np.float32).reshape(shape), "s": starts, "e": ends}
    )
    mask.reshape(-1)[ones["y"].astype(int).reshape(-1)] = True
    np.testing.assert_allclose(found["x_grad"], np.where(mask, 2 * x, 0)[tuple(every)], rtol=1e-5)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("named", [0, 5])
def test_a_slice_without_axes_takes_the_first(named, fed):
    assert_adjoint("Slice", (4, 5, 3), [ints(1, -3), ints(3, 9)], named=named, fed=fed)


@few
@given(shapes, named, st.booleans(), st.randoms(use_true_random=False))
def test_pad_constant(shape, named, fed, random):
    pads = [random.randint(-min(1, (dim - 1) // 2), 3) for _ in range(2) for dim in shape]
    assert_adjoint("Pad", shape, [ints(*pads)], named=named, fed=fed)
    axis = random.randrange(len(shape))
    assert_adjoint("Pad", shape, [ints(2, 1), None, ints(axis - len(shape))], named=named)


@few
@given(
    shapes, named, st.sampled_from(["reflect", "edge", "wrap"]), st.randoms(use_true_random=False)
)
def test_pad_with_copies(shape, named, mode, random):
    limit = 1 if mode == "reflect" else 0
    pads = [random.randint(0, max(dim - limit, 0)) for _ in range(2) for dim in shape]
    assert_adjoint("Pad", shape, [ints(*pads)], named=named, opset=19, mode=mode)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_pad_with_copies_at_known_places_computes_no_indices(mode):
    model = assert_adjoint("Pad", (3, 4), [ints(1, 0, 2, 3)], opset=19, mode=mode)
    assert not {"Pad", "Range"} & {node.op_type for node in model.graph if node.name != "probed"}


def test_pad_with_copies_of_a_large_axis():
    assert_adjoint("Pad", (2, 90), [ints(1, 7, 0, 9)], opset=19, mode="reflect", named=2)
    assert_adjoint("Pad", (2, 90), [ints(1, 7, 0, 9)], opset=19, mode="edge", fed=True)


@few
@given(shapes, named, st.booleans(), st.randoms(use_true_random=False))
def test_expand_and_tile(shape, named, fed, random):
    narrow = tuple(random.choice([1, dim]) for dim in shape)
    target = ints(random.randint(1, 3), *shape)
    assert_adjoint("Expand", narrow, [target], named=named, fed=fed)
    repeats = ints(*(random.randint(1, 3) for _ in shape))
    assert_adjoint("Tile", shape, [repeats], named=named, fed=fed)


@pytest.mark.parametrize("named", [0, 1, 4, 12, 15])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(named, mode):
    assert_adjoint("DepthToSpace", (2, 8, 2, 3), [], named=named, blocksize=2, mode=mode)
    assert_adjoint("SpaceToDepth", (2, 2, 4, 6), [], named=named, blocksize=2)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-1, 0, 2])
def test_trilu(upper, k):
    assert_adjoint("Trilu", (2, 3, 4), [np.array(k)], named=5, upper=upper)


@pytest.mark.parametrize("wrt", [["x"], ["u"], ["x", "u", "w"], ["x", "w"]])
@pytest.mark.parametrize("dims", [("2", "3", "1"), ("N", "N", "M")])
def test_concat(wrt, dims):
    a, b, c = dims
    model = graph(
        f"""g (float[2,{a}] x, float[2,{b}] u, float[2,{c}] w) => (float loss) {{
        y = Concat<axis = -1>(x, u, w) q = Mul(y, y) z = Exp(q)
          loss = ReduceSum<keepdims = 0>(z) }}"""
    )
    assert_gradients(model, wrt, random_feeds(model), engine="portable")


@pytest.mark.parametrize("dim", ["6", "N"])
@pytest.mark.parametrize("use", ["Mul(a, a)", "Exp(b)", "Exp(c)"])
def test_split_partly_used(dim, use):
    model = graph(
        f"""g (float[{dim},2] x) => (float loss) <int64[3] s = {{1, 2, 3}}> {{
        a, b, c = Split(x, s) z = {use} loss = ReduceSum<keepdims = 0>(z) }}"""
    )
    assert_gradients(model, ["x"], random_feeds(model, N=6), engine="portable")


def test_split_by_number():
    model = graph(
        """g (float[7,2] x) => (float loss) { a, b, c = Split<num_outputs = 3>(x)
        p = Mul(a, b) z = ReduceSum<keepdims = 0>(p) q = Exp(c) w = ReduceSum<keepdims = 0>(q)
        loss = Add(z, w) }"""
    )
    assert_gradients(model, ["x"], random_feeds(model), engine="portable")


@pytest.mark.parametrize(
    "body",
    [
        "p = Slice(t, one, two, axes)",
        "p = Slice(t, one, big, axes, two)",
        "p = Gather<axis=2>(t, one)",
        "p = Pad(t, pads, , axes)",
        'p = Pad<mode="edge">(t, pads, , axes)',
    ],
)
def test_zeros_around_between_transposes(body):
    """When moving a Transpose through a Pad, the runtime's optimizer ignores its axes."""
    model = graph(
        "g (float[N,3,4] x, float[3,4] w) => (float loss) <int64[1] one = {1}, int64[1] two = {2}, "
        "int64[1] big = {9}, int64[1] axes = {2}, int64[2] pads = {1, 2}> "
        f"{{ a = Mul(x, w) t = Transpose<perm=[0, 2, 1]>(a) {body} "
        "s = Transpose<perm=[0, 2, 1]>(p) z = Mul(s, s) loss = ReduceSum<keepdims=0>(z) }"
    )
    assert_gradients(model, ["x", "w"], random_feeds(model), engine="portable")
