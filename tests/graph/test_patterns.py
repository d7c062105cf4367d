from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.patterns import Op, match, matches

HEAD = '<ir_version: 10, opset_import: ["" : 18]> net (float[n] x, float[n] z) => (float[n] y)'


def output(body: str, stored: str = "") -> ir.Value:
    model = ir.from_onnx_text(f"{HEAD} {stored} {{ {body} }}")
    return model.graph.outputs[0]


HALF = "<float h = {0.5}>"


@pytest.mark.parametrize("body", ["y = Mul(x, h)", "y = Mul(h, x)"])
def test_products_in_either_order(body):
    found = match(output(body, HALF), Op("Mul", "a", 0.5))
    assert found is not None
    assert found["a"].name == "x"


def test_quotients_in_one_order():
    assert match(output("y = Div(x, h)", HALF), Op("Div", "a", 0.5)) is not None
    assert match(output("y = Div(h, x)", HALF), Op("Div", "a", 0.5)) is None


@pytest.mark.parametrize(("stored", "fits"), [
    ("<float h = {0.5000001}>", True),
    ("<float h = {0.501}>", False),
    ("<float[1] h = {0.5}>", True),
    ("<float[1,1] h = {0.5}>", False),  # it would add a dimension
    ("<float[2] h = {0.5, 0.5}>", False),
])  # fmt: skip
def test_numbers(stored, fits):
    found = match(output("y = Mul(x, h)", stored), Op("Mul", "a", 0.5))
    assert (found is not None) == fits


@pytest.mark.parametrize(("dtype", "ulps", "fits"), [
    (ir.DataType.FLOAT16, 0, True),
    (ir.DataType.FLOAT16, 1, False),
    (ir.DataType.BFLOAT16, 0, True),
    (ir.DataType.BFLOAT16, -1, False),
])  # fmt: skip
def test_a_16_bit_number_is_the_rounded_one(dtype, ulps, fits):
    root = np.asarray(math.sqrt(2)).astype(dtype.numpy())
    near = (root.view(np.uint16) + np.asarray(ulps, np.int16).view(np.uint16)).view(root.dtype)
    kind = str(dtype).lower()
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : 18]> g ({kind}[n] x, {kind} h) => ({kind}[n] y) '
        "{ y = Div(x, h) }"
    )
    h = model.graph.inputs.pop()
    h.const_value = ir.tensor(near, dtype=dtype, name="h")
    model.graph.register_initializer(h)
    found = match(model.graph.outputs[0], Op("Div", "a", math.sqrt(2)))
    assert (found is not None) == fits


def test_a_variable_is_one_value():
    squares = Op("Mul", "a", "a")
    assert match(output("y = Mul(x, x)"), squares) is not None
    assert match(output("y = Mul(x, z)"), squares) is None


def test_a_wrong_first_guess_is_taken_back():
    """`a` is first matched to the product, then to the other operand."""
    found = match(output("t = Neg(x) y = Mul(t, x)"), Op("Mul", "a", Op("Neg", "a")))
    assert found is not None
    assert found["a"].name == "x"


def test_all_ways():
    ways = [found["a"].name for found in matches(output("y = Add(x, z)"), Op("Add", "a", "b"))]
    assert ways == ["x", "z"]


def test_alternatives_and_names():
    either = Op("Neg", (Op("Exp", "a", name="e"), Op("Log", "a")))
    found = match(output("[k] t = Exp(x) y = Neg(t)"), either)
    assert found is not None
    assert found["e"].name == "t"
    assert "e" not in (match(output("t = Log(x) y = Neg(t)"), either) or {"e"})
    assert match(output("t = Abs(x) y = Neg(t)"), either) is None


def test_what_others_read_is_not_alone():
    pattern = Op("Neg", Op("Exp", "a", alone=True))
    assert match(output("t = Exp(x) y = Neg(t)"), pattern) is not None
    assert match(output("t = Exp(x) s = Neg(t) y = Add(s, t)"), Op("Add", pattern, "b")) is None


def test_further_inputs_may_be_anything():
    value = output("y = Clip(x, h)", HALF)
    assert match(value, Op("Clip", "a")) is not None
    assert match(value, Op("Clip", "a", 0.5, "high")) is None
    assert match(None, "a") is None
