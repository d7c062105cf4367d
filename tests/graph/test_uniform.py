"""Values with one number, whatever their shape: the number is that of a run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.uniform import UniformValues
from tests.support import run, text_model, weights

LENGTHS = "shape = Shape(x)  n = Gather<axis = 0>(shape, one)"
STORED = {
    "zero": np.array(0, np.int64),
    "one": np.array(1, np.int64),
    "two": np.array(2, np.int64),
    "last": np.array([-1], np.int64),
    "table": np.full((9, 4), 7, np.int64),
    "low": np.array(-np.inf, np.float32),
    "zeros": np.array([0, -0.0], np.float32),
    "half": np.array(0.5, np.float32),
}
TYPES = {"float32": "float", "int64": "int64"}


def model_of(body: str, dtype: str) -> ir.Model:
    inputs = ", ".join(
        f"{TYPES[array.dtype.name]}[{','.join(map(str, array.shape))}] {name}"
        for name, array in STORED.items()
    )
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,length] x, {inputs}) => ({dtype} y) {{ {LENGTHS} {body} }}"""
    model = text_model(text, **STORED)
    infer_shapes(model)
    return model


def number(model: ir.Model) -> np.ndarray | None:
    return UniformValues(18).number(model.graph.outputs[0])


UNIFORM = {
    "a filled tensor": ("float[a,b]", "y = ConstantOfShape<value = float[1] {2.0}>(shape)"),
    "zeros by default": ("float[a,b]", "y = ConstantOfShape(shape)"),
    "a part of a stored one": ("int64[a,b]", "y = Expand(two, shape)"),
    "rows of a table of one number": ("int64[a,b]", "r = Range(zero, n, one) y = Gather(table, r)"),
    "arithmetic": (
        "float[a,b]",
        "z = ConstantOfShape(shape)  h = Add(z, half)  y = Mul(h, h)",
    ),
    "a comparison": ("bool[a,b]", "e = Expand(two, shape)  y = Greater(e, one)"),
    "a cast": (
        "float[a,b]",
        "e = Expand(two, shape)  g = Greater(e, one)  y = Cast<to = 1>(g)",
    ),
    "positions are not negative": (
        "bool[a]",
        "r = Range(zero, n, one) y = GreaterOrEqual(r, zero)",
    ),
    "nor below zero": ("bool[a]", "r = Range(one, n, two) y = Less(r, one)"),
    "zero is at most a length": ("bool[a]", "y = LessOrEqual(zero, shape)"),
    "a mask that masks nothing": (
        "float[a,b]",
        "r = Range(zero, n, one) g = GreaterOrEqual(r, zero) e = Expand(g, shape) "
        "y = Where(e, half, low)",
    ),
    "the other branch": (
        "float[a,b]",
        "e = Expand(two, shape)  l = Less(e, one)  y = Where(l, low, half)",
    ),
    "pieces": (
        "float[a,b]",
        "z = ConstantOfShape(shape)  e = Expand(z, shape)  y = Concat<axis = 0>(z, e)",
    ),
}


@pytest.mark.parametrize("case", UNIFORM)
def test_the_number_is_that_of_a_run(case):
    dtype, body = UNIFORM[case]
    model = model_of(body, dtype)
    found = number(model)
    assert found is not None
    for shape in ((2, 3), (1, 5)):
        expected = run(model, {"x": weights(*shape)})["y"]
        assert expected.dtype == found.dtype
        np.testing.assert_array_equal(expected, np.full_like(expected, found))


OTHERS = {
    "two numbers": ("float[a,b]", "z = ConstantOfShape(shape) y = Concat<axis = 0>(z, x)"),
    "different pieces": (
        "float[a,b]",
        "z = ConstantOfShape(shape)  h = Add(z, half)  y = Concat<axis = 0>(z, h)",
    ),
    "an input": ("float[a,b]", "y = Mul(x, half)"),
    "positions above the least": ("bool[a]", "r = Range(zero, n, one) y = GreaterOrEqual(r, one)"),
    "positions that fall": ("bool[a]", "m = Neg(one) r = Range(n, zero, m) y = Less(r, one)"),
    "positions that fall below the first": (
        "bool[a]",
        "m = Neg(one)  e = Neg(n)  r = Range(one, e, m)  y = Less(r, one)",
    ),
    "zeros of both signs": (
        "float[a,b]",
        "z = ConstantOfShape(shape)  m = Neg(z)  y = Concat<axis = 0>(z, m)",
    ),
    "stored zeros of both signs": ("float[2]", "y = Identity(zeros)"),
    "not a number": ("float[a,b]", "z = ConstantOfShape(shape) y = Mul(z, low)"),
    "an infinite integer": (
        "int64[a,b]",
        "e = Expand(low, shape) y = Cast<to = 7>(e)",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_none_where_there_may_be_several(case):
    dtype, body = OTHERS[case]
    assert number(model_of(body, dtype)) is None
