from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.evaluate import evaluate_node


def test_the_logarithm_of_zero_does_not_warn():
    """T5 stores the logarithms of its distances, of which one is 0."""
    node = ir.node("Log", [ir.Value(name="x")])
    node.outputs[0].name = "y"
    (found,) = evaluate_node(node, {"x": np.float32([0, 1])}, 18) or [None]
    np.testing.assert_array_equal(found, np.float32([-np.inf, 0]))


@pytest.mark.parametrize("op", ["LpNormalization", "GlobalMaxPool", "MaxPool", "LSTM"])
def test_what_the_reference_computes_otherwise_than_the_runtimes(op):
    """Its norm of order 1, for example, is ``sum(x)``."""
    node = ir.node(op, [ir.Value(name="x")], {"p": 1} if op == "LpNormalization" else {})
    node.outputs[0].name = "y"
    assert evaluate_node(node, {"x": np.float32([[[1, -3]]])}, 18) is None


def test_a_batch_normalization_in_training_mode_is_left_to_the_runtime():
    values = {name: np.float32([1, 2]) for name in "sbmv"} | {"x": np.ones((3, 2), np.float32)}
    inputs = [ir.Value(name=name) for name in "xsbmv"]
    for mode in (0, 1):
        node = ir.node("BatchNormalization", inputs, {"training_mode": mode})
        node.outputs[0].name = "y"
        assert (evaluate_node(node, values, 18) is None) == mode
