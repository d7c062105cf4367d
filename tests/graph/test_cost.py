from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.core.errors import UsageError
from ortboost.graph.cost import count_cost, with_lengths
from ortboost.graph.io import load_model
from ortboost.graph.query import static_shape
from tests.support import assert_three_lines, model_path, small_convnet


def net(body: str, signature: str, opset: int = 18) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["" : {opset}]> net {signature} {{ {body} }}'
    )


def conv(size: int, channels_in: int, channels: int, kernel: int = 3, groups: int = 1) -> int:
    """The textbook formula, for a square output."""
    return size * size * channels * (channels_in // groups) * kernel * kernel


# ---- known networks -----------------------------------------------------------------------------


def test_mlp_and_lenet_by_hand():
    assert count_cost(load_model(model_path("mlp"))).total == 64 * 32 + 32 * 10
    lenet = count_cost(load_model(model_path("lenet5")))
    convolutions = conv(8, 1, 16, 5) + conv(4, 16, 32, 5)
    dense = 32 * 2 * 2 * 120 + 120 * 84 + 84 * 10
    assert lenet.macs == {"Conv": convolutions, "Gemm": dense}
    assert lenet.flops == 2 * (convolutions + dense)
    assert not lenet.uncounted
    assert lenet.shapes == {"x": (1, 1, 8, 8)}


def test_resnet20_by_hand():
    stem = conv(32, 3, 16)
    first = 6 * conv(32, 16, 16)
    second = conv(16, 16, 32) + 5 * conv(16, 32, 32) + conv(16, 16, 32, kernel=1)
    third = conv(8, 32, 64) + 5 * conv(8, 64, 64) + conv(8, 32, 64, kernel=1)
    found = count_cost(load_model(model_path("resnet20")))
    assert found.macs == {"Conv": stem + first + second + third, "Gemm": 64 * 10}
    # 40.55 million is the figure usually quoted for ResNet-20 without projections.
    projections = conv(16, 16, 32, kernel=1) + conv(8, 32, 64, kernel=1)
    assert round((found.total - projections) / 1e6, 2) == 40.55


def test_transformer_by_hand():
    # Its shapes are computed by the graph itself: Shape, Slice, Concat, Reshape.
    width, tokens, batch = 64, 16, 3
    layer = 4 * width * width * tokens + 2 * width * 2 * width * tokens + 2 * tokens**2 * width
    found = count_cost(load_model(model_path("transformer_tiny")), batch=batch)
    assert found.total == batch * (2 * layer + width * 10)
    assert not found.uncounted


@pytest.mark.parametrize("name", ["resnet_bottleneck", "mobilenet_like"])
def test_work_grows_with_the_batch(name):
    model = load_model(model_path(name))
    one = count_cost(model).total
    assert count_cost(model, batch=7).total == 7 * one > 0
    assert count_cost(model, {"x:0": 5}, batch=7).total == 5 * one


# ---- operators ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "signature", "macs"),
    [
        (
            "y = Conv<group = 2, strides = [2, 2]>(x, w)",
            "(float[1,4,9,9] x, float[6,2,3,3] w) => (float[1,6,4,4] y)",
            4 * 4 * 6 * 2 * 9,
        ),
        (
            "y = ConvTranspose<group = 2, strides = [2, 2]>(x, w)",
            "(float[2,4,5,5] x, float[4,3,3,3] w) => (float[2,6,11,11] y)",
            2 * 4 * 5 * 5 * 3 * 9,
        ),
        ("y = Conv(x, w)", "(float[1,2,10] x, float[3,2,4] w) => (float[1,3,7] y)", 7 * 3 * 2 * 4),
        (
            "y = Gemm<transA = 1>(a, b)",
            "(float[5,2] a, float[5,3] b) => (float[2,3] y)",
            2 * 3 * 5,
        ),
        ("y = MatMul(a, b)", "(float[7,1,2,3] a, float[5,3,4] b) => (float[7,5,2,4] y)", 35 * 24),
        ("y = MatMul(a, b)", "(float[3] a, float[3] b) => (float y)", 3),
        ("y = MatMul(a, b)", "(float[2,3] a, float[3] b) => (float[2] y)", 6),
        (
            'y = Einsum<equation = "bik, bkj -> bij">(a, b)',
            "(float[2,3,4] a, float[2,4,5] b) => (float[2,3,5] y)",
            2 * 3 * 4 * 5,
        ),
        (
            'y = Einsum<equation = "...ik,...kj->...ij">(a, b)',
            "(float[7,2,3,4] a, float[2,4,5] b) => (float[7,2,3,5] y)",
            7 * 2 * 3 * 4 * 5,
        ),
        (
            "y = LSTM<hidden_size = 5>(x, w, r)",
            "(float[9,2,3] x, float[1,20,3] w, float[1,20,5] r) => (float[9,1,2,5] y)",
            9 * 2 * 4 * 5 * (3 + 5),
        ),
        (
            'y = GRU<hidden_size = 5, direction = "bidirectional">(x, w, r)',
            "(float[9,2,3] x, float[2,15,3] w, float[2,15,5] r) => (float[9,2,2,5] y)",
            9 * 2 * 2 * 3 * 5 * (3 + 5),
        ),
        (
            "y = MatMulInteger(a, b)",
            "(uint8[2,3] a, uint8[3,4] b) => (int32[2,4] y)",
            24,
        ),
    ],
)
def test_operators_by_hand(body, signature, macs):
    found = count_cost(net(body, signature))
    assert found.total == macs
    assert not found.uncounted


def test_what_is_not_counted_is_nothing():
    found = count_cost(small_convnet())
    assert found.macs == {"Conv": 6 * 6 * 4 * 9, "Gemm": 12}
    assert found.nodes == {"conv": 1296, "fc": 12}  # no BatchNormalization, Relu, pooling


def test_of_an_if_the_dearer_branch_counts():
    model = net(
        """y = If (c) <
             then_branch = a () => (float[2,5] t) { t = MatMul(x, v) },
             else_branch = b () => (float[2,5] e) { h = MatMul(x, w)  e = MatMul(h, v2) }
           >""",
        "(bool c, float[2,3] x, float[3,5] v, float[3,4] w, float[4,5] v2) => (float[2,5] y)",
    )
    assert count_cost(model).total == 2 * 4 * 3 + 2 * 5 * 4


def test_a_loop_is_reported_and_not_guessed():
    model = net(
        """y = Loop (n, c, x) <body = b (int64 i, bool k, float[2,2] h) => (bool k2, float[2,2] g) {
             k2 = Identity(k)  g = MatMul(h, w) }>""",
        "(int64 n, bool c, float[2,2] x, float[2,2] w) => (float[2,2] y)",
    )
    found = count_cost(model)
    assert found.total == 0
    assert "Loop" in next(iter(found.uncounted.values()))


def test_functions_count_as_what_they_are():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18, "mine" : 1]>
        net (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = mine.dense(x, w) }
        <domain: "mine", opset_import: ["" : 18]> dense (a, b) => (c) { c = MatMul(a, b) }"""
    )
    assert count_cost(model).total == 24
    assert len(model.functions) == 1  # the given model is not changed


# ---- shapes -------------------------------------------------------------------------------------


def test_open_dimensions_are_not_guessed():
    model = net("y = MatMul(x, w)", "(float[n,s,k] x, float[k,2] w) => (float[n,s,2] y)")
    found = count_cost(model)
    assert found.total == 0
    assert list(found.uncounted) == ["y"]
    found = count_cost(model, {"n": 2, "s": 5, "x:2": 3})  # k of w follows
    assert found.total == 2 * 5 * 3 * 2
    assert found.shapes == {"x": (2, 5, 3), "w": (3, 2)}


def test_stale_shapes_of_an_exporter_do_not_count():
    model = net("h = Relu(x)  y = MatMul(h, w)", "(float[n,3] x, float[3,2] w) => (float[n,2] y)")
    model.graph.node(0).outputs[0].shape = ir.Shape([9, 3])
    assert count_cost(model, batch=4).total == 4 * 3 * 2
    settled = with_lengths(model, {}, batch=4)
    assert static_shape(settled.graph.outputs[0]) == (4, 2)
    assert static_shape(model.graph.inputs[0]) is None  # the given model is not changed


@pytest.mark.parametrize("dims", [{"m": 3}, {"x:2": 3}, {"x:1": 4}], ids=["name", "rank", "length"])
def test_lengths_that_do_not_fit(dims):
    model = net("y = MatMul(x, w)", "(float[n,3] x, float[3,2] w) => (float[n,2] y)")
    with pytest.raises(UsageError) as caught:
        count_cost(model, dims)
    assert_three_lines(caught.value)


def test_an_einsum_whose_equation_does_not_fit_is_not_counted():
    model = net('y = Einsum<equation = "ij,jk->ik">(x, w)', "(float[2,3,4] x, float[3,4] w) => (y)")
    assert list(count_cost(model).uncounted) == ["y"]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [("LSTM<hidden_size = 2>", ("2,2", "2,2")), ("Gemm", ("2", "2,2")), ("Attention", ("2", "2"))],
)
def test_ranks_that_do_not_fit_are_not_counted(op, shapes):
    x, w = shapes
    model = net(f"y = {op}(x, w, w)", f"(float[{x}] x, float[{w}] w) => (float[2,2] y)", 23)
    assert list(count_cost(model).uncounted) == ["y"]


@pytest.mark.parametrize(
    ("attributes", "query", "key"),
    [("", "2,4,5,8", "2,4,7,8"), ("<q_num_heads = 4, kv_num_heads = 4>", "2,5,32", "2,7,32")],
)
def test_attention(attributes, query, key):
    """Of 4 heads of size 8, with 5 queries and 7 keys."""
    model = net(
        f"y = Attention{attributes}(q, k, k)",
        f"(float[{query}] q, float[{key}] k) => (float y)",
        23,
    )
    model.graph.outputs[0].shape = None
    assert count_cost(model).total == 2 * 2 * 4 * 5 * 7 * 8


def test_lengths_beyond_a_stored_table_are_no_warning(caplog):
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[n,length] x) => (float[a,b] y) <float[1,2] table = {1, 2}> {
          s = Shape(x)  t = Expand(table, s)  y = Mul(x, t)
        }"""
    )
    count_cost(model, {"length": 5})
    assert not caplog.records
