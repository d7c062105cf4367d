"""Each operator against onnxruntime's own kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ortboost.graph.normal_form.runtime_operators import write_out_runtime_operators
from ortboost.graph.normalize import normalize
from tests.support import run, text_model, weights

B, S, W = 2, 4, 8  # batch, length, width
X, Z, K = weights(B, S, W), weights(B, S, W, seed=1), weights(B, 5, W, seed=2)
G, H = weights(W, seed=3) + 1, weights(W, seed=4)
IDS = np.array([[0, 2, 1, 3], [4, 4, 0, 1]], np.int32)
MASK = np.array([[1, 1, 1, 0], [1, 0, 1, 1]], np.int32)
BY_QUERY = np.tril(np.ones((B, S, S), np.int32))
LENGTHS = np.array([4, 2], np.int32)
TABLES = (weights(6, W, seed=5), weights(7, W, seed=6), weights(5, W, seed=7))
QKV = (weights(W, 3 * W, seed=8), weights(3 * W, seed=9))
RELATIVE = weights(B, 2, S, S, seed=10)
ANGLES = weights(6, 2, seed=11)
PLACES = IDS.astype(np.int64)
ROTARY = (PLACES, np.cos(ANGLES), np.sin(ANGLES))
IMAGES, KERNEL, SHIFT = weights(2, 3, 5, 5), weights(4, 3, 3, 3, seed=1), weights(4, seed=2)
DENSE = (weights(B, W), weights(5, W, seed=1), weights(5, seed=2))

CASES: dict[str, tuple[Any, ...]] = {
    "SkipLayerNormalization": ((X, Z, G, H), {"epsilon": 0.01}),
    "SkipLayerNormalization, bias": ((X, Z, G, H, H), {}),
    "SkipLayerNormalization, no beta": ((X, Z[0], G), {}),
    "SkipLayerNormalization, sum": ((X, Z, G, H, H), {}, (0, 3)),
    "SkipSimplifiedLayerNormalization": ((X, Z, G), {"epsilon": 0.01}),
    "SkipSimplifiedLayerNormalization, sum": ((X, Z, G), {}, (0, 3)),
    "SkipSimplifiedLayerNormalization, bias": ((X, Z, G, H), {}, (0, 3)),
    "EmbedLayerNormalization": ((IDS, MASK, *TABLES, G, H, MASK), {}, (0, 1)),
    "EmbedLayerNormalization, count": (
        (IDS, MASK, *TABLES, G, H, MASK),
        {"epsilon": 0.01, "mask_index_type": 1},
        (0, 1),
    ),
    "EmbedLayerNormalization, no segments": (
        (IDS, None, *TABLES[:2], None, G, H, None, IDS),
        {},
        (0, 1, 2),
    ),
    "Attention": ((X, *QKV), {"num_heads": 2}),
    "Attention, scale": ((X, *QKV, MASK), {"num_heads": 4, "scale": 0.3}),
    "Attention, widths": (
        (X, QKV[0][:, :20], QKV[1][:20], MASK),
        {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]},
    ),
    "Attention, causal": ((X, *QKV, MASK), {"num_heads": 2, "unidirectional": 1}),
    "Attention, filter": ((X, *QKV, MASK), {"num_heads": 2, "mask_filter_value": -1.0}),
    "Attention, by query": ((X, *QKV, BY_QUERY), {"num_heads": 2}),
    "Attention, lengths": ((X, *QKV, LENGTHS), {"num_heads": 2}),
    "Attention, relative": ((X, *QKV, MASK, None, RELATIVE), {"num_heads": 2}),
    "MultiHeadAttention": ((X, Z, X), {"num_heads": 2}),
    "MultiHeadAttention, bias": ((X, Z, X, QKV[1], MASK), {"num_heads": 2, "scale": 0.3}),
    "MultiHeadAttention, causal": ((X, Z, X), {"num_heads": 2, "unidirectional": 1}),
    "MultiHeadAttention, other keys": ((X, K, K, QKV[1]), {"num_heads": 2}),
    "MultiHeadAttention, by head": (
        (X, K.reshape(B, 2, 5, 4), K.reshape(B, 2, 5, 4)),
        {"num_heads": 2},
    ),
    "MultiHeadAttention, relative": ((X, Z, X, None, None, RELATIVE), {"num_heads": 2}),
    "MultiHeadAttention, parts": ((X, Z, X, QKV[1]), {"num_heads": 2}, (0, 1, 2)),
    "RotaryEmbedding": ((X, *ROTARY), {}),
    "RotaryEmbedding, interleaved": ((X, *ROTARY), {"interleaved": 1}),
    "RotaryEmbedding, first position": ((X, np.array([1]), *ROTARY[1:]), {}),
    "RotaryEmbedding, by head": ((X.reshape(B, 2, S, 4), *ROTARY), {}),
    "RotaryEmbedding, part": ((X, *ROTARY), {"num_heads": 1, "rotary_embedding_dim": 4}),
    "RotaryEmbedding, part by head": (
        (X.reshape(B, 1, S, 8), *ROTARY),
        {"num_heads": 1, "rotary_embedding_dim": 4, "interleaved": 1},
    ),
    "FusedMatMul": ((X, QKV[0]), {"alpha": 0.3}),
    "FusedMatMul, A": ((X, Z), {"alpha": 0.3, "transA": 1}),
    "FusedMatMul, B": ((X, Z), {"transB": 1}),
    "FusedMatMul, batch": (
        (weights(4, 2, 3, 5), weights(2, 3, 5, 6, seed=1)),
        {"transBatchA": 1},
    ),
    "FusedMatMul, batch and A": (
        (weights(5, 2, 3, 4), weights(2, 3, 5, 6, seed=1)),
        {"transBatchA": 1, "transA": 1},
    ),
    "FusedMatMul, batch B": (
        (weights(2, 3, 4, 5), weights(6, 2, 3, 5, seed=1)),
        {"transBatchB": 1, "transB": 1},
    ),
    "TransposeMatMul": ((X, Z), {"transB": 1}),
    "FusedGemm": (DENSE, {"transB": 1, "alpha": 0.5, "activation": "Tanh"}),
    "FusedGemm, alpha": (
        DENSE,
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2},
    ),
    "FusedConv": ((IMAGES, KERNEL, SHIFT), {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    "FusedConv, sum": (
        (IMAGES, KERNEL, SHIFT, weights(2, 4, 3, 3, seed=3)),
        {"activation": "LeakyRelu", "activation_params": [0.2]},
    ),
    "FusedConv, limits": (
        (IMAGES, KERNEL),
        {"activation": "Clip", "activation_params": [-0.3, 0.4], "strides": [2, 2]},
    ),
    "FusedConv, hard sigmoid": (
        (IMAGES, KERNEL),
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ),
}


def net(
    operator: str,
    inputs: tuple[np.ndarray | None, ...],
    attributes: dict[str, Any],
    outputs: tuple[int, ...] = (0,),
    domain: str = "com.microsoft",
    opset: int = 18,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds."""
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    names = [f"y{i}" if i in outputs else "" for i in range(max(outputs) + 1)]
    node = helper.make_node(
        operator,
        [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)],
        names,
        domain=domain,
        **attributes,
    )
    types = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in feeds.items()}
    counts = TensorProto.INT32 if operator == "EmbedLayerNormalization" else TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info(n, types[n], v.shape) for n, v in feeds.items()],
        [
            helper.make_tensor_value_info(n, counts if n == "y1" else TensorProto.FLOAT, None)
            for n in names
            if n
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def written_out(proto: onnx.ModelProto) -> ir.Model:
    model = ir.from_proto(proto)
    normalize(model, opsets=range(18, 22), ir_version=10)
    return model


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_computes_the_same(case):
    if case == "SkipSimplifiedLayerNormalization, bias" and onnxruntime.__version__ < "1.20":
        pytest.skip("the kernel of onnxruntime 1.19 ignores this bias")
    proto, feeds = net(case.split(",")[0], *CASES[case])
    expected, model = run(ir.from_proto(proto), feeds), written_out(proto)
    assert not [node for node in model.graph if node.domain]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    found = run(model, feeds)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6)
    assert not write_out_runtime_operators(model).modified


@pytest.mark.parametrize(
    ("operator", "opset"),
    [
        ("SimplifiedLayerNormalization", 17),
        ("SimplifiedLayerNormalization", 18),
        ("LayerNormalization", 14),
    ],
)
def test_a_normalization_in_the_domain_of_the_standard(operator, opset):
    inputs = (X, G) if operator[0] == "S" else (X, G, H)
    proto, feeds = net(operator, inputs, {"axis": -1, "epsilon": 0.01}, domain="", opset=opset)
    expected, model = run(ir.from_proto(proto), feeds), written_out(proto)
    assert "SimplifiedLayerNormalization" not in {node.op_type for node in model.graph}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, feeds)["y0"], expected["y0"], rtol=2e-5, atol=2e-6)


def test_a_rank_that_another_of_these_operators_hides():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[N,3,4] x) => (float[N,3,3] y) {
          a = com.microsoft.FusedMatMul <transB = 1> (x, x)
          b = Relu(a)
          y = com.microsoft.FusedMatMul <transA = 1, alpha = 0.5> (b, b) }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert not [node for node in model.graph if node.domain]
    a = np.maximum(X[:, :3, :4] @ X[:, :3, :4].transpose(0, 2, 1), 0)
    found = run(model, {"x": X[:, :3, :4]})["y"]
    np.testing.assert_allclose(found, 0.5 * a.transpose(0, 2, 1) @ a, rtol=1e-5, atol=1e-6)


PAST = weights(2, B, 2, 3, 4)
REFUSED = {
    "Attention, cache": ((X, *QKV, None, PAST), {"num_heads": 2}, "cache"),
    "Attention, mask of rank 4": (
        (X, *QKV, np.ones((B, 1, S, S), np.int32)),
        {"num_heads": 2},
        "rank of its mask",
    ),
    "Attention, starts and ends": (
        (X, *QKV, np.array([4, 2, 0, 1], np.int32)),
        {"num_heads": 2},
        "more than a length",
    ),
    "Attention, heads": ((X, *QKV), {"num_heads": 3}, "do not divide"),
    "Attention, turned": ((X, *QKV), {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
    "MultiHeadAttention, packed": ((weights(B, S, 2, 3, 4),), {"num_heads": 2}, "packed"),
    "MultiHeadAttention, cache": (
        (X, Z, X, None, None, None, PAST[0], PAST[1]),
        {"num_heads": 2},
        "cache",
    ),
    "RotaryEmbedding, scale": ((X, *ROTARY), {"scale": 2.0}, "scale"),
    "FusedConv": ((IMAGES, KERNEL), {"activation": "Mish"}, "'Mish'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_form_that_is_not_covered_is_refused(case):
    inputs, attributes, why = REFUSED[case]
    proto, _ = net(case.split(",")[0], inputs, attributes)
    model = ir.from_proto(proto)
    assert why in " ".join(write_out_runtime_operators(model).kept.values())
    assert [node.domain for node in model.graph] == ["com.microsoft"]


@pytest.mark.parametrize(
    ("op", "keep", "opset"),
    [
        ("FusedMatMul <alpha = 0.5> (x, w)", False, 18),
        ("FusedMatMul <alpha = 0.5> (x, w)", True, 17),
        ("FastGelu (x)", False, 17),
    ],
    ids=["written out", "kept on request", "differentiated as it is"],
)
def test_only_a_file_with_operators_to_write_out_gets_a_newer_opset(op, keep, opset):
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N,3] x, float[3,3] w) => (float[N,3] y) {{ y = com.microsoft.{op} }}"""
    )
    normalize(model, opsets=range(15, 22), ir_version=10, keep_fused=keep)
    assert model.opset_imports[""] == opset
    assert any(node.domain for node in model.graph) == (opset == 17)
