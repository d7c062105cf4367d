"""Each rewrite: structure, numbers, checker, idempotence, and where it must not fire."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.native.rewrites import REWRITES, prepare
from ortboost.autodiff.native.rewrites.batch_norm import frozen_batch_norm, guarded_statistics
from ortboost.autodiff.native.rewrites.broadcasting import expanded_branches
from ortboost.autodiff.native.rewrites.forms import ordinary_forms
from ortboost.autodiff.native.rewrites.outputs import complete_nodes
from ortboost.autodiff.native.support import gradient_support
from ortboost.autodiff.padding import explicit_padding
from tests.autodiff.oracle import random_feeds
from tests.support import native_only, run

native_only()


# rewrite, body between x and y, further inputs, operators afterwards
FIRES = {
    "conv_same": (
        explicit_padding,
        "float[2,3,5,6] x, float[4,3,3,3] w",
        'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)',
        ["Conv"],
    ),
    "pool_valid": (
        explicit_padding,
        "float[N,3,H,W] x",
        'y = MaxPool<auto_pad="VALID", kernel_shape=[2,2]>(x)',
        ["MaxPool"],
    ),
    "conv_same_dynamic_stride_1": (
        explicit_padding,
        "float[N,3,H,W] x, float[4,3,3,3] w",
        'y = Conv<auto_pad="SAME_LOWER">(x, w)',
        ["Conv"],
    ),
    "batch_norm": (
        frozen_batch_norm,
        "float[N,3,H] x, float[3] s, float[3] b, float[3] m",
        "v = Exp(m) y = BatchNormalization(x, s, b, m, v)",
        ["Exp", "Add", "Sqrt", "Div", "Mul", "Sub", "Unsqueeze", "Unsqueeze", "Mul", "Add"],
    ),
    "where": (
        expanded_branches,
        "float[3,4] x, float[4] w",
        "c = Greater(x, w) y = Where(c, x, w)",
        ["Greater", "Where", "Shape", "Expand", "Expand", "Where"],
    ),
    "slice_backwards": (
        ordinary_forms,
        "float[N,6] x",
        "s = Constant<value_ints=[-1]>() e = Constant<value_ints=[-9]>() "
        "t = Constant<value_ints=[-2]>() y = Slice(x, s, e, s, t)",
        ["Constant", "Constant", "Squeeze", "Range", "Slice", "Slice", "Slice", "Gather"],
    ),
    "pow_int": (
        expanded_branches,
        "float[3,4] x",
        "two = Constant<value_int=2>() y = Pow(x, two)",
        ["Pow"],
    ),
    "layer_norm": (
        complete_nodes,
        "float[N,4] x, float[4] s",
        "y = LayerNormalization(x, s)",
        ["LayerNormalization"],
    ),
    "layer_norm_of_a_computed_width": (
        complete_nodes,
        "float[N,K] x, float[K] s",
        "y = LayerNormalization(x, s)",
        ["Shape", "ConstantOfShape", "LayerNormalization"],
    ),
    "dropout_off": (complete_nodes, "float[N,4] x", "y = Dropout(x)", ["Identity"]),
    "matmul_vector": (
        ordinary_forms,
        "float[N,4] x, float[4] w",
        "y = MatMul(x, w)",
        ["Unsqueeze", "MatMul", "Squeeze"],
    ),
    "cast_to_the_same": (ordinary_forms, "float[N,4] x", "y = Cast<to = 1>(x)", ["Identity"]),
    "cast_like_the_same": (
        ordinary_forms,
        "float[N,4] x, float[1] w",
        "y = CastLike(x, w)",
        ["Identity"],
    ),
    "cast_like": (
        ordinary_forms,
        "float[N,4] x, float[1] w",
        "h = Cast<to = 11>(x) y = CastLike(h, w)",
        ["Cast", "Cast"],
    ),
    "flip": (
        ordinary_forms,
        "float[N,4] x",
        "s = Constant<value_ints=[-1]>() e = Constant<value_ints=[-9223372036854775807]>() "
        "y = Slice(x, s, e, s, s)",
        ["Constant", "Constant", "Squeeze", "Range", "Slice", "Slice", "Slice", "Gather"],
    ),
    "transpose": (ordinary_forms, "float[N,4] x", "y = Transpose(x)", ["Transpose"]),
    "relu6": (
        ordinary_forms,
        "float[N,4] x",
        "low = Constant<value = float {0}>() high = Constant<value = float {6}>() "
        "y = Clip(x, low, high)",
        ["Constant", "Relu", "Clip"],
    ),
    "steep_leaky_relu": (
        ordinary_forms,
        "float[N,4] x",
        "y = LeakyRelu<alpha=-0.5>(x)",
        ["Relu", "Mul", "Mul", "Add"],
    ),
    "gelu_tanh": (
        ordinary_forms,
        "float[N,4] x",
        'y = Gelu<approximate="tanh">(x)',
        ["Mul", "Mul", "Add", "Mul", "Mul", "Sigmoid", "Mul"],
    ),
    "conv_1d_in_groups": (
        ordinary_forms,
        "float[N,4,7] x, float[4,2,3] w, float[4] b",
        "y = Conv<group=2, strides=[2], dilations=[2], pads=[1,2], kernel_shape=[3]>(x, w, b)",
        ["Unsqueeze", "Unsqueeze", "Conv", "Squeeze"],
    ),
    "gemm_scalar": (
        ordinary_forms,
        "float[N,4] x, float[3,4] w, float c",
        "y = Gemm<transB=1, alpha=2.0, beta=0.5>(x, w, c)",
        ["Unsqueeze", "Gemm"],
    ),
    "norm_of_all": (
        ordinary_forms,
        "float[3,4] x",
        "a = Constant<value_ints=[0,1]>() y = ReduceL2<keepdims=0>(x, a)",
        ["ReduceL2", "Squeeze"],
    ),
    "sum_over_an_axis_twice": (
        ordinary_forms,
        "float[3,4] x",
        "a = Constant<value_ints=[1,-1]>() y = ReduceSum<keepdims=0>(x, a)",
        ["ReduceSum"],
    ),
    "scalar_erf": (ordinary_forms, "float x", "y = Erf(x)", ["Unsqueeze", "Erf", "Squeeze"]),
    "scatter_add": (
        ordinary_forms,
        "float[3,4] x, float[1,4] w",
        "i = Constant<value=int64[1,4]{2,0,1,1}>() "
        'y = ScatterElements<axis=0, reduction="add">(x, i, w)',
        ["Constant", "Shape", "ConstantOfShape", "ScatterElements", "Add"],
    ),
    "guard": (
        guarded_statistics,
        "float[4,3] x, float[3] s, float[3] b, float[3] m",
        "v = Exp(m) y, nm, nv = BatchNormalization<training_mode=1>(x, s, b, m, v)",
        ["Exp", "Sum", "BatchNormalization"],
    ),
}

SILENT = {
    "explicit_pads": (
        explicit_padding,
        "float[N,3,H,W] x, float[4,3,3,3] w",
        "y = Conv<pads=[1,1,1,1]>(x, w)",
    ),
    "training_batch_norm": (
        frozen_batch_norm,
        "float[4,3] x, float[3] s, float[3] b, float[3] m, float[3] v",
        "y, nm, nv = BatchNormalization<training_mode=1>(x, s, b, m, v)",
    ),
    "full_where": (
        expanded_branches,
        "float[3,4] x, float[3,4] w",
        "c = Greater(x, w) y = Where(c, x, w)",
    ),
    "where_same_symbol": (
        expanded_branches,
        "float[N,4] x, float[N,4] w",
        "c = Greater(x, w) y = Where(c, x, w)",
    ),
    "int_where": (
        expanded_branches,
        "float[3,4] x, float[1] w",
        "c = Greater(x, w) i = Shape(x) j = Size(x) q = Constant<value_ints=[1]>() "
        "k = Cast<to=7>(x) l = Where(c, k, j) y = Cast<to=1>(l)",
    ),
    "float_pow": (
        expanded_branches,
        "float[N,4] x",
        "two = Constant<value_float=2.0>() y = Pow(x, two)",
    ),
    "whole_layer_norm": (
        complete_nodes,
        "float[N,4] x, float[4] s, float[4] b",
        "y, m, i = LayerNormalization(x, s, b)",
    ),
    "matrix_product": (ordinary_forms, "float[N,4] x, float[4,2] w", "y = MatMul(x, w)"),
    "leaky_relu": (ordinary_forms, "float[N,4] x", "y = LeakyRelu<alpha=0.1>(x)"),
    "clip": (ordinary_forms, "float[N,4] x, float low", "y = Clip(x, low)"),
    "slice_of_no_axes": (  # as MindSpore writes it
        ordinary_forms,
        "float[N,4] x",
        "n = Constant<value_ints: ints = []>() y = Slice(x, n, n, n, n)",
    ),
    "integer_clip": (  # the runtime has no Relu of them
        ordinary_forms,
        "float[N,4] x",
        "i = Cast<to=7>(x) low = Constant<value_int=0>() c = Clip(i, low) y = Cast<to=1>(c)",
    ),
}


def model_of(inputs, body):
    text = f"g ({inputs}) => (float y) {{ {body} }}"
    model = ir.from_onnx_text('<ir_version: 10, opset_import: ["" : 20]>\n' + text)
    model.graph.outputs[0].shape = None
    for node in model.graph:
        node.name = f"{node.outputs[0].name}/{node.op_type}"
    from ortboost.graph.shapes.shape_inference import infer_shapes

    infer_shapes(model)
    return model


@pytest.mark.parametrize("name", FIRES)
def test_fires(name):
    rewrite, inputs, body, operators = FIRES[name]
    model = model_of(inputs, body)
    feeds = random_feeds(model, N=2, H=5, W=6)
    before = run(model, {k: v.copy() for k, v in feeds.items()})["y"]
    report = rewrite(model)
    assert report.modified
    assert [node.op_type for node in model.graph] == operators
    assert all("auto_pad" not in node.attributes for node in model.graph)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, feeds)["y"], before, rtol=1e-5, atol=1e-5)
    assert not rewrite(model).modified


@pytest.mark.parametrize("name", SILENT)
def test_does_not_fire(name):
    rewrite, inputs, body = SILENT[name]
    model = model_of(inputs, body)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not rewrite(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", FIRES)
def test_prepare_is_idempotent(name):
    _, inputs, body, _ = FIRES[name]
    model = model_of(inputs, body)
    assert prepare(model)
    assert [r for r in prepare(model) if r.modified] == []


def test_the_output_shape_of_a_transposed_convolution_becomes_pads():
    model = model_of(
        "float[N,2,5] x, float[2,3,3] w", "y = ConvTranspose<output_shape=[9], strides=[2]>(x, w)"
    )
    assert explicit_padding(model).modified
    (node,) = model.graph
    assert node.attributes.get_ints("pads") == (1, 1)  # without them it has 2 * 4 + 3 elements
    assert "output_shape" not in node.attributes


def test_an_output_beyond_the_kernel_of_a_transposed_convolution_is_padded():
    body = "y = ConvTranspose<output_shape=[12,9], strides=[2,2]>(x, w, b)"  # else 11 and 8
    model = model_of("float[N,2,5,4] x, float[2,3,3,2] w, float[3] b", body)
    feeds = random_feeds(model, N=2)
    before = run(model, feeds)["y"]
    assert explicit_padding(model).modified
    assert model.graph.node(0).attributes.get_ints("pads") == (0, 0, 0, 0)
    assert model.graph.node(0).attributes.get_ints("output_padding") == (1, 1)
    np.testing.assert_allclose(run(model, feeds)["y"], before, rtol=1e-5, atol=1e-6)


def test_same_padding_of_unknown_size_is_refused_with_a_way_out():
    model = model_of(
        "float[N,3,H,W] x, float[4,3,3,3] w", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)'
    )
    report = explicit_padding(model)
    assert not report.modified
    (reason,) = report.kept.values()
    assert "export with explicit pads" in reason


@pytest.mark.parametrize(
    ("inputs", "body"),
    [
        (
            "float[N,2,L] x, float[2,1,3] w",
            'y = Conv<auto_pad="SAME_UPPER", strides=[2], group=2>(x, w)',
        ),
        (
            "float[N,2,L] x",
            'y = AveragePool<auto_pad="SAME_UPPER", strides=[2], kernel_shape=[3]>(x)',
        ),
    ],
)
def test_a_form_with_unknown_padding_is_left_to_the_refusal(inputs, body):
    """Written as an ordinary form, it would lose its padding, and with it the refusal."""
    model = model_of(inputs, body)
    reports = prepare(model)
    (node,) = model.graph
    assert node.attributes.get_string("auto_pad", "") == "SAME_UPPER"
    assert "not fixed" in (gradient_support(node) or "")
    assert all("not fixed" in why for report in reports for why in report.kept.values())


def test_training_batch_norm_leaves_what_it_is_fed_alone():
    model = model_of(
        "float[4,3] x, float[3] s, float[3] b, float[3] m, float[3] v",
        "q, nm, nv = BatchNormalization<training_mode=1>(x, s, b, m, v) n = Add(nm, nv) y = Add(q, "
        "n)",
    )
    feeds = random_feeds(model)
    raw = {k: v.copy() for k, v in feeds.items()}
    run(model, raw)
    assert not np.array_equal(raw["m"], feeds["m"])  # the runtime overwrote its input
    guarded_statistics(model)
    kept = {k: v.copy() for k, v in feeds.items()}
    run(model, kept)
    assert np.array_equal(kept["m"], feeds["m"])
    assert np.array_equal(kept["v"], feeds["v"])


def test_rewrites_are_named_after_what_they_do():
    empty = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18]>\ng (float[3] x) => (float[3] y) { y = Exp(x) }'
    )
    assert [rewrite(empty).rewrite for rewrite in REWRITES] == [
        rewrite.__name__ for rewrite in REWRITES
    ]
