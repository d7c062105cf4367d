"""Computed shapes become constants, or are computed with fewer nodes; no number changes."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.deploy.rewrites.dead_code import dead_code
from ortboost.graph.shapes.static_shapes import static_shapes
from tests.deploy.rewrites.support import check, lifted, model_of, ops
from tests.support import run, weights

X = {"x": weights(2, 3, 4)}
OTHER = {"x": weights(5, 3, 4, seed=1)}

HEADS = """
s = Shape(x) i0 = Constant<value = int64 {0}>() i1 = Constant<value = int64 {1}>()
n0 = Gather<axis = 0>(s, i0) s1 = Gather<axis = 0>(s, i1)
ax = Constant<value = int64[1] {0}>()
u0 = Unsqueeze(n0, ax) u1 = Unsqueeze(s1, ax)
h = Constant<value = int64[2] {2, 4}>()
t = Concat<axis = 0>(u0, u1, h)
[r] y = Reshape(x, t)
"""


def test_a_computed_shape_becomes_a_constant():
    model = lifted(model_of(HEADS, "float[n,s,8] x", "float[a,b,2,4] y"))
    report = check(static_shapes, model, {"x": weights(2, 3, 8)}, {"x": weights(1, 7, 8)})
    assert report.rewrite == "static_shapes"
    assert report.changed == {"r": "shape [0, 0, 2, 4]"}
    dead_code(model)
    assert ops(model) == {"Reshape": 1}


@pytest.mark.parametrize(
    ("opset", "shape", "left"),
    [
        (18, (3, 2, 8), {"Shape": 1, "Concat": 1}),  # two unknown lengths are read by one node
        (13, (3, 2, 8), {"Shape": 1, "Slice": 1, "Concat": 1}),  # Shape has no start and end
        (13, (3, 2), {"Shape": 1, "Concat": 1}),
    ],
)
def test_a_shape_of_another_value_is_not_copied(opset, shape, left):
    body = HEADS.replace("s = Shape(x)", "s = Shape(z)")
    types = f"float[n,s,8] x, float[{','.join(['m', 'k', '8'][: len(shape)])}] z"
    model = lifted(model_of(body, types, "float[a,b,2,4] y", opset=opset))
    check(static_shapes, model, {"x": weights(2, 3, 8), "z": weights(*shape)})
    dead_code(model)
    assert ops(model) == {**left, "Reshape": 1}


def test_rows_and_the_rest_are_a_flatten():
    """0 and -1 in one shape are not defined for an empty batch."""
    body = """s = Shape<end = 1>(x) t = Shape<start = 1, end = 2>(x) u = Shape<start = 2>(x)
        p = Mul(t, u) q = Concat<axis = 0>(s, p) y = Reshape(x, q)"""
    model = model_of(body, "float[n,a,b] x", "float[k,l] y")
    check(static_shapes, model, X, OTHER, {"x": np.zeros((0, 3, 4), np.float32)})
    dead_code(model)
    assert ops(model) == {"Flatten": 1}


def test_rows_are_followed_through_reshape_and_gemm():
    """What the end of a recurrent network is exported as; inference gives the rows a new name."""
    body = """
    rows = Constant<value = int64[2] {-1, 8}>() flat = Reshape(x, rows) g = Gemm(flat, w)
    s = Shape<start = 0, end = 1>(x) t = Concat<axis = 0>(s, one, rest) [r] y = Reshape(g, t)
    """
    model = lifted(
        model_of(
            body,
            "float[n,1,8] x, float[8,3] w, int64[1] one, int64[1] rest",
            "float[a,b,c] y",
            w=weights(8, 3),
            one=np.array([1]),
            rest=np.array([-1]),
        )
    )
    report = check(static_shapes, model, {"x": weights(2, 1, 8)}, {"x": weights(5, 1, 8)})
    assert report.changed == {"r": "shape [0, 1, -1]"}
    dead_code(model)
    assert ops(model) == {"Reshape": 2, "Gemm": 1}


def test_zero_in_a_shape_keeps_its_meaning():
    body = """s = Shape(z) t = Concat<axis = 0>(zero, s) [r] y = Reshape(x, t)"""
    model = model_of(
        body, "float[n,8] x, float[2,4] z, int64[1] zero", "float[a,b,c] y", zero=np.array([0])
    )
    report = check(static_shapes, model, {"x": weights(3, 8), "z": weights(2, 4)})
    assert "[0, 2, 4]" in next(iter(report.changed.values()))


def test_a_literal_zero_is_left_alone():
    body = """s = Shape<start = 0, end = 1>(z) t = Concat<axis = 0>(s, zero)
        [r] y = Reshape<allowzero = 1>(x, t)"""
    model = model_of(
        body, "float[0,8] x, float[k,4] z, int64[1] zero", "float[a,b] y", zero=np.array([0])
    )
    static_shapes(model)
    assert run(model, {"x": weights(0, 8), "z": weights(3, 4)})["y"].shape == (3, 0)


def test_the_expansion_of_a_token():
    """What torch.expand(batch, -1, -1) is exported as."""
    body = """
    s = Shape<start = 0, end = 1>(x) m = Constant<value = int64[1] {-1}>()
    t = Concat<axis = 0>(s, m, m) ones = Constant<value = int64[3] {1, 1, 1}>()
    neg = Constant<value = int64[3] {-1, -1, -1}>() e = Equal(t, neg)
    w = Where(e, ones, t) [e1] k = Expand(token, w) y = Concat<axis = 1>(k, x)
    """
    model = lifted(
        model_of(
            body, "float[n,3,4] x, float[1,1,4] token", "float[n,4,4] y", token=weights(1, 1, 4)
        )
    )
    report = check(static_shapes, model, X, OTHER)
    assert report.changed == {"e1": "shape computed with fewer nodes"}
    dead_code(model)
    assert ops(model) == {"Shape": 1, "Concat": 2, "Expand": 1}


ON_LENGTHS = {
    "Shape": "l = Shape<start = 2>(x)",
    "Gather": "s = Shape(x) l = Gather(s, I)",
    "Concat": "s = Shape<start = 2>(x) l = Concat<axis = 0>(s, s, s, s)",
    "Slice": "s = Shape(x) l = Slice(s, I, two)",
    "Squeeze": "s = Shape<start = 2>(x) l = Squeeze(s)",
    "Unsqueeze": "s = Shape(x) g = Gather(s, one) l = Unsqueeze(g, O)",
    "Cast": "s = Shape<start = 2>(x) l = Cast<to = 6>(s)",
    **{op: f"s = Shape<start = 2>(x) l = {op}(s, two)" for op in ("Add", "Sub", "Mul", "Div")},
    "Where": "s = Shape<start = 2>(x) e = Equal(s, two) l = Where(e, I, s)",
    "Reshape": "s = Shape<start = 2>(x) l = Reshape(s, I)",
    "Identity": "s = Shape<start = 2>(x) l = Identity(s)",
}


@pytest.mark.parametrize("op", ON_LENGTHS)
def test_what_is_computed_from_known_lengths_is_stored(op):
    numbers = {"O": np.array([0]), "I": np.array([1]), "two": np.array([2]), "one": np.array(1)}
    model = model_of(
        f"{ON_LENGTHS[op]} f = Cast<to = 1>(l) y = Mul(x, f)",
        "float[n,3,4] x, int64[1] O, int64[1] I, int64[1] two, int64 one",
        "float[n,a,b] y",
        **numbers,
    )
    check(static_shapes, model, X, OTHER)
    dead_code(model)
    assert ops(model) == {"Cast": 1, "Mul": 1}


@pytest.mark.parametrize("outputs", ["float[a,b,c] y", "float[a,b,c] y, int64[3] s"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("s = Shape(z) y = Tile(x, s)", 1),
        ("s = Shape(u) y = Expand(x, s)", 1),
        ("s = Shape(z) h = ConstantOfShape(s) y = Mul(x, h)", 0),
        ("s = Shape(z) y = Reshape(v, s)", 1),
    ],
)
def test_every_operator_takes_a_known_shape_as_constant(body, place, outputs):
    """Also if the shape is an output and has to be computed for it."""
    types = "float[1,3,1] x, float[2,1,4] u, float[2,3,4] z, float[n,k,4] v"
    model = model_of(body, types, outputs)
    feeds = {"u": weights(2, 1, 4), "z": weights(2, 3, 4), "v": weights(3, 2, 4)}
    check(static_shapes, model, {"x": weights(1, 3, 1), **feeds})
    (taker,) = (n for n in model.graph if n.op_type in body and n.op_type not in ("Shape", "Mul"))
    assert taker.inputs[place].is_initializer()


def test_a_shape_that_depends_on_data_is_kept():
    model = model_of("[r] y = Reshape(x, t)", "float[n,8] x, int64[2] t", "float[a,b] y")
    assert static_shapes(model).kept == {"r": "its shape depends on more than shapes"}
