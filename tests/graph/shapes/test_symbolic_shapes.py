"""Lengths get names that say what they equal: compared with what runs give, and in gradients."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.shapes.symbolic_shapes import is_cut, name_lengths
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import run, text_model
from tools.zoo.lengths import length_of

CONSTANTS = """<int64 zero = {0}, int64 one = {1}, int64[1] O = {0}, int64[1] I = {1},
    int64[1] three = {3}, int64[1] far = {9223372036854775807}, int64[1] rest = {-1},
    int64[2] rows = {-1, 6}, int64[2] copied = {0, -1},
    int64[2] wide = {-1, 2}, int64[2] tall = {-1, 3},
    int64[7] table = {1, 2, 3, 4, 5, 6, 7}, int64[1] single = {5}, float[4] twice = {1, 1, 2, 1},
    int64[8] around = {0, 0, 0, 1, 0, 0, 0, 1}, int64[8] along = {0, 0, 1, 0, 0, 0, 1, 0}>"""
CASES = {
    "y = Reshape(x, rows)": ["n·s", 6],
    "y = Reshape(x, copied)": ["n", "6·s"],
    "l = Shape<end = 1>(x) t = Concat<axis = 0>(l, O, O) y = Reshape(x, t)": ["n", "s", 6],
    "a = Reshape(x, wide) b = Reshape(a, tall) l = Shape<end = 1>(x) t = Concat<axis = 0>(l, rows) "
    "y = Reshape(b, t)": ["n", "s", 6],
    "l = Shape(x) t = Concat<axis = 0>(l, rest) y = Reshape(x, t)": ["n", "s", 6, 1],
    "l = Shape(k) t = Concat<axis = 0>(l, I) y = Expand(three, t)": ["m", "s", 1],
    "l = Shape(k) y = Expand(k, l)": ["m", "s"],
    "l = Shape(x) y = ConstantOfShape(l)": ["n", "s", 6],
    "l = Shape(x) i = Gather(l, one) y = Range(zero, i, one)": ["s"],
    "l = Shape(x) i = Gather(l, one) y = Range(one, i, one)": [None],
    "l = Shape<end = 1>(x) m = Mul(l, rest) i = Squeeze(m) y = Range(zero, i, one)": [None],
    "l = Shape<start = 1, end = 2>(x) y = Slice(table, O, l, O, I)": ["s≤7"],
    "l = Shape<start = 1, end = 2>(x) y = Slice(table, I, l, O, I)": [None],
    "a = Shape<end = 1>(x) b = Shape<start = 1, end = 2>(x) l = Mul(a, b) "
    "y = Slice(table, O, l, O, I)": [None],
    "l = Shape<start = 1, end = 2>(x) y = Slice(single, O, l, O, I)": [None],
    "l = Shape<start = 1, end = 2>(x) y = Slice(k, O, l, I, I)": ["m", "s"],
    "y = Slice(k, O, far, I, I)": ["m", "s"],
    "y = Slice(k, O, three, I, I)": ["m", None],
    "y = Slice(k, O, far, I, three)": ["m", None],
    "l = Shape(k) y = Tile(w, l)": ["m·n", "6·s"],
    "y = Flatten<axis = 2>(x)": ["n·s", 6],
    "y = Flatten<axis = -1>(h)": ["4·n·s", 2],
    "y = Pad(h, around)": ["n", 4, "s", 4],
    "y = Pad(h, along)": ["n", 4, None, 2],
    "y = Resize(h, , twice)": ["n", 4, None, 2],
    "l = Shape<start = 1>(x) t = Concat<axis = 0>(three, l) a = Cast<to = 7>(t) "
    "y = Resize<axes = [0, 2, 3]>(h, , , a)": [3, 4, None, 6],
    "l = Shape<end = 3>(h) t = Concat<axis = 0>(l, three) "
    'y = Resize<keep_aspect_ratio_policy = "not_larger">(h, , , t)': [None, None, None, None],
    "y = Conv<pads = [1, 0, 1, 0]>(h, c)": ["n", 5, "s", 1],
    "y = Conv<pads = [2, 0, 2, 0], dilations = [2, 1]>(h, c)": ["n", 5, "s", 1],
    "y = Conv<pads = [1, 0, 1, 0], strides = [2, 1]>(h, c)": ["n", 5, None, 1],
    'y = Conv<auto_pad = "SAME_UPPER">(h, c)': ["n", 5, "s", 2],
    "y = Conv(h, c)": ["n", 5, None, 1],
    "a = Transpose(w) y = Gemm<transB = 1>(a, a)": [6, 6],
    "y = Gemm<transB = 1>(w, v)": ["n", 2],
    "y = Gemm<transB = 2>(w, v)": ["n", 2],  # true as any number but 0
    "a = Transpose<perm = [0, 1, 3, 2]>(h) y = MatMul(h, a)": ["n", 4, "s", "s"],
    "a = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, a)": ["n", "s", "s"],
    "l = Shape(k) y = Add(l, single)": [2],
}


def case(body):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,s,6] x, float[n,6] w, float[n,4,s,2] h, float[m,s] k, float[5,4,3,2] c,
             float[2,6] v) => (y) {CONSTANTS} {{ {body} }}"""
    )
    infer_shapes(model)
    return model


def names_of_output(model):
    name_lengths(model)
    known = known_shape(model.graph.outputs[0]) or ()
    return [None if str(dim).startswith("unk__") else dim for dim in known]


@pytest.mark.parametrize("body", CASES)
def test_names_say_what_a_run_gives(body):
    model = case(body)
    assert names_of_output(model) == CASES[body]
    for lengths in ({"n": 2, "m": 3, "s": 5}, {"n": 3, "m": 1, "s": 9}):
        feeds = {
            value.name: np.ones([lengths.get(dim, dim) for dim in known_shape(value)], np.float32)
            for value in model.graph.inputs
        }
        made = run(model, feeds)["y"].shape
        for length, dim in zip(made, CASES[body], strict=True):
            if dim is not None:
                assert length == length_of(dim, lengths)


@pytest.mark.parametrize("forgotten", ["shape", "lengths", "names"])
@pytest.mark.parametrize("body", CASES)
def test_rules_need_no_help_from_inference(body, forgotten):
    """After a shape that only these rules find, inference knows nothing."""
    model = case(body)
    (output,) = model.graph.outputs
    known = [dim if isinstance(dim, int) and forgotten == "names" else None for dim in output.shape]
    output.shape = None if forgotten == "shape" else ir.Shape(known)
    found = names_of_output(model)
    named = [dim if isinstance(dim, str) else None for dim in CASES[body]]
    assert [dim if isinstance(dim, str) else None for dim in found] == named[: len(found)]
    assert found or not any(named)
    for have, was, dim in zip(found, known, CASES[body], strict=False):
        assert have in (was, dim)


@pytest.mark.parametrize("body", CASES)
def test_unknown_shapes_give_no_names(body):
    for forgotten in "xwhkcv":
        model = case(body)
        for value in model.graph.inputs:
            if value.name == forgotten:
                value.shape = None
        for node in model.graph:
            node.outputs[0].shape = None
        for dim, expected in zip(names_of_output(model), CASES[body], strict=False):
            assert dim is None or dim == expected


@pytest.mark.parametrize("name", ["strides", "dilations", "pads"])
def test_a_convolution_with_too_few_numbers(name):
    """A later check reports it, of which this is none of the business."""
    model = case("y = Conv<pads = [1, 0, 1, 0]>(h, c)")
    node = model.graph.node(-1)
    node.attributes[name] = ir.AttrInt64s(name, [])
    node.outputs[0].shape = None
    assert not any(names_of_output(model))


@pytest.mark.parametrize("name", ["n*4", "n·4", "4", "n+1", "unk__0"])
def test_a_name_of_the_user_is_one_length(name):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float["{name}",3,2] x, float[n,3,2] w, float[k] z) => (y)
        <int64[1] flat = {{-1}}, int64[3] back = {{-1, 3, 2}}>
        {{ f = Reshape(x, flat) b = Reshape(f, back) y = Add(b, w) }}"""
    )
    infer_shapes(model)
    name_lengths(model)
    dim = known_shape(model.graph.outputs[0])[0]
    assert str(dim).startswith("unk__")
    assert dim != name


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (
            """g (float["4*n",3] x, float[n,4,3] w) => (float loss) <int64[2] rows = {-1, 3}> {
            r = Reshape(w, rows) y = Add(x, r) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }""",
            {"x": (1, 3), "w": (2, 4, 3)},
        ),
        (
            """g (float["min(n,4)",3] x, float[n,3] w) => (float loss) {
            y = Add(x, w) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }""",
            {"x": (3, 3), "w": (1, 3)},
        ),
    ],
)
def test_a_name_of_the_user_is_no_claim(text, feeds):
    model = graph(text)
    normalize(model, opsets=range(18, 19), ir_version=10)
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(size=shape).astype(np.float32) for name, shape in feeds.items()}
    assert_gradients(model, ["x", "w"], arrays, engine="portable")


def test_a_rest_that_is_no_whole_multiple_has_no_name():
    """6·n elements in rows of 4: some lengths fit, and the model may be run with these alone."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,6] x) => (y) <int64[2] rows = {-1, 4}> { y = Reshape(x, rows) }"""
    )
    infer_shapes(model)
    name_lengths(model)
    assert str(known_shape(model.graph.outputs[0])[0]).startswith("unk__")


def test_a_range_to_a_negative_number_is_empty():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]> net (float[5] x) => (y)
        <int64 zero = {0}, int64 one = {1}, int64[1] eight = {8}>
        { s = Shape(x) d = Sub(s, eight) q = Squeeze(d) y = Range(zero, q, one) }"""
    )
    normalize(model, opsets=range(18, 19), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == (0,)


def test_names_that_inference_invents_are_not_put_into_products():
    """The next inference may give them to other lengths."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,3,2] x, bool[n] which) => (y) <int64[1] flat = {-1}>
        { a = Compress<axis = 0>(x, which) y = Reshape(a, flat) }"""
    )
    infer_shapes(model)
    name_lengths(model)
    assert all("·" not in str(dim) for dim in known_shape(model.graph.outputs[0]))


def test_a_cut_length_broadcasts_with_the_whole():
    assert is_cut("n≤7", "n")
    assert not is_cut("n", "n")
    assert not is_cut("n≤7", "m")
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,s,6] x, float[9,6] w, float[1,s,6] z) => (y)
        <int64[1] O = {0}, int64[1] I = {1}>
        { l = Shape<start = 1, end = 2>(x) p = Slice(w, O, l, O, I) a = Add(x, p) y = Add(a, z) }"""
    )
    infer_shapes(model)
    name_lengths(model)
    assert known_shape(model.graph.outputs[0]) == ("n", "s", 6)


TABLE = """g (float[n,s,6] x, float[9,6] w) => (float loss) <int64[1] O = {0}, int64[1] I = {1}>
    { l = Shape<start = 1, end = 2>(x) p = Slice(w, O, l, O, I) a = Add(x, p) b = Mul(a, a)
      loss = ReduceSum<keepdims = 0>(b) }"""
HEADS = """g (float[batch,4,6] x, float[6,6] w, int64[1] one) => (float loss) {
    h = MatMul(x, w) n = Shape<end = 1>(x) m = Mul(n, one)
    r = Constant<value_ints = [4, 2, 3]>() s = Concat<axis = 0>(m, r)
    a = Reshape(h, s) b = Mul(a, a) c = Constant<value_ints = [-1, 4, 6]>() d = Reshape(b, c)
    y = Add(d, x) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }"""


@pytest.mark.parametrize(("text", "dims"), [(TABLE, {"n": 3, "s": 4}), (HEADS, {"batch": 3})])
def test_equal_lengths_are_not_compared_at_run_time(text, dims):
    model = graph(text)
    normalize(model, opsets=range(18, 19), ir_version=10)
    result = differentiate(model.clone(), "loss", ["x", "w"], "portable")
    assert not {"NonZero", "Equal"} & {node.op_type for node in result.graph}
    feeds = random_feeds(model, **dims)
    if "one" in feeds:
        feeds["one"] = np.ones(1, np.int64)
    assert_gradients(model, ["x", "w"], feeds, engine="portable")


def test_a_product_of_lengths_comes_back():
    model = graph(
        """g (float[batch,4,6] x, int64[1] k) => (float loss) {
        r = Constant<value_ints = [6]>() s = Concat<axis = 0>(k, r) a = Reshape(x, s) b = Sin(a)
        c = Constant<value_ints = [-1, 4, 6]>() d = Reshape(b, c) y = Mul(d, x)
        loss = ReduceSum<keepdims = 0>(y) }"""
    )
    get_engine("portable").prepare(model)
    shapes = {out.name: known_shape(out) for node in model.graph for out in node.outputs}
    assert shapes["a"] == ("4·batch", 6)
    assert shapes["d"] == shapes["y"] == ("batch", 4, 6)


@pytest.mark.parametrize(("n", "m"), [(3, 1), (1, 3), (2, 2)])
def test_different_lengths_stay_different(n, m):
    model = graph(
        """g (float[N,4] x, float[M,4] w) => (float loss) {
        y = Add(x, w) z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }"""
    )
    assert_gradients(model, ["x", "w"], random_feeds(model, N=n, M=m), engine="portable")


def test_what_has_no_type_gets_no_shape():
    """Behind an operator of onnxruntime; onnx_ir warns of a shape without a type when it saves."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[n,4] x) => (float[n,4] y) <int64[2] rows = {-1, 2}, int64[2] t = {-1, 4}> {
          a = com.microsoft.FusedMatMul(x, x)  b = Reshape(a, rows)  y = Reshape(b, t) }"""
    )
    infer_shapes(model)
    name_lengths(model)
    assert [value.shape for node in model.graph for value in node.outputs][:2] == [None, None]


def test_a_slice_before_opset_10_has_its_bounds_in_attributes():
    model = text_model(
        """<ir_version: 4, opset_import: ["" : 9]>
        net (float[n,s] x) => (float[n,t] y) {
          a = Slice<axes = [1], starts = [0], ends = [2]>(x)  y = Relu(a) }"""
    )
    infer_shapes(model)
    assert names_of_output(model) == ["n", "t"]
