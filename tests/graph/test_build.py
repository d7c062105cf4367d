from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder, all_names, insert_after, replace_node
from tests.support import assert_three_lines, run, text_model


def two_outputs() -> ir.Model:
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] a, float[N] b) {
          [relu] a = Relu(x)
          [copy] b = Neg(a)
        }"""
    )


def with_branches() -> ir.Model:
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N] x) => (float[N] y) {
          [gate] y = If(c) <
            then_branch = yes () => (float[N] t) { [inner] t = Relu(x) },
            else_branch = no () => (float[N] e) { [other] e = Neg(x) }
          >
        }"""
    )


def test_names_of_subgraphs_count_as_taken():
    assert {"c", "x", "y", "gate", "t", "inner", "e", "other"} <= all_names(with_branches().graph)


def test_names_are_unique_even_against_subgraphs_and_itself():
    builder = Builder(with_branches().graph, "p")
    made = [builder.unique(name) for name in ("t", "t", "inner", "new", "new", "new_1")]
    assert len(set(made)) == len(made)
    assert not set(made) & {"t", "inner"}
    assert "new" in made


def test_every_node_gets_a_name_and_outputs_are_named_after_the_prefix():
    model = two_outputs()
    builder = Builder(model.graph, "p")
    values = [builder.op("Relu", model.graph.inputs[0]) for _ in range(3)]
    assert [value.name for value in values] == ["p/Relu", "p/Relu_1", "p/Relu_2"]
    names = [node.name for node in builder.nodes]
    assert all(names)
    assert len(set(names)) == 3


def test_the_element_type_follows_the_first_input():
    model = text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (double[N] x) => (double[N] y) {'
        " y = Relu(x) }"
    )
    builder = Builder(model.graph, "p")
    x = model.graph.inputs[0]
    assert builder.op("Neg", x).dtype == ir.DataType.DOUBLE
    assert builder.op("Neg", x, dtype=ir.DataType.FLOAT).dtype == ir.DataType.FLOAT


def test_the_element_type_is_that_of_the_operator_or_of_the_branches():
    graph = two_outputs().graph
    builder, x = Builder(graph, "p"), graph.inputs[0]
    condition = builder.op("Greater", x, x)
    assert condition.dtype == ir.DataType.BOOL
    assert builder.op("Shape", x).dtype == ir.DataType.INT64
    assert builder.op("Cast", x, to=ir.DataType.FLOAT16).dtype == ir.DataType.FLOAT16
    assert builder.op("Where", condition, x, x).dtype == ir.DataType.FLOAT
    assert builder.op("Where", condition, ir.Value(name="unknown"), x).dtype == ir.DataType.FLOAT


def test_equal_constants_are_one_initializer():
    graph = two_outputs().graph
    builder = Builder(graph, "p")
    assert builder.const(2.0) is builder.const(np.float32(2))
    assert builder.const(2.0) is not builder.const(3.0)
    assert builder.const(2.0) is not builder.const([2.0])
    assert builder.const(2.0) is not builder.const(2.0, ir.DataType.DOUBLE)
    assert builder.const(0.0) is not builder.const(-0.0)
    assert len(graph.initializers) == 6


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)])
def test_constants_keep_their_rank(shape):
    builder = Builder(two_outputs().graph, "p")
    constant = builder.const(np.zeros(shape))
    assert constant.const_value.numpy().shape == shape
    assert tuple(constant.shape) == shape


def test_shared_values_live_until_they_are_taken():
    builder = Builder(two_outputs().graph, "p")
    made = []

    def make():
        made.append(builder.const(float(len(made))))
        return made[-1]

    assert builder.shared("k", make) is builder.shared("k", make)
    builder.take()
    builder.shared("k", make)
    assert len(made) == 2


def test_flush_appends_and_empties():
    model = two_outputs()
    builder = Builder(model.graph, "p")
    builder.op("Relu", model.graph.inputs[0])
    builder.flush()
    builder.flush()
    assert len(model.graph) == 3
    assert builder.nodes == []


@pytest.mark.parametrize("suffix", [None, "exact"])
def test_all_others_read_the_value_that_is_inserted_after_another(suffix):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] a, float[N] b) { a = Relu(x) b = Neg(a) }"""
    )
    graph = model.graph
    old = graph[0].outputs[0]
    builder = Builder(graph, "p")
    new = builder.op("Add", old, old)
    insert_after(old, new, builder, suffix=suffix)
    assert [node.op_type for node in graph] == ["Relu", "Add", "Neg"]
    assert graph[1].inputs == (old, old)
    assert graph[2].inputs == (new,)
    assert graph.outputs[0] is new
    assert (old.name, new.name) == (("a", "p/Add") if suffix is None else ("a/exact", "a"))


def test_replace_node_takes_over_name_and_uses():
    model = two_outputs()
    node = next(n for n in model.graph if n.name == "relu")
    builder = Builder(model.graph, "p")
    new = builder.op("Max", model.graph.inputs[0], builder.const(0.0))
    replace_node(node, [new], builder)
    assert [value.name for value in model.graph.outputs] == ["a", "b"]
    assert [n.op_type for n in model.graph] == ["Max", "Neg"]
    x = np.array([-1, 2], np.float32)
    found = run(model, {"x": x})
    np.testing.assert_array_equal(found["a"], [0, 2])
    np.testing.assert_array_equal(found["b"], [0, -2])


@pytest.mark.parametrize("replacement", ["a", "x"])
def test_a_value_that_was_there_before_keeps_its_name(replacement):
    model = two_outputs()
    node = next(n for n in model.graph if n.name == "copy")
    old = node.inputs[0] if replacement == "a" else model.graph.inputs[0]
    replace_node(node, [old], Builder(model.graph, "p"))
    assert [value.name for value in model.graph.outputs] == ["a", "b"]
    assert [value.name for value in model.graph.inputs] == ["x"]
    x = np.array([-1, 2], np.float32)
    found = run(model, {"x": x})
    np.testing.assert_array_equal(found["a"], [0, 2])
    np.testing.assert_array_equal(found["b"], [0, 2] if replacement == "a" else x)


def test_replace_node_leaves_unused_outputs_out():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] y) { [drop] y, mask = Dropout(x) }"""
    )
    node = next(iter(model.graph))
    builder = Builder(model.graph, "p")
    replace_node(node, [builder.op("Relu", model.graph.inputs[0]), None], builder)
    assert [n.op_type for n in model.graph] == ["Relu"]


def test_a_node_outside_a_graph_cannot_be_replaced():
    value = ir.Value(name="v")
    with pytest.raises(TypeError):
        replace_node(ir.Node("", "Relu", [value]), [value], Builder(two_outputs().graph, "p"))


def test_what_the_opset_does_not_have_is_refused():
    for opset, known in ((14, False), (15, True)):
        graph = ir.Graph([], [], nodes=[], opset_imports={"": opset})
        builder = Builder(graph, "t")
        x = builder.const(1.0)
        builder.op("Shape", x)
        if known:
            builder.op("Shape", x, start=0)
            continue
        with pytest.raises(ModelError, match="needs 'start', which opset 14") as info:
            builder.op("Shape", x, start=0)
        assert_three_lines(info.value)
        with pytest.raises(ModelError, match="needs 'Gelu'"):
            builder.op("Gelu", x)


def test_many_nodes_are_removed_at_once():
    model = two_outputs()
    first, second = list(model.graph)
    builder = Builder(model.graph, "new")
    replace_node(second, [builder.op("Abs", first.outputs[0])], builder, remove=False)
    assert second.graph is model.graph
    assert list(second.inputs) == [None]
    model.graph.remove([second], safe=True)
    assert [node.op_type for node in model.graph] == ["Relu", "Abs"]
    assert [value.name for value in model.graph.outputs] == ["a", "b"]
    found = run(model, {"x": np.array([-2, 3], np.float32)})
    np.testing.assert_array_equal(found["b"], [0, 3])


def test_a_constant_that_a_rewrite_has_changed_is_not_given_again():
    """Two layers without a bias begin with one tensor of zeros; the first folds a bias into it."""
    builder = Builder(two_outputs().graph, "p")
    zeros = builder.const(np.zeros(3))
    zeros.const_value = ir.tensor(np.ones(3, np.float32))
    again = builder.const(np.zeros(3))
    assert again is not zeros
    assert not again.const_value.numpy().any()
    assert builder.const(np.zeros(3)) is again
