"""Slices, concatenations, kept dimensions, zero states and paddings: one node where two were."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.deploy.rewrites.common_subexpressions import common_subexpressions
from ortboost.deploy.rewrites.dead_code import dead_code
from ortboost.deploy.rewrites.drop_zero_states import drop_zero_states
from ortboost.deploy.rewrites.fuse_pad import fuse_pad
from ortboost.deploy.rewrites.merge_neighbours import merge_neighbours
from ortboost.deploy.rewrites.merge_views import merge_views
from tests.deploy.rewrites.support import check, model_of, ops
from tests.support import weights

X, OTHER = {"x": weights(2, 6, 4)}, {"x": weights(5, 6, 4, seed=1)}
LONG = np.iinfo(np.int64).max


def net(body, outputs="float[n,a,b] y", inputs="float[n,6,4] x", **stored):
    given = ", ".join(
        f"{ {'i': 'int64', 'f': 'float'}[np.asarray(v).dtype.kind] }"
        f"{list(np.shape(v)) if np.ndim(v) else ''} {k}"
        for k, v in stored.items()
    )
    return model_of(body, f"{inputs}, {given}" if given else inputs, outputs, **stored)


def one(number):
    return np.array([number])


# ---- softmax -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "axis", "merged"),
    [
        ("float[n,6,4] x", 2, True),
        ("float[n,6,4] x", -1, True),
        ("float[n,6,4] x", 1, False),  # joins two axes
        ("float[n,24,1] x", 1, True),
    ],
)
def test_a_softmax_of_one_axis_needs_no_views(inputs, axis, merged):
    """As the converter of onnx writes Softmax of opset 12."""
    body = f"f = Flatten<axis = {axis}>(x) p = Softmax(f) s = Shape(x) y = Reshape(p, s)"
    model = net(body, inputs=inputs, outputs=inputs.replace("x", "y"))
    shape = (24, 1) if "24" in inputs else (6, 4)
    feeds = [{"x": weights(n, *shape, seed=n)} for n in (2, 5)]
    if not merged:
        assert not merge_neighbours(model).modified
        return
    check(merge_neighbours, model, *feeds)
    dead_code(model)
    assert ops(model) == {"Softmax": 1}


def test_a_softmax_over_the_rows_keeps_its_views():
    body = "f = Flatten<axis = 2>(x) p = Softmax<axis = 0>(f) s = Shape(x) y = Reshape(p, s)"
    model = net(body, inputs="float[n,6,4] x", outputs="float[n,6,4] y")
    assert not merge_neighbours(model).modified


# ---- slices --------------------------------------------------------------------------------------


def test_slices_over_different_axes_are_one():
    model = net(
        "a = Slice(x, s, e, ax1, two) y = Slice(a, s, e, ax2, two) z = Slice(a, one, e, last)",
        "float[n,3,2] y, float[n,3,3] z",
        s=one(0), e=one(LONG), ax1=one(1), ax2=one(2), two=one(2), one=one(1), last=one(-1),
    )  # fmt: skip
    check(merge_neighbours, model, X, OTHER)
    assert ops(model) == {"Slice": 2}


@pytest.mark.parametrize(
    "body",
    [
        "a = Slice(x, s, e, ax1) y = Slice(a, s, e, ax1)",  # the same axis
        "a = Slice(x, s, e, ax1) b = Slice(a, s, e, ax2) y = Add(b, c) c = ReduceSum(a)",
    ],
)
def test_slices_that_stay(body):
    if "ReduceSum" in body:
        body = "a = Slice(x, s, e, ax1) c = ReduceSum(a) b = Slice(a, s, e, ax2) y = Add(b, c)"
    model = net(body, s=one(1), e=one(LONG), ax1=one(1), ax2=one(2))
    assert not check(merge_neighbours, model, X).changed


# ---- concatenations ------------------------------------------------------------------------------


def test_concatenations_along_one_axis_are_one():
    model = net(
        "r = Relu(x) a = Concat<axis = 1>(x, r) b = Concat<axis = -2>(r, a, x) y = Concat<axis = "
        "1>(b, b)"
    )
    check(merge_neighbours, model, X, OTHER)
    assert ops(model) == {"Relu": 1, "Concat": 1}


def test_a_concatenation_that_others_take_in_is_not_made():
    model = net(
        "r = Relu(x) a = Concat<axis = 1>(x, r) b = Concat<axis = 1>(r, a) c = Concat<axis = 1>(a,"
        " x) y = Mul(b, c)"
    )
    check(merge_neighbours, model, X, OTHER)
    assert ops(model) == {"Relu": 1, "Concat": 2, "Mul": 1}
    model = net("a = Concat<axis = 1>(x, x) b = Concat<axis = 1>(a, a) s = Abs(a) y = Add(b, s)")
    assert not merge_neighbours(model).changed  # Abs needs it
    body = "a = Concat<axis = 1>(x, x) y = Concat<axis = 1>(a, x)"
    model = net(body, outputs="float[n,a,b] y, float[n,c,d] a")
    assert not check(merge_neighbours, model, X).changed  # an output of the model


def test_concatenations_along_other_axes_stay():
    model = net("a = Concat<axis = 1>(x, x) y = Concat<axis = 2>(a, a)")
    assert not check(merge_neighbours, model, X).changed


# ---- dimensions that are taken away and given back -----------------------------------------------


@pytest.mark.parametrize("axis", [1, -2])
def test_a_gather_keeps_the_dimension(axis):
    model = net(
        f"g = Gather<axis = {axis}>(x, i) y = Unsqueeze(g, back)", i=np.array(-2), back=one(1)
    )
    check(merge_neighbours, model, X, OTHER)
    assert ops(model) == {"Gather": 1}


def test_a_gather_with_another_axis_stays():
    model = net("g = Gather<axis = 1>(x, i) y = Unsqueeze(g, back)", i=np.array(2), back=one(2))
    assert not check(merge_neighbours, model, X).changed


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2"])
def test_a_reduction_keeps_the_dimension(op):
    body = f"r = {op}<keepdims = 0>(x, axes) y = Unsqueeze(r, axes)"
    model = net(body, axes=np.array([-1]))
    check(merge_neighbours, model, X, OTHER)
    assert ops(model) == {op: 1}
    model = net(f"{body.replace('y', 'u')} z = Relu(u)", "float[n,6,1] z", axes=one(-1))
    check(merge_neighbours, model, X)
    assert model.graph[0].outputs[0].name == "u"  # 'r' was a tensor of another shape
    model = net(f"r = {op}<keepdims = 0>(x, axes) y = Unsqueeze(r, back)", axes=one(2), back=one(1))
    assert not check(merge_neighbours, model, X).changed
    model = net(body.replace("keepdims = 0", "keepdims = 1"), "float[n,6,1,1] y", axes=one(-1))
    assert not check(merge_neighbours, model, X).changed


def test_no_axes_are_all_axes_of_a_reduction_and_none_of_an_unsqueeze():
    none = np.array([], np.int64)
    model = net("r = ReduceSum<keepdims = 0>(x, none) y = Unsqueeze(r, none)", "float y", none=none)
    assert not check(merge_neighbours, model, X).changed


# ---- states --------------------------------------------------------------------------------------

LSTM = "LSTM<hidden_size = 3>(t, w, r, , , {h}, {c})"


@pytest.mark.parametrize(
    ("state", "dropped"),
    [
        ("h = ConstantOfShape(shape)", True),
        ("h0 = ConstantOfShape(long) h = Slice(h0, zero, one)", True),
        ("h = Expand(nought, shape)", True),
        ("h = Expand(some, shape)", False),
        ("h0 = ConstantOfShape(shape) h = Concat<axis = 1>(h0)", True),
        ("h0 = ConstantOfShape(shape) h = Neg(h0)", True),
        ("h0 = ConstantOfShape(shape) h = Cos(h0)", False),
        ("h = ConstantOfShape<value = float[1] {1}>(shape)", False),
    ],
)
def test_states_of_zero_are_left_out(state, dropped):
    body = (
        "t = Transpose<perm = [1, 0, 2]>(x) size = Shape<start = 0, end = 1>(x) "
        "shape = Concat<axis = 0>(single, size, three) long = Concat<axis = 0>(two, size, three) "
        f"{state} y = {LSTM.format(h='h', c='h')}"
    )
    model = net(
        body, "float[6,1,n,3] y", single=one(1), two=one(2), three=one(3), zero=one(0), one=one(1),
        nought=np.float32(0), some=np.float32(0.5), w=weights(1, 12, 4),
        r=weights(1, 12, 3, seed=1),
    )  # fmt: skip
    report = check(drop_zero_states, model, X, OTHER)
    node = next(node for node in model.graph if node.op_type == "LSTM")
    assert len(report.changed) == (2 if dropped else 0)
    assert (node.inputs[5] is None) is dropped


# ---- padding -------------------------------------------------------------------------------------

IMAGE = {"x": weights(2, 3, 5, 5)}


def padded(pads, *, conv="Conv<pads = [1, 0, 0, 2]>", value=0.0, pad="Pad", **more):
    return net(
        f"p = {pad}(x, pads, value) y = {conv}(p, w)", "float[n,4,h,k] y", "float[n,3,5,5] x",
        pads=np.array(pads), value=np.float32(value), w=weights(4, 3, 3, 3), **more,
    )  # fmt: skip


@pytest.mark.parametrize("conv", ["Conv", "Conv<pads = [1, 0, 0, 2]>", "Conv<strides = [2, 2]>"])
def test_a_padding_goes_into_the_convolution(conv):
    model = padded([0, 0, 1, 2, 0, 0, 0, 3], conv=conv)
    check(fuse_pad, model, IMAGE)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize(
    "model",
    [
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], value=1.0),
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], pad='Pad<mode = "edge">'),
        lambda: padded([0, 0, -1, 1, 0, 0, 1, 1]),
        lambda: padded([1, 0, 1, 1, 0, 0, 1, 1]),
        lambda: padded([0, 0, 1, 1, 0, 0, 1, 1], conv='Conv<auto_pad = "SAME_UPPER">'),
    ],
)
def test_paddings_that_stay(model):
    assert not check(fuse_pad, model(), IMAGE).changed


# ---- what other rewrites learned -----------------------------------------------------------------


def test_a_view_that_is_undone_goes_though_the_first_is_read_again():
    model = net(
        "q = Squeeze(x, z) a = Unsqueeze(q, z) y = Relu(a) b = Relu(q)",
        "float[1,6,4] y, float[6,4] b", "float[1,6,4] x", z=one(0),
    )  # fmt: skip
    check(merge_views, model, {"x": weights(1, 6, 4)})
    assert ops(model) == {"Squeeze": 1, "Relu": 2}


def test_a_transpose_of_ones_is_a_view():
    model = net(
        "t = Transpose<perm = [0, 2, 1, 3]>(x) y = Reshape(t, s)", "float[n,24] y",
        "float[n,1,6,4] x", s=np.array([0, 24]),
    )  # fmt: skip
    check(merge_views, model, {"x": weights(3, 1, 6, 4)})
    assert ops(model) == {"Reshape": 1}


def test_equal_nodes_of_a_branch_are_one_and_its_stored_tensors_go():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[4] x) => (float[4] y) {
          y = If(c) <
            then_branch = t () => (float[4] a) <float[2] unread = {1, 2}> {
              e = Exp(x) f = Exp(x) a = Add(e, f) },
            else_branch = f () => (float[4] b) { b = Neg(x) }
          >
        }"""
    )
    before = answer(model)
    common_subexpressions(model)
    dead_code(model)
    assert ops(model) == {"If": 1, "Exp": 1, "Add": 1, "Neg": 1}
    assert not any(graph.initializers for graph in model.graphs())
    np.testing.assert_array_equal(answer(model), before)


def answer(model):
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"c": np.array(True), "x": np.ones(4, np.float32)})[0]


def test_a_custom_operator_may_have_an_attribute_of_that_name():
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        net (float[2,3] x) => (float[2,1,3] y) <int64[1] a = {1}> {
          t = my.Reduce<keepdims = "no">(x)
          y = Unsqueeze(t, a)
        }"""
    )
    assert not merge_neighbours(model).changed
