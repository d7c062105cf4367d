"""A network in float16, bfloat16 or float64 becomes the same network in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.normal_form.to_float32 import as_float32, to_float32
from ortboost.graph.query import all_nodes
from tests.support import run, text_model, weights

FLOAT16, DOUBLE = ir.DataType.FLOAT16, ir.DataType.DOUBLE


def network(word: str, dtype: type) -> ir.Model:
    """A layer, a mask, a branch, a loop and a function, all in one type."""
    number = int(ir.DataType.from_numpy(np.dtype(dtype)))
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        net ({word}[n,4] x, {word}[4,4] w, bool b, {word}[4] v) => ({word}[n,4] y, float[n,4] z) {{
          h = MatMul(x, w)
          one = Constant<value_float = 1.0>()
          k = Cast<to = {number}>(one)
          s = ConstantOfShape<value = {word}[1] {{2}}>(empty)
          c = If(b) <
            then_branch = t () => ({word}[n,4] p) {{ p = Mul(h, k) }},
            else_branch = e () => ({word}[n,4] q) {{ q = Mul(h, v) }}>
          m = Mul(c, s)
          l, stack = Scan<num_scan_inputs = 1, body = step ({word}[4] a, {word}[4] r)
            => ({word}[4] o, {word}[4] u) {{ o = Add(a, r) u = Identity(o) }}>(v, m)
          f = local.round<to = {number}>(stack)
          wide = Cast<to = 1>(f)
          z = Exp(wide)
          y = Add(f, v)
        }}
        <domain: "local", opset_import: ["" : 18]>
        round<to>(f) => (g) {{ i = Cast<to = 1>(f) g = Cast<to : int = @to>(i) }}""".replace(
            "(empty)", "(lengths)"
        ).replace("bool b, ", "bool b, int64[0] lengths, "),
        w=weights(4, 4).astype(dtype),
        v=weights(4, seed=1).astype(dtype),
        lengths=np.zeros(0, np.int64),
    )


@pytest.mark.parametrize(("word", "dtype"), [("float16", np.float16), ("double", np.float64)])
def test_every_value_of_the_type_is_converted(word, dtype):
    model = network(word, dtype)
    feeds = {"x": weights(3, 4, seed=2).astype(dtype), "b": np.array(True)}
    expected = run(model.clone(), feeds)
    report = to_float32(model, {ir.DataType.from_numpy(np.dtype(dtype))})
    found = run(model, {**feeds, "x": feeds["x"].astype(np.float32)})
    assert {array.dtype for array in found.values()} == {np.dtype(np.float32)}
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name].astype(np.float32), rtol=1e-2, atol=1e-3)
    values = [v for node in all_nodes(model.graph) for v in node.outputs]
    assert not {v.dtype for v in values} & {FLOAT16, DOUBLE}
    assert report.changed == {"model": f"{np.dtype(dtype)} -> float32, 2 tensors"}
    assert report.notes == [
        f"the network is {np.dtype(dtype)} and becomes float32, as does the data of its input 'x'"
    ]


@pytest.mark.parametrize("dtype", [ir.DataType.BFLOAT16, FLOAT16])
def test_torchs_own_number_of_bfloat16_is_understood(dtype):
    """TorchScript writes Cast<to = 15> for the scale of an attention, and for alibi in float16."""
    word = dtype.name.lower()
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({word}[2] x, float s) => ({word}[2] y) {{ c = Cast<to = 15>(s) y = Mul(x, c) }}"""
    )
    model.graph[0].outputs[0].dtype = ir.DataType.COMPLEX128
    to_float32(model, {dtype})
    meant = ir.DataType.BFLOAT16 if dtype == FLOAT16 else ir.DataType.FLOAT
    assert model.graph[0].outputs[0].dtype == meant
    assert model.graph[0].attributes.get_int("to") == meant


def test_other_types_stay():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float16[2] x, double[2] p, double[2] w) => (float16[2] y) {
          q = Cos(p) r = Mul(q, w) s = Cast<to = 10>(r) y = Add(x, s) }""",
        w=np.ones(2),
    )
    to_float32(model, {FLOAT16})
    assert {v.name: v.dtype for v in model.graph.inputs} == {"x": ir.DataType.FLOAT, "p": DOUBLE}
    assert model.graph.initializers["w"].dtype == DOUBLE
    assert model.graph[2].attributes.get_int("to") == ir.DataType.FLOAT


def test_a_clone_of_the_model_keeps_its_types():
    model = network("double", np.float64)
    before = ir.to_proto(model).SerializeToString()
    to_float32(model.clone(), {DOUBLE})
    assert ir.to_proto(model).SerializeToString() == before


def test_without_types_nothing_changes():
    model = network("float16", np.float16)
    assert not to_float32(model, set()).modified
    assert len(model.functions) == 1


def test_casts_between_two_types_that_are_one_now_are_bypassed():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float16[2] x) => (float16[2] y) {
          w = Cast<to = 1>(x) e = Exp(w) n = Cast<to = 10>(e) y = Neg(n) }"""
    )
    for value, dtype in zip(model.graph.all_nodes(), (1, 1, 10, 10), strict=True):
        value.outputs[0].dtype = ir.DataType(dtype)
    to_float32(model, {FLOAT16})
    exp, neg = (next(n for n in model.graph if n.op_type == kind) for kind in ("Exp", "Neg"))
    assert exp.inputs[0] is model.graph.inputs[0]
    assert neg.inputs[0] is exp.outputs[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_numbers_that_float32_holds_keep_their_value(dtype):
    numbers = np.array([-1.5, 0.0, -0.0, 3.0, np.inf, -np.inf, np.nan]).astype(dtype)
    found = as_float32(numbers)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, numbers.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found[:3]), [True, False, True])


def test_numbers_beyond_float32_become_the_nearest_that_are_neither_inf_nor_0():
    # finfo(float64).min marks masked positions; an epsilon guards a division.
    limits = np.finfo(np.float32)
    found = as_float32(np.array([np.finfo(np.float64).min, 1e40, 1e-60, -1e-60]))
    np.testing.assert_array_equal(found, [limits.min, limits.max, limits.tiny, -limits.tiny])
