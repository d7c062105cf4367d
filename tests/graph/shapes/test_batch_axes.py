from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.core.errors import UsageError
from ortboost.graph.shapes.batch_axes import UNKNOWN, find_batch_axes, model_batch_axes, row_picker
from tests.support import assert_three_lines

CASES = {
    "names": ({"x": ("b", 3), "mask": ("b", "s")}, "b", {"x": 0, "mask": 0}),
    "a state": ({"x": ("batch", 3), "h": (2, "batch", 8)}, "batch", {"x": 0, "h": 1}),
    "time first": ({"x": ("time", "batch", 3)}, "batch", {"x": 1}),
    "a scalar": ({"x": ("batch", 3), "sr": ()}, "batch", {"x": 0, "sr": None}),
    "a fixed state": ({"x": ("t", 576), "h": (1, 1, 8)}, "t", {"x": 0, "h": None}),
    "fixed lengths": ({"x": (4, 5), "h": (2, 4, 8)}, 4, {"x": 0, "h": 1}),
    "a fixed input of another length": ({"x": (4, 5), "k": (3, 3)}, 4, {"x": 0, "k": None}),
    "one image": ({"x": (1, 1, 28, 28)}, 1, {"x": 0}),
    "names of their own": ({"a": ("a0", 3), "b": ("b0", 4)}, "y0", {"a": 0, "b": 0}),
    "one name in front": ({"x": ("b", 3), "h": (1, "b", 8)}, "out0", {"x": 0, "h": 1}),
    "no names": ({"a": (None, 3), "b": (None, None)}, None, {"a": 0, "b": 0}),
    "a state without names": (
        {"x": (None, None), "h": (2, None, 8), "sr": ()},
        None,
        {"x": 0, "h": UNKNOWN, "sr": None},
    ),
    "edges": ({"x": ("nodes", 5), "e": (2, "edges")}, "nodes", {"x": 0, "e": UNKNOWN}),
    "sequence first in the predictions": (
        {"x": ("seq", "batch", 3)},
        "seq",
        {"x": UNKNOWN},
    ),
    "nothing fits": ({"x": (4, 5), "y": (6, 5)}, 3, {"x": UNKNOWN, "y": UNKNOWN}),
    "different fixed lengths": ({"x": (4, 5), "y": (6, 5)}, None, {"x": UNKNOWN, "y": UNKNOWN}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_axis_is_found_or_left_open(case):
    shapes, first, expected = CASES[case]
    assert find_batch_axes(shapes, first) == expected


def test_what_is_given_wins():
    shapes = {"x": ("n", 3), "h": (2, None, 8)}
    assert find_batch_axes(shapes, "n", {"h": 1}) == {"x": 0, "h": 1}
    assert find_batch_axes(shapes, "n", {"h": -2}, whole=True) == {"x": None, "h": 1}
    assert find_batch_axes(shapes, "n", {"h": None}) == {"x": 0, "h": None}


@pytest.mark.parametrize("given", [{"state": 1}, {"h": 3}, {"h": -4}, {"sr": 0}])
def test_what_cannot_be_is_refused(given):
    with pytest.raises(UsageError) as info:
        find_batch_axes({"h": (2, None, 8), "sr": ()}, None, given)
    assert_three_lines(info.value)


def test_axes_that_contradict_each_other_are_refused():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[t,n,3] x, int64[t,n] labels) => (float[t,n,3] y) { y = Identity(x) }"""
    )
    axes = {"x": 1, "labels": 1}
    assert model_batch_axes(model, axes, prediction="y", labels="labels") == axes
    with pytest.raises(UsageError, match="contradict each other") as info:
        model_batch_axes(model, {"x": 1}, prediction="y", labels="labels")
    assert_three_lines(info.value)


def graph(inputs: str, body: str) -> ir.Model:
    return ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({inputs}) => (float[n,4] y) {{ {body} }}"""
    )


X, E = "float[n,4] x", "int64[2,m] e"
ROWS = "z = Constant<value = int64 {0}>() s = Gather(e, z) "
PICKED = {
    "gather": ROWS + "y = Gather(x, s)",
    "scatter": ROWS + "u = Unsqueeze(s, o) i = Expand(u, k) y = ScatterElements(x, i, x)",
    "gather nd": ROWS + "u = Unsqueeze(s, o) c = Concat<axis = -1>(u) y = GatherND(x, c)",
    "with loops": "l = Concat<axis = 1>(e, e) z = Constant<value = int64 {0}>() s = Gather(l, z) "
    "y = Gather(x, s)",
    "from the end": ROWS
    + "b = Less(s, z) a = Add(s, z) w = Where(b, a, s) h = Relu(x) y = Gather(h, w)",
    "an axis from the end": ROWS + "y = Gather<axis = -2>(x, s)",  # of PyTorch Geometric
    "without its own loops": "t = Transpose(e) d = NonZero(t) r = GatherND(t, d) y = Gather(x, r)",
}
NOT_PICKED = {
    "a table": (f"{X}, int64[n] e, float[9,4] t", "y = Gather(t, e)"),
    "another axis": (f"{X}, int64[4] e", "y = Gather<axis = 1>(x, e)"),
    "the last axis": (f"{X}, int64[4] e", "y = Gather<axis = -1>(x, e)"),
    "positions in samples": (f"{X}, int64[n,4] e", "y = GatherElements<axis = 1>(x, e)"),
    "one input": ("float[n,4] x", "y = Relu(x)"),
}


@pytest.mark.parametrize("case", PICKED)
def test_edges_are_found(case):
    constants = "o = Constant<value_ints = [1]>() k = Constant<value_ints = [1, 4]>() "
    model = graph(f"{X}, {E}", constants + PICKED[case])
    assert row_picker(model) == "e"
    assert model_batch_axes(model) == {"x": None, "e": None}


@pytest.mark.parametrize("case", NOT_PICKED)
def test_other_indices_are_no_edges(case):
    inputs, body = NOT_PICKED[case]
    model = graph(inputs, body)
    if case == "a table":  # it is stored, not fed
        table = model.graph.inputs.pop()
        model.graph.register_initializer(table) if table.const_value else None
    assert row_picker(model) is None


def test_labels_say_nothing_of_the_inputs():
    """Their first dimension is that of the predictions, which may have a different name."""
    model = graph("float[batch,4] x, int64[out] labels", "y = Relu(x)")
    model.graph.outputs[0].shape = ir.Shape(("out", 4))
    assert model_batch_axes(model, labels="labels") == {"x": 0, "labels": 0}
    assert model_batch_axes(model, {"labels": None}, labels="labels") == {"x": 0, "labels": None}


def test_a_scalar_label_has_no_axis():
    """One number for the whole batch."""
    model = graph("float[batch,4] x, float labels", "y = Relu(x)")
    model.graph.inputs[1].shape = ir.Shape(())
    assert model_batch_axes(model, labels="labels") == {"x": 0, "labels": None}


def test_the_axis_of_the_labels_is_checked_as_others_are():
    model = graph("float[batch,4] x, int64[batch,2] labels", "y = Relu(x)")
    assert model_batch_axes(model, {"labels": -1}, labels="labels") == {"x": 0, "labels": 1}
    with pytest.raises(UsageError, match="'labels' has no axis 2"):
        model_batch_axes(model, {"labels": 2}, labels="labels")
