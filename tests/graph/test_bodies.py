"""Bodies of If, Loop and Scan as models of their own."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ortboost.graph.bodies import as_model, captured_values, own_outputs, states_of
from ortboost.graph.build import all_names
from tests.autodiff.oracle import graph

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
