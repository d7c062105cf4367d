"""What is known of tensors that hold shapes, against the lengths at run time."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.graph.shapes.dimensions import REST, Key, as_reshape, elements
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import run, text_model

N, S = ("name", "n"), ("name", "s")
LENGTHS = {"n": 2, "s": 5}
CONSTANTS = (
    "<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, "
    "int64[1] minus = {-1}, int64[2] ends = {0, -1}, int64[1] two = {2}, int64[1] far = {7}, "
    "int64[3] three = {2, 3, 4}, int64[2] pair = {0, 1}, float[1] half = {0.5}, bool[1] yes = {1}>"
)


def found(body: str):
    """The elements of `y`, computed from `x [n, s, 12]` whose shape is `d`, and its model."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,s,12] x, int64[1] fed) => (y) {CONSTANTS} {{ d = Shape(x) {body} }}"""
    )
    infer_shapes(model)
    return elements(model.graph.outputs[0]), model


def value(key: Key) -> int:
    """What a key stands for."""
    if not isinstance(key, tuple):
        return int(key)
    if key[0] == "name":
        return LENGTHS[key[1]]
    a, b = value(key[1]), value(key[2])
    return {"Add": a + b, "Sub": a - b, "Mul": a * b, "Div": int(a / b) if b else 0}[key[0]]


KNOWN = {
    "y = Shape(x)": [N, S, 12],
    "y = Shape<start = 1>(x)": [S, 12],
    "y = Shape<start = -2, end = -1>(x)": [S],
    "y = Gather(d, zero)": [N],
    "y = Gather(d, ends)": [N, 12],
    "y = Slice(d, second, far)": [S, 12],
    "y = Slice(d, first, two, first)": [N, S],
    "y = Slice(d, first, far, first, two)": [N, 12],
    "y = Concat<axis = 0>(minus, d)": [-1, N, S, 12],
    "a = Gather(d, one) y = Unsqueeze(a, first)": [S],
    "a = Slice(d, first, second) y = Squeeze(a, first)": [N],
    "a = Cast<to = 6>(d) y = Cast<to = 7>(a)": [N, S, 12],
    "a = CastLike(d, first) y = Add(a, first)": [N, S, 12],
    "a = CastLike(d, half) y = Cast<to = 7>(a)": None,
    "y = Mul(d, second)": [N, S, 12],
    "y = Mul(d, d)": [("Mul", N, N), ("Mul", S, S), 144],
    "y = Add(first, d)": [N, S, 12],
    "y = Add(d, two)": [("Add", N, 2), ("Add", S, 2), 14],
    "y = Sub(d, first)": [N, S, 12],
    "y = Sub(two, d)": [("Sub", 2, N), ("Sub", 2, S), -10],
    "y = Div(d, second)": [N, S, 12],
    "y = Div(d, far)": [("Div", N, 7), ("Div", S, 7), 1],
    "a = Sub(two, far) y = Div(a, two)": [-2],  # truncated toward zero
    "a = Equal(d, minus) y = Cast<to = 7>(a)": None,  # a truth value is no length
    "m = Concat<axis = 0>(minus, minus, minus) y = Equal(d, m)": [False] * 3,
    "y = Equal(d, d)": [True] * 3,
    "y = Equal(three, d)": None,  # unless the lengths are known
    "m = Concat<axis = 0>(minus, minus, minus) c = Equal(d, m) y = Where(c, three, d)": [N, S, 12],
    "c = Equal(d, d) y = Where(c, three, d)": [2, 3, 4],
    # what depends on more than shapes, or has no such elements
    "y = Identity(fed)": None,
    "y = Add(d, fed)": None,
    "y = Concat<axis = 0>(d, fed)": None,
    "y = Gather(d, fed)": None,
    "y = Gather(three, far)": None,
    "y = Slice(d, first, fed)": None,
    "y = Slice(d, two, first, first, minus)": None,
    "y = Mul(d, pair)": None,
    "a = Cast<to = 1>(d) y = Cast<to = 7>(a)": None,
    "y = Identity(half)": None,
    "y = Equal(d, second)": None,
    "c = Equal(d, d) y = Where(c, three, second)": None,
    "c = Equal(fed, first) y = Where(c, two, first)": None,
    "a = Shape(d) y = Mul(a, a)": [9],
}


@pytest.mark.parametrize("body", KNOWN)
def test_elements(body):
    keys, model = found(body)
    assert keys == KNOWN[body]
    if keys is not None:
        feeds = {"x": np.zeros((2, 5, 12), np.float32), "fed": np.zeros(1, np.int64)}
        (computed,) = run(model, {v.name: feeds[v.name] for v in model.graph.inputs}).values()
        assert [value(key) for key in keys] == np.reshape(computed, -1).tolist()


@pytest.mark.parametrize(
    ("wanted", "source", "shape"),
    [
        ([N, S, 768], [N, S, 12, 64], [0, 0, 768]),
        ([N, 12, S], [N, S, 12], None),  # two dimensions that no constant expresses
        ([N, REST], [N, S], [0, -1]),
        ([0, N], [N, 0], None),
        ([S, 12], [12, S], [-1, 12]),
        ([24], [N, 12], None),
        ([N, 24], [N, 12], [-1, 24]),  # a name that may be wrong: the remainder
    ],
)
def test_shapes_of_a_reshape(wanted, source, shape):
    assert as_reshape(wanted, source) == shape


def test_a_length_without_a_name_is_not_negative():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[?,3] x) => (y) <int64[2] minus = {-1, -1}, int64[2] two = {2, 2}>
        { d = Shape(x) y = Equal(d, minus) z = Equal(d, two) }"""
    )
    y, z = (node.outputs[0] for node in model.graph if node.op_type == "Equal")
    assert elements(y) == [False, False]
    assert elements(z) is None
