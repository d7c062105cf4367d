"""Shapes of what Loops return, held against what a runtime computes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from ortboost.graph.shapes.loop_shapes import infer_loops
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import LossConfig, ProgramConfig
from tests.support import run, text_model, weights

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
KEPT = """
  last, each = Loop(count, "", x) <body = step (int64 i, bool c, float[] s)
    => (bool go, float[r,t] next, float[u,v] slice) {
      go = Identity(c) next = Tanh(s) slice = Transpose(s) }>"""
GROWS = """
  last, each = Loop(count, "", x) <body = step (int64 i, bool c, float[] s)
    => (bool go, float[r,t] next, float[u] slice) {
      go = Identity(c) next = Concat<axis = 0>(s, x)
      one = Constant<value_ints = [1]>() slice = ReduceSum<keepdims = 0>(w, one) }>"""
RANK = """
  last, each = Loop(count, "", x) <body = step (int64 i, bool c, float[] s)
    => (bool go, float next, int64[1] slice) {
      go = Identity(c) zero = Constant<value_ints = [0]>() next = Unsqueeze(s, zero)
      one = Constant<value_ints = [1]>() slice = Shape<start = 0, end = 1>(w) }>"""
SWAPS = """
  last, other, each = Loop(count, "", x, w) <body = step
    (int64 i, bool c, float[] s, float[] o) => (bool go, float[] n1, float[] n2, float[] slice) {
      go = Identity(c) n1 = Identity(o) n2 = Identity(s)
      zero = Constant<value_ints = [0]>() slice = ReduceSum<keepdims = 0>(o, zero) }>"""
INNER = """
  last, each = Loop(count, "", x) <body = outer (int64 i, bool c, float[] s)
    => (bool go, float[r,t] next, float[u,v] slice) {
      go = Identity(c)
      next = Loop(count, "", s) <body = inner (int64 j, bool d, float[e,f] z)
        => (bool on, float[k,l] y) { on = Identity(d) y = Sin(z) }>
      slice = MatMul(next, w) }>"""


def told(model):
    """The shapes of the outputs; names that inference invents say nothing."""
    shapes = [known_shape(value) for value in model.graph.outputs]
    return [s and tuple(d if d == "n" or isinstance(d, int) else None for d in s) for s in shapes]


@pytest.mark.parametrize(
    ("loop", "last", "each"),
    [
        (KEPT, ("n", 3), (None, 3, "n")),
        (GROWS, (None, 3), (None, 3)),
        (RANK, None, (None, 1)),
        (SWAPS, (None, 3), (None, 3)),
        (INNER, ("n", 3), (None, "n", 3)),
    ],
    ids=["kept", "grows", "rank", "swaps", "inner"],
)
def test_a_length_is_known_if_every_iteration_keeps_it(loop, last, each):
    model = text_model(
        f"{HEAD} net (float[n,3] x, int64 count, float[3,3] w) => (last, each) {{ {loop} }}",
        w=weights(3, 3),
    )
    normalize(model, opsets=range(18, 19), ir_version=10)  # forgets the declared names
    shapes = told(model)
    assert shapes == [last, each]
    proto = ir.to_proto(model)
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or 1
    for rows, count in ((2, 4), (5, 1)) if last else ():  # no runtime lets a rank change
        found = run(proto, {"x": weights(rows, 3), "count": np.array(count)})
        for dims, name in zip(shapes, ("last", "each"), strict=True):
            assert len(dims) == found[name].ndim
            for dim, length in zip(dims, found[name].shape, strict=True):
                assert dim in (None, length) or (dim == "n" and length == rows)


def test_what_follows_a_loop_is_inferred_too():
    model = text_model(
        f"""{HEAD} net (float[n,3] x, int64 count, float[3,2] w) => (y) {{ {KEPT}
          again = Loop(count, "", last) <body = more (int64 j, bool d, float[e,f] z)
            => (bool on, float[k,l] o) {{ on = Identity(d) o = Cos(z) }}>
          y = MatMul(again, w) }}""",
        w=weights(3, 2),
    )
    normalize(model, opsets=range(18, 19), ir_version=10)
    assert known_shape(model.graph.outputs[0]) == ("n", 2)
    assert [node.op_type for node in model.graph] == ["Loop", "Loop", "MatMul"]


def test_a_product_after_a_loop_is_trained():
    # It was refused: the rank of its input was unknown.
    model = text_model(
        f"""{HEAD} net (float[n,3] x, float[3,2] w) => (float[n,2] y) {{
          count = Constant<value_int = 4>() {KEPT}
          y = MatMul(last, w) }}""",
        w=weights(3, 2),
    )
    program = build_program(model, ProgramConfig(loss=LossConfig("mse")))
    assert [entry.name for entry in program.catalogue.entries("parameter")] == ["w"]


@pytest.mark.parametrize(
    ("body", "first", "second"),
    [
        ("s = MatMul(h, w) t = Tanh(k)", ("n", 3), ("n", 3)),
        ("s = Add(h, k) t = Identity(h)", ("n", 3), ("n", 3)),
        ("s = Concat<axis = 0>(h, h) t = Neg(k)", (None, 3), ("n", 3)),
        ("s = ReduceSum<keepdims = 0>(h) t = Neg(k)", None, ("n", 3)),
        ("s = Concat<axis = 0>(h, k) t = Neg(h)", (None, 3), (None, 3)),  # the one by the other
    ],
)
def test_states_keep_what_an_iteration_keeps(body, first, second):
    model = text_model(
        f"""{HEAD} net (float[n,3] x, float[n,3] z, int64 count, float[3,3] w) => (r, b) {{
          a, b = Loop(count, "", x, z) <body = step (int64 i, bool c, float[] h, float[] k)
            => (bool d, float[] s, float[] t) {{ d = Identity(c) {body} }}>
          r = Relu(a) }}""",
        w=weights(3, 3),
    )
    infer_shapes(model)
    assert known_shape(model.graph[0].outputs[0]) is None
    infer_loops(model)
    assert told(model) == [first, second]


def test_a_name_that_inference_invents_in_the_body_stays_there():
    # The same name was invented outside, for another length.
    model = text_model(
        f"""{HEAD} net (float[n,3] x, int64 count, bool[n] keep) => (few, last, each) {{
          few = Compress<axis = 0>(x, keep)
          last, each = Loop(count, "", x) <body = step (int64 i, bool c, float[] s)
            => (bool go, float[] next, float[] slice) {{
              go = Identity(c) next = Tanh(s) slice = Compress<axis = 0>(s, keep) }}> }}"""
    )
    infer_shapes(model)
    infer_loops(model)
    few, last, each = (known_shape(value) for value in model.graph.outputs)
    assert isinstance(few[0], str)
    assert last == ("n", 3)
    assert each == (None, None, 3)


def test_a_model_without_loops_is_not_inferred_again(monkeypatch):
    monkeypatch.delattr("ortboost.graph.shapes.loop_shapes.infer_shapes")
    infer_loops(text_model(f"{HEAD} net (float[n] x) => (y) {{ y = Neg(x) }}"))
