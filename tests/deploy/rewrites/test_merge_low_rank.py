"""Low-rank corrections are merged into the weight beside them."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.deploy.rewrites.merge_low_rank import merge_low_rank
from tests.deploy.rewrites.support import assert_kept, check, lifted, model_of, ops
from tests.support import weights

X = "float[N,6] x"
W, A, B = weights(6, 5), weights(6, 2, seed=1), weights(2, 5, seed=2)
BATCH = {"x": weights(3, 6, seed=3)}
PATH = "d = MatMul(x, a) u = MatMul(d, b)"
HALF = "h = Constant<value_float = 0.5>()"


def linear(body, **stored):
    stored = {"w": W, "a": A, "b": B, **stored}
    named = ", ".join(f"float[{','.join(map(str, v.shape))}] {k}" for k, v in stored.items())
    return lifted(model_of(body, f"{X}, {named}", "float[N,M] y", **stored))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"p = MatMul(x, w) {PATH} y = Add(p, u)", {"MatMul": 1}),
        (f"p = MatMul(x, w) {PATH} y = Add(u, p)", {"MatMul": 1}),
        (f"{HALF} p = MatMul(x, w) {PATH} s = Mul(u, h) y = Add(p, s)", {"MatMul": 1}),
        (f"{HALF} p = MatMul(x, w) {PATH} s = Mul(h, u) y = Add(s, p)", {"MatMul": 1}),
        (
            f"{HALF} p = MatMul(x, w) q = Add(p, c) {PATH} s = Mul(u, h) y = Add(q, s)",
            {"MatMul": 1, "Add": 1},
        ),
        (f"{HALF} p = Gemm<beta = 2.0>(x, w, c) {PATH} s = Mul(u, h) y = Add(p, s)", {"Gemm": 1}),
        (f"p = Gemm<transB = 1>(x, t, c) {PATH} y = Add(p, u)", {"Gemm": 1}),
        (
            f"v = Transpose<perm = [1, 0]>(t) p = MatMul(x, v) {PATH} y = Add(p, u)",
            {"Transpose": 1, "MatMul": 1},
        ),
        (
            "p = Gemm(x, w, c) d = Gemm<transB = 1>(x, ta) u = Gemm<transB = 1>(d, tb) "
            "y = Add(p, u)",
            {"Gemm": 1},
        ),
    ],
)
def test_a_linear_layer(body, left):
    model = linear(
        body,
        **{
            name: array
            for name, array in {
                "c": weights(5, seed=4),
                "t": W.T.copy(),
                "ta": A.T.copy(),
                "tb": B.T.copy(),
            }.items()
            if f"{name})" in body or f"{name}," in body
        },
    )
    report = check(merge_low_rank, model, BATCH)
    assert len(report.changed) == 1
    assert ops(model) == left


@pytest.mark.parametrize(
    "geometry", ["strides = [2, 2], pads = [1, 1, 1, 1]", 'auto_pad = "SAME_UPPER"', ""]
)
def test_a_convolution(geometry):
    attributes = f"<{geometry}>" if geometry else ""
    model = model_of(
        f"p = Conv{attributes}(x, w, c) d = Conv{attributes}(x, a) u = Conv(d, b) y = Add(p, u)",
        "float[N,3,8,8] x, float[4,3,3,3] w, float[4] c, float[2,3,3,3] a, float[4,2,1,1] b",
        "float[N,4,H,W] y",
        w=weights(4, 3, 3, 3),
        c=weights(4),
        a=weights(2, 3, 3, 3, seed=1),
        b=weights(4, 2, 1, 1, seed=2),
    )
    check(merge_low_rank, model, {"x": weights(2, 3, 8, 8)})
    assert ops(model) == {"Conv": 1}


def test_zeros_as_a_bias_are_none():
    """torch's dynamo exporter writes them where a convolution has no bias."""
    model = model_of(
        "p = Conv(x, w) d = Conv(x, a, z) u = Conv(d, b) y = Add(p, u)",
        "float[N,3,8,8] x, float[4,3,3,3] w, float[2,3,3,3] a, float[4,2,1,1] b, float[2] z",
        "float[N,4,H,W] y",
        w=weights(4, 3, 3, 3),
        a=weights(2, 3, 3, 3, seed=1),
        b=weights(4, 2, 1, 1, seed=2),
        z=np.zeros(2, np.float32),
    )
    check(merge_low_rank, model, {"x": weights(2, 3, 8, 8)})
    assert ops(model) == {"Conv": 1}


SHARED = f"""p = MatMul(x, w) {PATH} y0 = Add(p, u) z = MatMul(y0, n)
    q = MatMul(z, w) e = MatMul(z, a) v = MatMul(e, b) y1 = Add(q, v)"""


@pytest.mark.parametrize("again", ["", "d2 = MatMul(x, a2) u2 = MatMul(d2, b2)"])
def test_layers_that_share_weight_and_adapter(again):
    stored = {"n": weights(5, 6, seed=4)}
    body = f"{SHARED} y = Identity(y1)"
    if again:  # a second adapter
        stored |= {"a2": weights(6, 3, seed=5), "b2": weights(3, 5, seed=6)}
        body = body.replace("z = MatMul(y0", f"{again} y00 = Add(y0, u2) z = MatMul(y00")
        body = body.replace(
            "y = Identity(y1)", "e2 = MatMul(z, a2) v2 = MatMul(e2, b2) y = Add(v2, y1)"
        )
    model = linear(body, **stored)
    check(merge_low_rank, model, BATCH)
    assert ops(model)["MatMul"] == 3
    assert model.graph.node(0).inputs[1].name == "w"
    assert "w/merged" not in {v.name for v in model.graph.initializers.values() if v.uses()}


@pytest.mark.parametrize(
    "layers",
    [
        "p = MatMul(x, w) q = Gemm<transB = 1>(x, w)",
        "t = Transpose(w) p = MatMul(x, w) q = MatMul(x, t)",
        "t = Transpose(w) p = MatMul(x, t) q = Gemm<transB = 1>(x, w)",
        "t = Transpose(w) s = Transpose(w) p = MatMul(x, t) q = Gemm<transB = 1>(x, s)",
    ],
)
def test_layers_that_read_a_square_weight_in_different_orientations(layers):
    model = linear(
        f"{layers} {PATH} y0 = Add(p, u) e = MatMul(x, a) v = MatMul(e, b) y1 = Add(q, v) "
        "y = Sub(y0, y1)",
        w=weights(6, 6),
        b=weights(2, 6, seed=2),
    )
    assert len(check(merge_low_rank, model, BATCH).changed) == 2


def test_a_shared_weight_with_two_adapters_is_kept():
    model = linear(
        SHARED.replace("MatMul(z, a)", "MatMul(z, c)") + " y = Identity(y1)",
        n=weights(5, 6, seed=4),
        c=weights(6, 2, seed=5),
    )
    report = check(merge_low_rank, model, BATCH)
    assert not report.changed
    assert_kept(report, "y0", "'w' is shared with another node")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("y = Add(y0, p)", "the output of 'p' is used elsewhere too"),
        ("n = Neg(w) r = MatMul(x, n) y = Add(y0, r)", "'w' is shared with another node"),
    ],
)
def test_what_is_used_elsewhere_is_kept(more, reason):
    model = linear(f"{HALF} p = MatMul(x, w) {PATH} s = Mul(u, h) y0 = Add(p, s) {more}")
    report = check(merge_low_rank, model, BATCH)
    assert not report.changed
    assert_kept(report, "y0", reason)


def test_a_transposed_weight_that_another_layer_reads_is_kept():
    model = linear(
        f"v = Transpose<perm = [1, 0]>(t) p = MatMul(x, v) {PATH} y0 = Add(p, u) r = Neg(x) "
        "q = MatMul(r, v) y = Add(y0, q)",
        t=W.T.copy(),
    )
    report = check(merge_low_rank, model, BATCH)
    assert_kept(report, "y0", "the weight of 'p' is computed, not stored")


@pytest.mark.parametrize(
    "body",
    [
        "r = Relu(x) p = MatMul(r, w) d = MatMul(x, a) u = MatMul(d, b) y = Add(p, u)",
        "p = MatMul(x, w) d = MatMul(x, a) e = Relu(d) u = MatMul(e, b) y = Add(p, u)",
        "p = MatMul(x, w) d = Gemm<alpha = 2.0>(x, a) u = MatMul(d, b) y = Add(p, u)",
        "p = Gemm<alpha = 2.0>(x, w) d = MatMul(x, a) u = MatMul(d, b) y = Add(p, u)",
        "p = MatMul(x, w) e = Constant<value_floats = [1.0, 2.0]>() d = Gemm(x, a, e) "
        "u = MatMul(d, b) y = Add(p, u)",
    ],
)
def test_other_sums_are_left_alone(body):
    model = linear(body)
    assert not check(merge_low_rank, model, BATCH).changed


@pytest.mark.parametrize(
    ("layer", "first", "last", "shapes"),
    [
        ("dilations = [2, 2], pads = [2, 2, 2, 2]", "pads = [1, 1, 1, 1]", "", {}),
        ("pads = [1, 1, 1, 1]", "pads = [0, 0, 0, 0]", "pads = [1, 1, 1, 1]", {}),
        ("", "", "pads = [1, 1, 1, 1]", {"b": (4, 2, 3, 3)}),  # not of single positions
        ("group = 3", "group = 3", "", {"w": (6, 1, 3, 3), "a": (3, 1, 3, 3), "b": (6, 3, 1, 1)}),
        ("", "", "", {"e": (2,)}),  # a bias, which has no place in the weight
    ],
)
def test_convolutions_of_another_form_are_left_alone(layer, first, last, shapes):
    shapes = {"w": (4, 3, 3, 3), "a": (2, 3, 3, 3), "b": (4, 2, 1, 1), **shapes}
    stored = {name: weights(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    model = model_of(
        f"p = Conv<{layer}>(x, w) d = Conv<{first}>(x, a{', e' * ('e' in shapes)}) "
        f"u = Conv<{last}>(d, b) y = Add(p, u)".replace("<>", ""),
        "float[N,3,8,8] x, "
        + ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in shapes.items()),
        "float[N,C,H,W] y",
        **stored,
    )
    assert not check(merge_low_rank, model, {"x": weights(2, 3, 8, 8)}).changed


def test_a_factor_that_adds_an_axis_is_left_alone():
    """Not run: sessions of onnxruntime 1.19 merge it into the product, and lose the axis."""
    factor = "h = Constant<value = float[1,1,1] {0.5}>()"
    model = linear(f"{factor} p = MatMul(x, w) {PATH} s = Mul(u, h) z = Add(p, s) y = Neg(z)")
    assert not merge_low_rank(model).modified


def test_a_weight_that_would_overflow_is_kept():
    huge = np.full((6, 5), 3e38, np.float32)
    model = linear(
        f"p = MatMul(x, w) {PATH} y = Add(p, u)", w=huge, a=abs(A) * 1e20, b=abs(B) * 1e20
    )
    report = merge_low_rank(model)
    assert not report.changed
    assert "not be finite" in next(iter(report.kept.values()))
