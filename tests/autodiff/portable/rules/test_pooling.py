"""Pools over windows of all forms, ties included, and over whole images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.core.errors import DependencyError, ModelError
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import run


@st.composite
def windows(draw, dilated: bool = True) -> tuple[tuple[int, ...], dict]:
    """The spatial shape of an image, and the attributes of a pool."""
    nd = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(nd)]
    pads = [draw(st.integers(0, kernel[i % nd] - 1)) for i in range(2 * nd)]
    attributes = {
        "kernel_shape": kernel,
        "strides": [draw(st.integers(1, 3)) for _ in range(nd)],
        "pads": pads,
        "ceil_mode": draw(st.integers(0, 1)),
    }
    if draw(st.booleans()):  # side by side, as in most networks
        attributes |= {"strides": kernel, "pads": [0] * (2 * nd)}
    dilations = [draw(st.integers(1, 2 if dilated else 1)) for _ in range(nd)]
    if dilated:
        attributes["dilations"] = dilations
    reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    space = tuple(reach + draw(st.integers(0, 4)) for reach in reaches)
    for axis, (length, reach) in enumerate(zip(space, reaches, strict=True)):
        stride, begin = attributes["strides"][axis], attributes["pads"][axis]
        rest = length + begin + attributes["pads"][nd + axis] - reach
        if -(-rest // stride) * stride >= length + begin:
            # a last window entirely outside the image: runtimes disagree on it
            attributes["ceil_mode"] = 0
    return space, attributes


def make(op: str, x: tuple, attributes: dict, declared: str = "sizes", opset: int = 20):
    """`loss = sum(pool(x) r)`, with the pool itself as an output."""
    dims = {
        "sizes": x,
        "batch": ("N", *x[1:]),
        "symbols": ("N", "C", *(f"L{axis}" for axis in range(len(x) - 2))),
    }[declared]
    written = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    rank = ",".join(f"R{axis}" for axis in range(len(x)))
    return graph(
        f"""g (float[{",".join(map(str, dims))}] x, float[{rank}] r)
            => (float loss, float[{rank}] y) {{
        y = {op}{f"<{written}>" if written else ""}(x) s = Mul(y, r)
        loss = ReduceSum<keepdims = 0>(s) }}""",
        opset,
    )


def gradient(model, x: np.ndarray, seed: int = 1, engine: str = "portable"):
    """The gradient of x, and the r that was fed."""
    shape = run(model, {"x": x, "r": np.zeros((1,) * x.ndim, np.float32)})["y"].shape
    r = np.random.default_rng(seed).integers(1, 9, shape).astype(np.float32)
    result = differentiate(model, "loss", ["x"], engine)
    return run(result, {"x": x, "r": r})["x_grad"], r


DECLARED = st.sampled_from(["sizes", "batch", "symbols"])


@given(windows(), DECLARED, st.integers(0, 99))
@settings(max_examples=120, deadline=None)
def test_max_pool_gives_all_to_the_first_maximum(window, declared, seed):
    space, attributes = window
    shape = (2, 2, *space)
    x = np.random.default_rng(seed).integers(0, 3, shape).astype(np.float32)
    model = make("MaxPool", shape, attributes, declared)
    found, r = gradient(model, x)
    nd = len(space)
    begins = attributes["pads"][:nd]
    wanted = np.zeros(shape)
    for place in np.ndindex(*r.shape):
        best, where = -np.inf, None
        for tap in np.ndindex(*attributes["kernel_shape"]):
            spot = tuple(
                o * s - p + t * d
                for o, s, p, t, d in zip(
                    place[2:],
                    attributes["strides"],
                    begins,
                    tap,
                    attributes["dilations"],
                    strict=True,
                )
            )
            inside = all(0 <= i < length for i, length in zip(spot, space, strict=True))
            if inside and x[(*place[:2], *spot)] > best:
                best, where = x[(*place[:2], *spot)], (*place[:2], *spot)
        assert where is not None
        wanted[where] += r[place]
    np.testing.assert_array_equal(found, wanted)


@given(windows(), st.integers(0, 1), DECLARED)
@settings(max_examples=120, deadline=None)
def test_average_pool_is_the_transpose_of_what_the_runtime_does(window, counted, declared):
    space, attributes = window
    attributes = {**attributes, "count_include_pad": counted}
    elements = int(np.prod(space))
    # row e of this matrix is the pooled image that is 1 at element e
    basis = np.eye(elements, dtype=np.float32).reshape(elements, 1, *space)
    zeros = np.zeros((1,) * basis.ndim, np.float32)
    linear = run(make("AveragePool", basis.shape, attributes), {"x": basis, "r": zeros})["y"]
    x = np.random.default_rng(0).standard_normal((3, 2, *space)).astype(np.float32)
    found, r = gradient(make("AveragePool", x.shape, attributes, declared), x)
    wanted = r.reshape(6, -1) @ linear.reshape(elements, -1).T
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-5, atol=1e-5)


@given(windows(dilated=False))
@settings(max_examples=40, deadline=None)
def test_same_as_the_native_engine(window):
    try:
        get_engine("native")
    except DependencyError as error:
        pytest.skip(str(error))
    space, attributes = window
    if attributes["ceil_mode"] and len(space) == 3:
        return  # refused there
    x = np.random.default_rng(1).integers(0, 4, (2, 2, *space)).astype(np.float32)
    for op in ("MaxPool", "AveragePool"):
        if op == "AveragePool" and (attributes["ceil_mode"] or len(space) == 3):
            continue
        model = make(op, x.shape, attributes, opset=18)
        ours, theirs = (gradient(model, x, engine=name)[0] for name in ("portable", "native"))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", [1, 2, 3])
@pytest.mark.parametrize("declared", ["sizes", "symbols"])
@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}])
def test_lp_pool(norm, declared, attributes):
    model = make(
        "LpPool", (2, 2, 5, 4), {"kernel_shape": [2, 3], "p": norm, **attributes}, declared
    )
    feeds = {"x": random_feeds(model, N=2, C=2, L0=5, L1=4)["x"]}
    strides, pads = attributes.get("strides", [1, 1]), attributes.get("pads", [0, 0, 0, 0])
    out = [
        (n + before + after - k) // step + 1
        for n, before, after, k, step in zip(
            (5, 4), pads[:2], pads[2:], (2, 3), strides, strict=True
        )
    ]
    feeds["r"] = np.random.default_rng(2).standard_normal((2, 2, *out)).astype(np.float32)
    assert_gradients(model, ["x"], feeds, engine="portable")


@pytest.mark.parametrize("text", ["LpPool<kernel_shape = [2]>", "GlobalLpPool<p = 3>"])
def test_the_norm_of_zeros_has_no_gradient(text):
    model = graph(
        f"g (float[1,2,4] x) => (float loss) {{ y = {text}(x) loss = ReduceSum<keepdims = 0>(y) }}"
    )
    result = differentiate(model, "loss", ["x"], "portable")
    found = run(result, {"x": np.zeros((1, 2, 4), np.float32)})["x_grad"]
    np.testing.assert_array_equal(found, np.zeros((1, 2, 4)))


@pytest.mark.parametrize("declared", ["sizes", "symbols"])
@pytest.mark.parametrize("space", [(5,), (3, 2), (2, 1, 3)])
def test_global_pools(space, declared):
    x = np.random.default_rng(3).standard_normal((2, 3, *space)).astype(np.float32)
    axes = tuple(range(2, x.ndim))
    norm = (np.abs(x) ** 3).sum(axes, keepdims=True) ** (1 / 3)
    jacobians = {
        "GlobalAveragePool": np.full_like(x, 1 / np.prod(space)),
        "GlobalMaxPool": x == x.max(axes, keepdims=True),
        "GlobalLpPool": np.sign(x) * (x / norm) ** 2,
    }
    for op, jacobian in jacobians.items():
        attributes = {"p": 3} if op == "GlobalLpPool" else {}
        found, r = gradient(make(op, x.shape, attributes, declared), x)
        np.testing.assert_allclose(found, r * jacobian, rtol=1e-5, atol=1e-6)


def test_of_equal_maxima_the_first_gets_the_gradient():
    model = make("GlobalMaxPool", (1, 1, 2, 2), {})
    found, r = gradient(model, np.ones((1, 1, 2, 2), np.float32))
    np.testing.assert_array_equal(found.ravel(), [r.item(), 0, 0, 0])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_an_empty_batch_has_an_empty_gradient(op):
    model = make(op, (2, 3, 4, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}, "batch")
    result = differentiate(model, "loss", ["x"], "portable")
    feeds = {"x": np.zeros((0, 3, 4, 4), np.float32), "r": np.zeros((0, 3, 2, 2), np.float32)}
    assert run(result, feeds)["x_grad"].shape == (0, 3, 4, 4)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
def test_a_gradient_that_overflowed_stays_where_it_belongs(op):
    attributes = {} if "Global" in op else {"kernel_shape": [2], "strides": [2]}
    model = make(op, (1, 1, 4), attributes)
    result = differentiate(model, "loss", ["x"], "portable")
    r = np.full((1, 1, 1), np.inf, np.float32)
    found = run(result, {"x": np.float32([[[1, 2, 3, 4]]]), "r": r})["x_grad"].ravel()
    wanted = {"MaxPool": [0, np.inf, 0, np.inf], "GlobalMaxPool": [0, 0, 0, np.inf]}
    np.testing.assert_array_equal(found, wanted.get(op, [np.inf] * 4))


def test_indices_that_are_used_may_not_be_column_major():
    model = graph(
        """g (float[1,1,4,4] x) => (float loss, int64[1,1,2,2] i) {
        y, i = MaxPool<kernel_shape = [2,2], strides = [2,2], storage_order = 1>(x)
        loss = ReduceSum<keepdims = 0>(y) }"""
    )
    with pytest.raises(ModelError, match="storage_order"):
        differentiate(model, "loss", ["x"], "portable")
