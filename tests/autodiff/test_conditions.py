from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.autodiff.conditions import (
    column_major,
    empty_axes,
    fixed_axes,
    reduced_axes,
    unknown_axes,
    unknown_rank,
)
from ortboost.graph.build import Builder
from ortboost.graph.rewriting import Refusal, Site

HEAD = '<ir_version: 10, opset_import: ["" : 18]> net'


def node_of(text: str) -> ir.Node:
    return next(iter(ir.from_onnx_text(f"{HEAD} {text}").graph))


def reduction(
    attributes: str = "", axes: str = "", given: str = "", x: str = "float[2,3,4] x"
) -> Site:
    node = node_of(
        f"({x}{', int64[k] a' if axes == ', a' and not given else ''}) => (float y) {given} "
        f"{{ y = ReduceSum{attributes}(x{axes}) }}"
    )
    assert isinstance(node.graph, ir.Graph)
    return Site(node, Builder(node.graph, "test"), 18)


@pytest.mark.parametrize(
    ("arguments", "axes"),
    [
        ({}, (0, 1, 2)),
        ({"attributes": "<noop_with_empty_axes = 1>"}, ()),
        ({"axes": ", a", "given": "<int64[2] a = {-1, 0}>"}, (0, 2)),
        ({"axes": ", a"}, None),
        ({"x": "float x"}, ()),
    ],
)
def test_the_axes_of_a_reduction(arguments, axes):
    site = reduction(**arguments)
    assert reduced_axes(site) == axes
    if axes is None:
        with pytest.raises(Refusal, match="not constant"):
            fixed_axes(site)
        assert "not constant" in (unknown_axes(site.node) or "")
    else:
        assert fixed_axes(site) == axes
        assert unknown_axes(site.node) is None


@pytest.mark.parametrize(("x", "axis"), [("float x", 0), ("float[2,3] x", 2), ("float[2] x", -2)])
def test_axes_that_the_input_lacks(x, axis):
    site = reduction(axes=", a", given=f"<int64[1] a = {{{axis}}}>", x=x)
    with pytest.raises(Refusal, match=f"has no axis {axis}"):
        reduced_axes(site)


def test_axes_where_the_rank_is_unknown():
    known = reduction(axes=", a", given="<int64[1] a = {1}>")
    known.input(0).shape = None
    assert reduced_axes(known) == (1,)
    assert "rank of 'x'" in (unknown_rank(known.node, 0) or "")
    assert unknown_rank(known.node, 1) is None
    assert "rank of 'x'" in (unknown_rank(known.node) or "")
    with pytest.raises(Refusal, match="rank of 'x'"):
        fixed_axes(known)
    behind = reduction(axes=", a", given="<int64[1] a = {-1}>")
    behind.input(0).shape = None
    assert reduced_axes(behind) is None


def test_reductions_of_nothing():
    assert "disagree" in (empty_axes(reduction("<noop_with_empty_axes = 1>").node) or "")
    assert empty_axes(reduction().node) is None
    with_axes = reduction("<noop_with_empty_axes = 1>", ", a", "<int64[1] a = {1}>")
    assert empty_axes(with_axes.node) is None


@pytest.mark.parametrize(
    ("order", "read", "refused"), [(1, True, True), (1, False, False), (0, True, False)]
)
def test_indices_that_count_columns_first(order, read, refused):
    outputs = "float[1,1,2,2] y, int64[1,1,2,2] i" if read else "float[1,1,2,2] y"
    node = node_of(
        f"(float[1,1,3,3] x) => ({outputs}) "
        f"{{ y, i = MaxPool<kernel_shape = [2, 2], storage_order = {order}>(x) }}"
    )
    assert (column_major(node) is not None) == refused


def test_a_rank_that_a_squeeze_hides_is_said_to_be_its():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4,1] x, float[4,3] w) => (float y) {
            [s] a = Squeeze(x) b = Relu(a) y = MatMul(b, w) }""")
    reason = unknown_rank(model.graph.node(2))
    assert reason == (
        "the rank of 'b' is unknown; 's' removes each axis of length 1, which the batch may have: "
        "export squeeze(dim) instead of squeeze()"
    )


def test_a_rank_that_a_custom_operator_hides_is_said_to_be_its():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>
        net (float[N,4] x, float[4,3] w) => (float y) {
            a = my.ops.Magic(x) b = Relu(a) y = MatMul(b, w) }""")
    reason = unknown_rank(model.graph.node(2))
    assert reason == (
        "the rank of 'b' is unknown; it comes from the custom operator 'my.ops::Magic': export "
        "without that"
    )
    reason = unknown_rank(model.graph.node(1))
    assert reason is not None
    assert "my.ops::Magic" in reason
