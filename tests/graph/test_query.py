from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.query import (
    all_graphs,
    all_nodes,
    all_tensors,
    has_subgraph,
    known_shape,
    match_names,
    permutation,
    source_before,
    static_shape,
    subgraphs,
)
from tests.support import text_model


def branched() -> ir.Model:
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N] x, float[1] w) => (float[N] y) {
          y = If(c) <
            then_branch = yes () => (float[N] t) { t = Mul(x, w) },
            else_branch = no () => (float[N] e) <float[1] inner = {2.0}> { e = Add(x, inner) }
          >
        }""",
        w=np.float32([2]),
    )


def test_all_tensors_looks_into_subgraphs():
    assert {value.name for value, _ in all_tensors(branched())} == {"w", "inner"}


def test_the_subgraphs_of_a_node():
    model = branched()
    (branch,) = model.graph
    assert [graph.name for graph in subgraphs(branch)] == ["yes", "no"]
    assert has_subgraph(branch)
    (node,) = next(subgraphs(branch))
    assert not has_subgraph(node)


def test_nodes_and_graphs_are_those_of_onnx_ir_in_its_order():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N] x) => (float[N] y) {
          a = Neg(x)
          b = If(c) <
            then_branch = outer () => (float[N] t) {
              s = Exp(a)
              t = If(c) <
                then_branch = inner () => (float[N] u) { u = Abs(s) },
                else_branch = empty () => (s) {} > },
            else_branch = other () => (float[N] e) { e = Sqrt(a) } >
          y = Relu(b)
        }"""
    )
    graph = model.graph
    assert list(all_nodes(graph)) == list(graph.all_nodes())
    assert [node.op_type for node in all_nodes(graph)] == "Neg If Exp If Abs Sqrt Relu".split()
    assert [g.name for g in all_graphs(graph)] == ["net", "outer", "inner", "empty", "other"]
    assert list(all_graphs(graph)) == [graph, *graph.subgraphs()]


def test_the_permutation_of_a_transpose():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3,4] x) => (y, r, u, a) {
          y = Transpose <perm = [1, 0, 2]> (x)  r = Transpose(x)
          s = SequenceConstruct(x)  e = ConcatFromSequence <axis = 0> (s)
          u = Transpose(e)  a = Abs(x)
        }"""
    )
    found = {node.outputs[0].name: permutation(node) for node in model.graph}
    assert (found["y"], found["r"], found["u"], found["a"]) == ([1, 0, 2], [2, 1, 0], None, None)
    assert permutation(None) is None


def test_the_source_before_a_chain():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]> net (float[2] x) => (float[2] y) {
          e = Exp(x) a = Identity(e) b = Cast<to = 1>(a) y = Identity(b) }"""
    )
    (y,) = model.graph.outputs
    assert source_before(y, "Identity").name == "b"
    assert source_before(y, "Identity", "Cast").name == "e"
    assert source_before(None, "Identity") is None


@pytest.mark.parametrize(
    ("patterns", "matched", "idle"),
    [
        (["fc1.*"], {"fc1.weight", "fc1.bias"}, []),
        (["*.bias", "no*"], {"fc1.bias"}, ["no*"]),
        (["fc2.weight"], {"fc2.weight"}, []),
        (["fc?.weight", "[x]"], {"fc1.weight", "fc2.weight"}, ["[x]"]),
        ([], set(), []),
    ],
)
def test_match_names(patterns, matched, idle):
    assert match_names(["fc1.weight", "fc1.bias", "fc2.weight"], patterns) == (matched, idle)


def test_names_match_in_their_own_case():
    assert match_names(["Fc1.weight"], ["fc1.*"]) == (set(), ["fc1.*"])


def test_shapes():
    value = ir.Value(name="v", shape=ir.Shape(["batch", 3, None]))
    assert known_shape(value) == ("batch", 3, None)
    assert static_shape(value) is None
    assert known_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="w", shape=ir.Shape([2, 3]))) == (2, 3)


def test_a_name_with_brackets_matches_itself():
    assert match_names(["w['a'][0]", "w['a'][1]"], ["w['a'][0]"]) == ({"w['a'][0]"}, [])
