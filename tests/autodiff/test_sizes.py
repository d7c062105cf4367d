from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.sizes import computed, joined, length, product
from ortboost.graph.build import Builder
from ortboost.graph.rewriting import Site
from tests.support import run

LENGTHS = {"x": (3, 5)}


def site() -> Site:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[n,5] x) => (float[n,5] y) { y = '
        "Neg(x) }"
    )
    (node,) = model.graph
    return Site(node, Builder(model.graph, "test"), 18)


def value_of(b: Site, vector: ir.Value) -> list[int]:
    """The value of a vector of lengths if x has three rows."""
    graph = b.node.graph
    assert isinstance(graph, ir.Graph)
    graph.extend(b.builder.take())
    graph.outputs.append(vector)
    model = ir.Model(graph, ir_version=10)
    return list(run(model, {"x": np.zeros(LENGTHS["x"], np.float32)})[vector.name or ""])


@pytest.mark.parametrize(("op", "found"), [("Add", 5), ("Sub", 1), ("Mul", 6), ("Div", 1)])
def test_numbers_are_computed_at_once(op, found):
    b = site()
    assert computed(b, op, 3, 2) == found
    assert not b.builder.nodes


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [("Add", None, 0), ("Add", 0, None), ("Sub", None, 0), ("Mul", 1, None), ("Div", None, 1)],
)
def test_what_changes_nothing_makes_no_node(op, left, right):
    b = site()
    rows = length(b, b.input(0), 0)
    count = len(b.builder.nodes)
    pair = [rows if size is None else size for size in (left, right)]
    assert computed(b, op, *pair) is rows
    assert len(b.builder.nodes) == count


@pytest.mark.parametrize(
    ("op", "left", "right", "found"),
    [("Sub", 0, None, -3), ("Mul", None, 2, 6), ("Div", 7, None, 2), ("Add", None, None, 6)],
)
def test_unknown_lengths_at_run_time(op, left, right, found):
    b = site()
    rows = length(b, b.input(0), 0)
    pair = [rows if size is None else size for size in (left, right)]
    made = computed(b, op, *pair)
    assert isinstance(made, ir.Value)
    assert value_of(b, made) == [found]


def test_numbers_of_a_product_are_one_factor():
    b = site()
    rows = length(b, b.input(0), 0)
    made = product(b, [2, rows, 5, rows])
    assert isinstance(made, ir.Value)
    assert [node.op_type for node in b.builder.nodes] == ["Shape", "Mul", "Mul"]
    assert value_of(b, made) == [90]
    assert product(site(), [2, 5]) == 10
    assert product(site(), []) == 1


def test_runs_of_numbers_are_one_constant():
    b = site()
    rows = length(b, b.input(0), 0)
    made = joined(b, [1, 2, rows, 7])
    assert [len(node.inputs) for node in b.builder.nodes if node.op_type == "Concat"] == [3]
    assert value_of(b, made) == [1, 2, 3, 7]
