"""An `If` from two functions: values, copies, names, types."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.branches import choose
from ortboost.graph.build import Builder
from tests.support import run


def chosen(then, otherwise, like=None):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g")
    x, flag = ir.val("x", ir.DataType.FLOAT, [2]), ir.val("flag", ir.DataType.BOOL, [])
    graph.inputs.extend([x, flag])
    b = Builder(graph, "demo")
    outside = b.op("Neg", x, shape=(2,))
    b.flush()
    found = choose(
        b,
        "demo/gate",
        flag,
        lambda: then(b, x, outside),
        lambda: otherwise(b, x, outside),
        like or {},
        prefix="demo/next/",
    )
    graph.outputs.extend(found.values())
    model = ir.Model(graph, ir_version=10)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, found


@pytest.mark.parametrize("flag", [True, False])
def test_results_by_key_from_either_branch(flag):
    def then(b, x, outside):
        twice = b.op("Add", x, x, shape=(2,))
        return {"a": twice, "b": twice, "c": outside, "d": x}  # only one is made inside, and once

    def otherwise(b, x, outside):
        return {"d": b.op("Abs", outside), "c": x, "b": outside, "a": x}  # in another order

    model, found = chosen(then, otherwise)
    assert [value.name for value in found.values()] == [f"demo/next/{key}" for key in "abcd"]
    assert [list(value.shape) for value in found.values()] == [[2]] * 4
    x = np.array([1, -2], np.float32)
    expected = [2 * x, 2 * x, -x, x] if flag else [x, -x, x, np.abs(x)]
    results = run(model, {"x": x, "flag": np.array(flag)})
    for value, wanted in zip(results.values(), expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_types_and_shapes_are_those_that_are_asked_for():
    like = {"a": ir.val("like", ir.DataType.FLOAT, ["n"])}
    model, found = chosen(
        lambda b, x, _: {"a": b.op("Neg", x)}, lambda b, x, _: {"a": b.op("Abs", x)}, like
    )
    assert list(found["a"].shape) == ["n"]
    (gate,) = (node for node in model.graph if node.op_type == "If")
    branches = [attribute.as_graph() for attribute in gate.attributes.values()]
    assert [list(branch.outputs[0].shape) for branch in branches] == [["n"], ["n"]]
    assert [branch.name for branch in branches] == ["demo/gate/then", "demo/gate/else"]
