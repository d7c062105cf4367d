"""Matrix products of all ranks, with known and unknown shapes; einsums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortboost.autodiff.engine import differentiate
from ortboost.core.errors import ModelError
from tests.autodiff.oracle import assert_gradients, graph
from tests.autodiff.portable.adjoint import declared
from tests.support import run


def text_of(shape: tuple[int, ...], named: int, letter: str) -> str:
    return ",".join(str(dim).replace("d", letter) for dim in declared(shape, named))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([(1, 1), (1, 3), (3, 1), (3, 3), (2, 2)]), max_size=2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 15),
    st.integers(0, 15),
)
def test_matmul(batch, cut_a, cut_c, sizes, named_a, named_c):
    m, k, n = sizes
    a_batch = tuple(pair[0] for pair in batch)[cut_a:]
    c_batch = tuple(pair[1] for pair in batch)[cut_c:]
    a = (k,) if cut_a == 2 and not batch else (*a_batch, m, k)
    c = (k,) if cut_c == 2 and not batch else (*c_batch, k, n)
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=shape) for name, shape in (("x", a), ("w", c))}
    y = np.matmul(feeds["x"], feeds["w"])
    feeds["r"] = rng.normal(size=y.shape)
    feeds = {name: np.asarray(array, np.float32) for name, array in feeds.items()}
    model = graph(
        f"""g (float[{text_of(a, named_a, "a")}] x, float[{text_of(c, named_c, "c")}] w,
        float[{text_of(y.shape, 15, "r")}] r) => (float loss) {{
        y = MatMul(x, w) p = Mul(y, r) loss = ReduceSum<keepdims = 0>(p) }}"""
    )
    found = run(differentiate(model, "loss", ["x", "w"], "portable"), feeds)
    left, right, g = (feeds[name].astype(np.float64) for name in ("x", "w", "r"))
    if left.ndim == 1:
        left, g = left[None, :], g[..., None, :] if right.ndim > 1 else g
    if right.ndim == 1:
        right, g = right[:, None], g[..., None]
    g = g.reshape(*g.shape[:-2], left.shape[-2], right.shape[-1]) if g.ndim > 1 else g.reshape(1, 1)
    for name, full in (
        ("x", g @ np.swapaxes(right, -1, -2)),
        ("w", np.swapaxes(left, -1, -2) @ g),
    ):
        own = feeds[name]
        matrix = own if own.ndim > 1 else (own[None, :] if name == "x" else own[:, None])
        extra = full.ndim - matrix.ndim
        full = full.sum(axis=tuple(range(extra)))
        axes = tuple(i for i in range(full.ndim - 2) if matrix.shape[i] == 1)
        full = full.sum(axis=axes, keepdims=True).reshape(own.shape)
        np.testing.assert_allclose(found[f"{name}_grad"], full, rtol=1e-4, atol=1e-4)


def test_one_matrix_makes_no_transposed_copy():
    model = graph(
        """g (float[N,T,4] x, float[4,3] w) => (float loss) {
        y = MatMul(x, w) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }"""
    )
    result = differentiate(model, "loss", ["x", "w"], "portable")
    assert "Transpose" not in {node.op_type for node in result.graph}


@pytest.mark.parametrize(("x", "w"), [("3,2,3,4", "3,2,4,5"), ("2,3,4", "5,1,4,6"), ("4", "2,4,3")])
def test_nothing_is_measured_that_is_known(x, w):
    """Batched products whose lengths are in the file: their gradients read no shape at run time."""
    model = graph(
        f"""g (float[{x}] x, float[{w}] w) => (float loss) {{
        y = MatMul(x, w) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    result = differentiate(model, "loss", ["x", "w"], "portable")
    assert "Shape" not in {node.op_type for node in result.graph}
    assert all(v.shape is not None for v in result.graph.outputs)


def test_empty_batch():
    model = graph(
        """g (float[N,2,4] x, float[4,3] w) => (float loss) {
        y = MatMul(x, w) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }"""
    )
    w = np.ones((4, 3), np.float32)
    result = differentiate(model, "loss", ["x"], "portable")
    found = run(result, {"x": np.zeros((0, 2, 4), np.float32), "w": w})
    assert found["x_grad"].shape == (0, 2, 4)


def test_unknown_rank_is_refused():
    model = graph("g (float x, float w) => (float loss) { loss = MatMul(x, w) }")
    for value in model.graph.inputs:
        value.shape = None
    with pytest.raises(ModelError, match="rank of 'x' is unknown"):
        differentiate(model, "loss", ["x"], "portable")


@pytest.mark.parametrize(
    ("equation", "a", "c"),
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
        ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 2, 4)),
        ("...ij,jk->...ik", (2, 3, 4), (4, 2)),
        ("ij,ij->", (3, 4), (3, 4)),
        ("i,j->ij", (3,), (4,)),
        ("ijk,il->kl", (2, 3, 4), (2, 3)),
    ],
)
def test_einsum(equation, a, c):
    model = graph(
        f"""g (float{list(a)} x, float{list(c)} w) => (float loss) {{
        y = Einsum<equation = "{equation}">(x, w) q = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(q) }}"""
    )
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=a).astype(np.float32), "w": rng.normal(size=c).astype(np.float32)}
    assert_gradients(model, ["x", "w"], feeds, engine="portable", tolerance=2e-3)
