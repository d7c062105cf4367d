from __future__ import annotations

import numpy as np

from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.query import find_nodes
from tests.support import run, text_model


def test_a_weight_in_a_function_that_is_called_twice_stays_one():
    """jax2onnx writes a module with its weights, whose calls share them, as such a function."""
    model = text_model("""<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        net (float[N,2] x, bool positive) => (float[N,2] y) {
          a = local.Block(x)
          b = If(positive) <
            then_branch = g () => (float[N,2] c) { c = local.Block(a) },
            else_branch = h () => (float[N,2] d) { d = Identity(a) }>
          y = local.Block(b) }
        <domain: "local", opset_import: ["" : 18]> Block (x) => (y) {
          w = Constant<value = float[2,2] {1, 2, 3, 4}>() m = MatMul(x, w)
          s = Constant<value = float[2] {1, 1}>() y = Add(m, s) }""")
    inline_functions(model)
    constants = find_nodes(model.graph.all_nodes(), "Constant")
    assert [len(node.outputs[0].uses()) for node in constants] == [3, 3]
    x, w = np.float32([[1, -1]]), np.float32([[1, 2], [3, 4]])
    once = x @ w + 1
    twice = once @ w + 1
    for positive, b in ((True, twice), (False, once)):
        feeds = {"x": x, "positive": np.array(positive)}
        np.testing.assert_allclose(run(model, feeds)["y"], b @ w + 1)
