"""Bodies of If, Loop and Scan: as models of their own, their names; an If from two functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.bodies import (
    as_model,
    captured_values,
    choose,
    own_outputs,
    states_of,
    unwrap,
)
from ortboost.graph.build import Builder, all_names
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape
from tests.autodiff.oracle import graph
from tests.support import run, text_model, weights

NESTED = """g (float[T,2] x, float[2] h, float[2] w, bool c) => (float[2] hn) {
    hn = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] xi) => (float[2] so) {
        so = If(c)<then_branch = t () => (float[2] ty) { ty = Mul(s, w) },
            else_branch = e () => (float[2] ey) { ey = Add(s, xi) }> }>(h, x) }"""


def body_of(model: ir.Model) -> ir.Graph:
    (node,) = [node for node in model.graph if node.op_type in ("Loop", "Scan")]
    return node.attributes["body"].as_graph()


def test_captured_values_are_those_of_outer_graphs():
    assert [value.name for value in captured_values(body_of(graph(NESTED)))] == ["c", "w"]


def test_a_body_put_back_is_the_same_but_for_names():
    model = graph(NESTED)
    (node,) = model.graph
    body = body_of(model)
    before = [inner.op_type for inner in body.all_nodes()]
    alone = as_model(body, model)
    assert [value.name for value in alone.model.graph.inputs] == ["s", "xi", "c", "w"]
    onnx.checker.check_model(ir.to_proto(alone.model))
    node.attributes.pop("body")
    node.attributes["body"] = ir.AttrGraph("body", alone.put_back(model))
    assert [inner.op_type for inner in body_of(model).all_nodes()] == before
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_names_of_a_body_put_back_are_free():
    model = graph(NESTED)
    (node,) = model.graph
    alone = as_model(body_of(model), model)
    node.attributes.pop("body")
    next(iter(alone.model.graph)).outputs[0].name = "x"  # the name of an outer value
    body = alone.put_back(model)
    assert body.outputs[0].name == "x_1"
    assert not all_names(body) & {"x", "h", "hn"}


def test_outputs_are_computed_by_separate_nodes():
    model = graph(
        """g (float[T,2] x, float[2] h) => (float[2] hn, float[T,2] y, float[T,2] z) {
        hn, y, z = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] xi) =>
            (float[2] so, float[2] so, float[2] xi) { so = Add(s, xi) }>(h, x) }"""
    )
    body = body_of(model)
    own_outputs(body)
    producers = [value.producer() for value in body.outputs]
    assert [node.op_type for node in producers] == ["Add", "Identity", "Identity"]
    own_outputs(body)
    assert [value.producer() for value in body.outputs] == producers


def test_states():
    (scan,) = graph(NESTED).graph
    assert states_of(scan) == (0, 0, 1)
    assert states_of(ir.node("Loop", [None, None, ir.Value(name="a"), ir.Value(name="b")])) == (
        2,
        1,
        2,
    )


BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
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


def test_values_of_a_branch_get_names_that_are_free_outside():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[4] x, bool c, float[4] t_1, float[4] t) => (float[4] y) {
          r = If(c)<then_branch = a () => (float[4] t) { t = Relu(x) },
                    else_branch = b () => (float[4] e) { e = Neg(x) }>
          y = Add(r, t_1) }"""
    )
    node = next(iter(model.graph))
    (result,) = unwrap(node.attributes["then_branch"].as_graph(), node)
    assert result.name not in ("t", "t_1")
    node.outputs[0].replace_all_uses_with(result)
    model.graph.remove(node)
    feeds = {"x": weights(4), "t_1": weights(4, seed=1), "t": weights(4), "c": np.array(True)}
    expected = np.maximum(feeds["x"], 0) + feeds["t_1"]
    np.testing.assert_array_equal(run(model, feeds)["y"], expected)


def test_the_lengths_of_one_branch_are_not_those_of_the_other():
    model = text_model(BRANCHES)
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
