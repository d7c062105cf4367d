"""Sequences that a Loop builds, and the one-element slices that bound the bags of EmbeddingBag."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.normalize import normalize
from tests.support import run, text_model, weights

GATHER = """at = Constant<value_ints = [0]>() j = Unsqueeze(i, at) r = Gather(x, j)
    h = MatMul(r, w)"""
BAG = """at = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>() j = Unsqueeze(i, at)
    k = Add(j, one) m = Add(k, one) from = Slice(ids, j, k) to = Slice(ids, k, m)
    r = Slice(x, from, to) p = MatMul(r, w) h = ReduceSum(p, at)"""
FEEDS = {"x": weights(5, 2), "n": np.array(3), "ids": np.array([0, 2, 2, 5])}


def model(row, read, insert="t, h"):
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2] x, int64[B] ids, int64 n, float[2,3] w) => (y) {{
          empty = SequenceEmpty()
          s = Loop(n, "", empty) <body = b (int64 i, bool c, seq(float) t) => (bool g, seq(float) u)
            {{ g = Identity(c) {row} u = SequenceInsert({insert}) }}>
          {read} }}""",
        w=weights(2, 3),
    )


def normalized(found):
    normalize(found, opsets=range(18, 22), ir_version=10)
    return {node.op_type for node in found.graph.all_nodes()}


@pytest.mark.parametrize("row", [GATHER, BAG])
@pytest.mark.parametrize(("axis", "new_axis"), [(0, 0), (1, 0), (-1, 0), (0, 1), (1, 1), (-1, 1)])
def test_steps_are_stacked(row, axis, new_axis):
    found = model(row, f"y = ConcatFromSequence<axis = {axis}, new_axis = {new_axis}>(s)")
    expected = run(found, FEEDS)["y"]
    operators = normalized(found)
    assert "Loop" in operators
    assert not any("Sequence" in name for name in operators)
    onnx.checker.check_model(ir.to_proto(found), full_check=True)
    np.testing.assert_array_equal(run(found, FEEDS)["y"], expected)


@pytest.mark.parametrize(
    ("row", "read", "insert"),
    [
        (BAG.replace("ReduceSum(p, at)", "Identity(p)"), "y = ConcatFromSequence<axis = 0>(s)", 0),
        (GATHER, "y = ConcatFromSequence<axis = 0>(s)", "t, h, at"),  # to the front
        (GATHER, "y = SequenceAt(s, n)", 0),
        (
            GATHER,
            "m = ConcatFromSequence<axis = 0>(s) k = SequenceLength(s) f = Cast<to = 1>(k) "
            "y = Mul(m, f)",
            0,
        ),
    ],
)
def test_other_sequences_stay(row, read, insert):
    assert "SequenceInsert" in normalized(model(row, read, insert or "t, h"))


@pytest.mark.parametrize("base", ["less = Sub(j, one)", "less = Add(j, n)", "less = Identity(ids)"])
def test_a_slice_that_may_be_of_other_length_stays(base):
    """From -1 to 0 it is empty, and from an unknown place it may be."""
    row = BAG.replace("k = Add(j, one)", f"{base} k = Add(less, one)").replace(
        "(ids, j, k)", "(ids, less, k)"
    )
    assert "Slice" in normalized(model(row, "y = ConcatFromSequence<axis = 0>(s)"))


@pytest.mark.parametrize("value", ["w", "x"])
def test_a_value_from_outside_the_loop_is_appended(value):
    found = model("", "y = ConcatFromSequence<axis = 0>(s)", f"t, {value}")
    expected = run(found, FEEDS)["y"]
    assert "SequenceInsert" not in normalized(found)
    np.testing.assert_array_equal(run(found, FEEDS)["y"], expected)


def test_a_step_cast_to_another_type_is_not_its_number():
    """As a condition it is 0, 1, 1, ..."""
    row = """one = Constant<value_ints = [1]>() f = Cast<to = 9>(j) l = Cast<to = 7>(f)
      k = Add(j, one) e = Slice(ids, l, k) a = ReduceSum(e, at) b = Cast<to = 1>(a) h = Mul(p, b)"""
    row = GATHER.replace("h = MatMul", "p = MatMul") + row
    found = model(row, "y = ConcatFromSequence<axis = 0>(s)")
    expected = run(found, FEEDS)["y"]
    normalized(found)
    np.testing.assert_array_equal(run(found, FEEDS)["y"], expected)


def test_a_slice_behind_the_end_of_a_tensor_is_empty():
    """A Gather would fail there."""
    found = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x, int64 n) => (y) {
          y = Loop(n, "") <body = b (int64 i, bool c) => (bool g, float s) {
            g = Identity(c) at = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
            j = Unsqueeze(i, at) k = Add(j, one) e = Slice(x, j, k)
            s = ReduceSum<keepdims = 0>(e) }> }"""
    )
    feeds = {"x": weights(2), "n": np.array(3)}
    expected = run(found, feeds)["y"]
    normalized(found)
    np.testing.assert_array_equal(run(found, feeds)["y"], expected)
