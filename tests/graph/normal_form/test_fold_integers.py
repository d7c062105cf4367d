from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.normal_form.fold_integers import fold_integers
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import run, text_model, weights


def net(body: str, inputs: str = "float[N,3,4] x", outputs: str = "float[a,b,c] y", **stored):
    model = text_model(
        f'<ir_version: 8, opset_import: ["" : 18]> net ({inputs}) => ({outputs}) {{ {body} }}',
        **stored,
    )
    infer_shapes(model)
    return model


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_an_axis_that_is_computed_is_known_afterwards():
    """As TorchScript writes ``x.unflatten(-1, (3, 2))``: the axis is ``-1 % 3``."""
    body = """r = Mod(minus, three) at = Unsqueeze(r, nought) end = Add(at, one)
      s = Shape(x) head = Slice(s, nought, at) tail = Slice(s, end, far)
      sizes = Concat<axis = 0>(head, parts, tail) y = Reshape(x, sizes)"""
    model = net(
        body,
        "float[N,3,6] x, int64 minus, int64 three, int64[1] nought, int64[1] one, int64[1] far, "
        "int64[2] parts",
        "float[a,b,c,d] y",
        minus=np.array(2),
        three=np.array(3),
        nought=np.array([0]),
        one=np.array([1]),
        far=np.array([2**63 - 1]),
        parts=np.array([3, 2]),
    )
    x = weights(5, 3, 6)
    before = run(model, {"x": x})["y"]
    reports = normalize(model, opsets=range(18, 22), ir_version=10)
    assert "fold_integers" in {report.rewrite for report in reports}
    assert not set(ops(model)) & {"Mod", "Unsqueeze", "Add"}
    np.testing.assert_array_equal(run(model, {"x": x})["y"], before)
    (reshape,) = model.graph  # with the axis, the whole shape is known
    assert reshape.inputs[1].const_value.numpy().tolist() == [0, 3, 3, 2]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert not fold_integers(model).modified


def test_paddings_that_are_rounded_up_are_known_layer_by_layer():
    """As TorchScript writes ``math.ceil(length / 4)`` of a tensor whose first length is open."""
    body, value = "", "x"
    for layer in range(15):
        body += f"""s{layer} = Shape({value}) l{layer} = Gather(s{layer}, two)
          f{layer} = Cast<to = 1>(l{layer}) d{layer} = Div(f{layer}, quarter)
          c{layer} = Ceil(d{layer}) i{layer} = Cast<to = 7>(c{layer}) n{layer} = Mul(i{layer}, four)
          m{layer} = Sub(n{layer}, l{layer}) u{layer} = Unsqueeze(m{layer}, nought)
          p{layer} = Concat<axis = 0>(zeros, u{layer}) y{layer} = Pad({value}, p{layer}) """
        value = f"y{layer}"
    model = net(
        f"{body} y = Neg({value})",
        "float[N,3,6] x, int64 two, int64 four, float quarter, int64[1] nought, int64[5] zeros",
        two=np.array(2),
        four=np.array(4),
        quarter=np.array(4, np.float32),
        nought=np.array([0]),
        zeros=np.zeros(5, np.int64),
    )
    x = weights(2, 3, 6)
    before = run(model, {"x": x})["y"]
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert set(ops(model)) == {"Pad", "Neg"}
    np.testing.assert_array_equal(run(model, {"x": x})["y"], before)


def test_the_scales_of_a_resize_are_put_together():
    model = net(
        'scales = Concat<axis = 0>(ones, twos) y = Resize<mode = "nearest">(x, , scales)',
        "float[N,3,4,4] x, float[2] ones, float[2] twos",
        "float[N,3,8,8] y",
        ones=np.ones(2, np.float32),
        twos=np.full(2, 2, np.float32),
    )
    assert fold_integers(model).changed == {"Concat": "1 computed"}
    assert run(model, {"x": weights(1, 3, 4, 4)})["y"].shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    "body",
    [
        "t = Concat<axis = 0>(w, w) y = Add(x, t)",  # of weights
        "c = Cast<to = 1>(two) y = Mul(x, c)",  # a float
        "c = Ceil(w) i = Cast<to = 7>(c) r = Cast<to = 1>(i) y = Mul(x, r)",  # of weights
        "s = Shape(x) y = Reshape(x, s)",  # not known
        "z = Div(two, nought) c = Cast<to = 1>(z) y = Mul(x, c)",
        "z = NonZero(two) c = Cast<to = 1>(z) r = ReduceSum(c) y = Mul(x, r)",  # runtimes differ
        "k = Cast<to = 1>(two) h = Pow(k, k) c = Cast<to = 7>(h) d = Cast<to = 1>(c) y = Mul(x, d)",
        "k = Cast<to = 10>(two) h = Mul(k, k) c = Cast<to = 7>(h) "
        "d = Cast<to = 1>(c) y = Mul(x, d)",
        "r = RandomUniform<shape = [1], dtype = 1>() c = Cast<to = 7>(r) "
        "d = Cast<to = 1>(c) y = Mul(x, d)",
    ],
)
def test_what_is_left_alone(body):
    model = net(
        body,
        "float[N,3,4] x, float[1,3,4] w, int64 two, int64 nought",
        w=weights(1, 3, 4),
        two=np.array(2),
        nought=np.array(0),
    )
    before = ops(model)
    assert not fold_integers(model).modified
    assert ops(model) == before


def test_copies_of_a_float_are_known_if_they_are_only_cast_to_integers():
    """As a mask of ones that is made for each sentence, and read as booleans."""
    body = "e = Expand(one, size) c = Cast<to = 9>(e) d = Cast<to = 1>(c) {} y = Mul(x, d)"
    stored = {"one": np.array(1, np.float32), "size": np.array([3, 4])}
    inputs = "float[N,3,4] x, float one, int64[2] size"
    model = net(body.format(""), inputs, **stored)
    fold_integers(model)
    assert ops(model) == ["Cast", "Mul"]
    other = net(body.format("z = Neg(e)"), inputs, "float[a,b,c] y, float[3,4] z", **stored)
    fold_integers(other)
    assert "Expand" in ops(other)


def test_an_output_of_the_model_stays_one():
    model = net("y = Add(two, two)", "int64 two", "int64 y", two=np.array(2))
    assert not fold_integers(model).modified


def test_a_known_part_of_an_open_shape_is_computed():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,3,5] x) => (float y, float z) {
          s = Shape(x)
          last = Constant<value = int64 {-1}>()  first = Constant<value = int64 {0}>()
          l = Gather(s, last)  b = Gather(s, first)
          y = Cast<to = 1>(l)  z = Cast<to = 1>(b)
        }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    left = [node.op_type for node in model.graph]
    assert left.count("Gather") == 1  # the batch length is unknown
    found = run(model, {"x": weights(2, 3, 5)})
    assert (found["y"], found["z"]) == (5, 2)


def test_the_declared_shape_of_a_state_is_not_used():
    """It may be that of the first step, or of the batch of the trace."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[1,2] x, int64 n) => (float[m,2] y) {
          y = Loop(n, "", x) <body = b (int64 i, bool c, float[1,2] s) => (bool g, float[a,2] t) {
            g = Identity(c) k = Shape(s) f = Cast<to = 1>(k) r = ReduceMax<keepdims = 0>(f)
            u = Add(s, r) t = Concat<axis = 0>(u, s) }> }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert "Shape" in {node.op_type for node in model.graph.all_nodes()}
