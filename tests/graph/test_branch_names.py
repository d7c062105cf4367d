from __future__ import annotations

import numpy as np

from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from tests.support import run, text_model, weights

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (bool c, float[N,T,16] x) => (float[p,q,r,s] y)
<int64[1] o = {0}, int64[1] m = {-1}, int64[1] two = {2}> {
  y = If (c) <
    then_branch = one () => (float[p,q,r,s] a) {
      n = Constant <value_ints = [16]> ()
      to = Concat <axis = 0> (o, m, n)  h = Reshape(x, to)  a = Unsqueeze(h, o) },
    else_branch = two () => (float[p,q,r,s] b) {
      n = Constant <value_ints = [8]> ()
      to = Concat <axis = 0> (o, m, two, n)  h = Reshape(x, to)
      b = Transpose <perm = [0, 2, 1, 3]> (h) }> }"""


def test_the_lengths_of_one_branch_are_not_those_of_the_other():
    model = text_model(TEXT)
    x = weights(2, 3, 16)
    expected = [run(model.clone(), {"c": np.array(c), "x": x})["y"] for c in (True, False)]
    normalize(model, opsets=range(18, 22), ir_version=10)
    nodes = [node for node in model.graph.all_nodes() if node.op_type == "Reshape"]
    shapes = [known_shape(node.outputs[0]) or () for node in nodes]
    assert [(len(shape), shape[-1]) for shape in shapes] == [(3, 16), (4, 8)]
    for c, answer in zip((True, False), expected, strict=True):
        np.testing.assert_array_equal(run(model, {"c": np.array(c), "x": x})["y"], answer)


def test_all_names_differ_and_those_of_the_main_graph_stay():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (bool c, float[2] x) => (float[2] h) {
          g = If (c) <then_branch = one () => (float[2] a) { a = Abs(x) },
                      else_branch = two () => (float[2] a) { h_1 = Exp(x) a = Neg(h_1) }>
          h = Neg(g) }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(names) == len(set(names))
    assert [node.outputs[0].name for node in model.graph] == ["g", "h"]
