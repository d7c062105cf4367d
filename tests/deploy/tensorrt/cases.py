"""For every rule a model that breaks it and one that must not: ONNX text, and tensors to store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from tests.support import text_model, weights

OPSET_18 = '<ir_version: 9, opset_import: ["" : 18]>'
FULL = np.ones(3, np.float32)


@dataclass(frozen=True)
class Case:
    """One rule with its two models.

    Args:
        bad: Text of the model that breaks the rule.
        good: Text of a model that must not.
        where: The node or tensor that is named.
        severity: How bad it is.
        target: The version it is checked for.
        stored: Names to tensors of both models.
        bad_stored: Further tensors of the first.
        good_stored: Further tensors of the second.
    """

    bad: str
    good: str
    where: str = "n"
    severity: str = "error"
    target: str = "tensorrt=11"
    stored: dict[str, Any] = field(default_factory=dict)
    bad_stored: dict[str, Any] = field(default_factory=dict)
    good_stored: dict[str, Any] = field(default_factory=dict)

    def models(self) -> tuple[ir.Model, ir.Model]:
        return (
            text_model(self.bad, **self.stored, **self.bad_stored),
            text_model(self.good, **self.stored, **self.good_stored),
        )


def one(
    body: str, inputs: str = "float[2,3] x", outputs: str = "float[2,3] y", **settings: str
) -> str:
    head = settings.get("head", OPSET_18)
    return f"{head} g ({inputs}) => ({outputs}) {{ {body} }}"


AXES = np.array([1])
CASES: dict[str, list[Case]] = {
    "TRT001": [
        Case(
            one("[n] y, m = Dropout(x, r, t)", "float[2,3] x, float r, bool t"),
            one("[n] y, m = Dropout(x, r, t)", "float[2,3] x, float r, bool t"),
            stored={"r": np.float32(0.5)},
            bad_stored={"t": np.bool_(True)},
            good_stored={"t": np.bool_(False)},
        ),
        Case(
            one(
                "[n] y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s)",
                "float[2,3] x, float[3] s",
            ),
            one("[n] y = BatchNormalization(x, s, s, s, s)", "float[2,3] x, float[3] s"),
            stored={"s": FULL},
        ),
        Case(
            one(
                "[n] l = SoftmaxCrossEntropyLoss(x, t) [r] y = Relu(x)",
                "float[2,3] x, int64[2] t",
                "float[2,3] y, float l",
            ),
            one("[n] y = Softmax(x)"),
        ),
        Case(
            one(
                "[n] y = training.ReluGrad(x, x)",
                head='<ir_version: 9, opset_import: ["" : 18, "training" : 1]>',
            ),
            one("[n] y = Relu(x)"),
        ),
        Case(
            one(
                "[n] y, a, b, c, d = BatchNormalization(x, s, s, s, s)",
                "float[2,3] x, float[3] s",
                head='<ir_version: 4, opset_import: ["" : 9]>',
            ),
            one(
                "[n] y = BatchNormalization(x, s, s, s, s)",
                "float[2,3] x, float[3] s",
                head='<ir_version: 4, opset_import: ["" : 9]>',
            ),
            stored={"s": FULL},
        ),
    ],
    "TRT002": [
        Case(
            one(
                "[n] y = com.microsoft.FusedMatMul(x, x)",
                head='<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>',
            ),
            one("[n] y = MatMul(x, w)", "float[2,3] x, float[3,3] w"),
            good_stored={"w": weights(3, 3)},
        ),
        Case(
            one(
                "[n] y = trt.EfficientNMS_TRT(x)",
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
            one("[n] y = Relu(x)"),
            severity="warn",
        ),
        Case(
            one(
                "[n] y = trt.TRT_Attention(x, x, x)",
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
            one("[n] y = Relu(x)"),
            severity="info",
        ),
    ],
    "TRT003": [
        Case(
            one("[n] y = Det(x)", "float[2,3,3] x", "float[2] y"),
            one("[n] y = ReduceSum(x, a)", "float[2,3,3] x, int64[1] a", "float[2,1,3] y"),
            good_stored={"a": AXES},
        ),
        Case(
            one("[n] y, i, j, c = Unique(x)", "float[6] x", "float[u] y"),
            one("[n] y = Relu(x)", "float[6] x", "float[6] y"),
        ),
        Case(  # since 10.16 the parser has it
            one("[n] y = HannWindow(x)", "int64 x", "float[k] y"),
            one("[n] y = Cast<to = 1>(x)", "int64 x", "float y"),
            target="tensorrt=10.1",
        ),
    ],
    "TRT004": [
        Case(one("[n] y = Bogus(x)"), one("[n] y = Relu(x)")),
        Case(  # came with 11
            one("[n] y = Swish(x)", head='<ir_version: 12, opset_import: ["" : 24]>'),
            one("[n] y = Elu(x)", head='<ir_version: 12, opset_import: ["" : 24]>'),
            target="tensorrt=10",
        ),
    ],
    "TRT005": [
        Case(
            one(
                "[n] y = trt.Normalize_TRT(x)",
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
            one(
                "[n] y = trt.EfficientNMS_TRT(x)",
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
        ),
        Case(
            one(
                '[n] y = trt.Reorg_TRT<plugin_version = "1">(x)',
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
            one(
                '[n] y = trt.Reorg_TRT<plugin_version = "2">(x)',
                head='<ir_version: 9, opset_import: ["" : 18, "trt" : 1]>',
            ),
        ),
    ],
    "TRT010": [
        Case(
            one("[n] y = ReduceMean(x, a)", "float[2,3] x, int64[1] a", "float[2,1] y"),
            one("[n] y = ReduceMean(x, a)", "float[2,3] x, int64[1] a", "float[2,1] y"),
            good_stored={"a": AXES},
        ),
        Case(
            one(
                "[k] a = Neg(b) [n] y = ReduceMean(x, a)",
                "float[2,3] x, int64[1] b",
                "float[2,1] y",
            ),
            one(
                "[k] a = Constant<value_ints = [1]>() [n] y = ReduceMean(x, a)",
                outputs="float[2,1] y",
            ),
            bad_stored={"b": np.array([-1])},
        ),
        Case(  # Slice needs no constant axes any more
            one(
                "[n] y = Slice(x, b, b, a)",
                "float[2,3] x, int64[1] b, int64[1] a",
                "float[p,q] y",
            ),
            one(
                "[n] y = Slice(x, b, b, a)",
                "float[2,3] x, int64[1] b, int64[1] a",
                "float[p,q] y",
            ),
            target="tensorrt=10.1",
            good_stored={"a": AXES},
        ),
    ],
    "TRT011": [
        Case(
            one("[n] y = Hardmax(x)", "float[2,k] x", "float[2,k] y"),
            one("[n] y = Hardmax(x)", "float[k,3] x", "float[k,3] y"),
        ),
        Case(
            one("[n] y = EyeLike(x)", "float[k,3] x", "float[k,3] y"),
            one("[n] y = EyeLike(x)"),
        ),
    ],
    "TRT020": [
        Case(
            one("[n] y, i = TopK<sorted = 0>(x, k)", "float[2,3] x, int64[1] k", "float[2,1] y"),
            one("[n] y, i = TopK(x, k)", "float[2,3] x, int64[1] k", "float[2,1] y"),
            stored={"k": np.array([1])},
        ),
        Case(
            one(
                '[n] y = Resize<mode = "cubic">(x, , s)',
                "float[1,1,4,4] x, float[4] s",
                "float[1,1,8,8] y",
            ),
            one(
                '[n] y = Resize<mode = "linear">(x, , s)',
                "float[1,1,4,4] x, float[4] s",
                "float[1,1,8,8] y",
            ),
            stored={"s": np.array([1, 1, 2, 2], np.float32)},
        ),
        Case(
            one(
                '[n] y = ScatterND<reduction = "add">(x, i, u)',
                "float[2,3] x, int64[1,1] i, float[1,3] u",
            ),
            one("[n] y = ScatterND(x, i, u)", "float[2,3] x, int64[1,1] i, float[1,3] u"),
            stored={"i": np.array([[0]])},
        ),
    ],
    "TRT021": [
        Case(
            one(
                "[n] y = MaxPool<kernel_shape = [2]>(x)",
                "float[1,1,4] x",
                "float[1,1,3] y",
            ),
            one(
                "[n] y = MaxPool<kernel_shape = [2, 2]>(x)",
                "float[1,1,4,4] x",
                "float[1,1,3,3] y",
            ),
        ),
        Case(
            one(
                "[n] y = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(x)",
                "float[1,1,4,4] x",
                "float[1,1,2,2] y",
            ),
            one(
                "[n] y = MaxPool<kernel_shape = [2, 2], dilations = [1, 1]>(x)",
                "float[1,1,4,4] x",
                "float[1,1,3,3] y",
            ),
        ),
        Case(
            one(
                "[n] y = GridSample(x, g)",
                "float[1,1,2,2,2] x, float[1,2,2,2,3] g",
                "float[1,1,2,2,2] y",
                head='<ir_version: 9, opset_import: ["" : 20]>',
            ),
            one(
                "[n] y = GridSample(x, g)",
                "float[1,1,2,2] x, float[1,2,2,2] g",
                "float[1,1,2,2] y",
            ),
        ),
    ],
    "TRT022": [
        Case(
            one(
                "[n] y, i = MaxPool<kernel_shape = [2, 2]>(x)",
                "float[1,1,4,4] x",
                "float[1,1,3,3] y, int64[1,1,3,3] i",
            ),
            one(
                "[n] y, i = MaxPool<kernel_shape = [2, 2]>(x)",
                "float[1,1,4,4] x",
                "float[1,1,3,3] y",
            ),
        ),
        Case(
            one(
                "[n] y = Attention(q, q, q, , p, p)",
                "float[1,2,3,4] q, float[1,2,3,4] p",
                "float[1,2,3,4] y",
                head='<ir_version: 11, opset_import: ["" : 23]>',
            ),
            one(
                "[n] y = Attention(q, q, q)",
                "float[1,2,3,4] q",
                "float[1,2,3,4] y",
                head='<ir_version: 11, opset_import: ["" : 23]>',
            ),
        ),
        Case(
            one(
                "[n] y = RotaryEmbedding(x, c, c, p)",
                "float[1,2,3,4] x, float[9,2] c, int32[1,3] p",
                "float[1,2,3,4] y",
                head='<ir_version: 11, opset_import: ["" : 23]>',
            ),
            one(
                "[n] y = RotaryEmbedding(x, c, c, p)",
                "float[1,2,3,4] x, float[9,2] c, int64[1,3] p",
                "float[1,2,3,4] y",
                head='<ir_version: 11, opset_import: ["" : 23]>',
            ),
        ),
    ],
    "TRT023": [
        Case(
            one("[n] y, i = TopK(x, k)", "float[2,5000] x, int64[1] k", "float[2,m] y"),
            one("[n] y, i = TopK(x, k)", "float[2,5000] x, int64[1] k", "float[2,m] y"),
            bad_stored={"k": np.array([3840])},
            good_stored={"k": np.array([3839])},
        )
    ],
    "TRT024": [
        Case(
            one(
                '[n] y, h = RNN<hidden_size = 2, direction = "bidirectional", '
                'activations = ["Tanh", "Relu"]>(x, w, r)',
                "float[1,1,3] x, float[2,2,3] w, float[2,2,2] r",
                "float[1,2,1,2] y",
            ),
            one(
                '[n] y, h = RNN<hidden_size = 2, direction = "bidirectional", '
                'activations = ["Tanh", "Tanh"]>(x, w, r)',
                "float[1,1,3] x, float[2,2,3] w, float[2,2,2] r",
                "float[1,2,1,2] y",
            ),
            stored={"w": weights(2, 2, 3), "r": weights(2, 2, 2)},
        )
    ],
    "TRT025": [
        Case(
            one("[n] y = RandomNormalLike<seed = 1.0>(x)"),
            one("[n] y = Relu(x)"),
            severity="warn",
        )
    ],
    "TRT026": [
        Case(
            one('[n] s = Constant<value_string = "a">() [r] y = Relu(x)'),
            one("[n] s = Constant<value_float = 2.0>() [r] y = Mul(x, s)"),
        )
    ],
    "TRT030": [
        Case(
            one("[n] y = Relu(x)", "double[2,3] x", "double[2,3] y"),
            one("[n] y = Relu(x)"),
            where="x",
            severity="warn",
        )
    ],
    "TRT031": [
        Case(
            one("[n] y = Max(x, x)", "uint8[2,3] x", "uint8[2,3] y"),
            one("[n] y = Cast<to = 1>(x)", "uint8[2,3] x"),
        ),
        Case(
            one(
                "[n] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)",
                "float[2,3] x, float s, uint8 z",
            ),
            one(
                "[n] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z)",
                "float[2,3] x, float s, int8 z",
            ),
            stored={"s": np.float32(0.1)},
            bad_stored={"z": np.uint8(0)},
            good_stored={"z": np.int8(0)},
        ),
    ],
    "TRT032": [
        Case(
            one("[n] y = Identity(x)", "string[2] x", "string[2] y"),
            one("[n] y = Identity(x)"),
            where="x",
        ),
        Case(
            one(
                "[n] y = Relu(x) [s] q = SequenceConstruct(x)",
                outputs="float[2,3] y, seq(float[2,3]) q",
            ),
            one("[n] y = Relu(x)"),
            where="q",
        ),
    ],
    "TRT033": [
        Case(
            one("[n] y = Cast<to = 1>(x)", "int64[2,3] x"),
            one("[n] y = Cast<to = 1>(x)", "int32[2,3] x"),
            where="x",
            severity="info",
        )
    ],
    "TRT034": [
        Case(
            one("[n] y = MatMul(x, x)", "int32[3,3] x", "int32[3,3] y"),
            one("[n] y = MatMul(x, x)", "float[3,3] x", "float[3,3] y"),
        ),
        Case(
            one("[n] y = CumSum(x, a)", "int64[2,3] x, int64 a", "int64[2,3] y"),
            one("[n] y = CumSum(x, a)", "float[2,3] x, int64 a"),
            severity="warn",
            stored={"a": np.int64(0)},
        ),
        Case(  # an int32 bias with a scale
            one(
                "[n] c = DequantizeLinear(b, s) [a] y = Add(x, c)",
                "float[2,3] x, int32[3] b, float s",
            ),
            one(
                "[n] c = DequantizeLinear(b, s) [a] y = Add(x, c)",
                "float[2,3] x, int8[3] b, float s",
            ),
            stored={"s": np.float32(0.1)},
            bad_stored={"b": np.array([1, 2, 3], np.int32)},
            good_stored={"b": np.array([1, 2, 3], np.int8)},
        ),
    ],
    "TRT035": [
        Case(
            one("[n] y = Add(x, h)", "float[2,3] x, float16[2,3] h"),
            one("[n] y = Add(x, h)", "float[2,3] x, float[2,3] h"),
        )
    ],
    "TRT036": [
        Case(
            one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"),
            one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"),
            where="m",
            severity="warn",
            bad_stored={"m": np.array([0, -np.inf, 0], np.float32)},
            good_stored={"m": np.array([0, -65504, 0], np.float32)},
        ),
        Case(
            one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"),
            one("[n] y = Add(x, m)", "float[2,3] x, float[3] m"),
            where="m",
            severity="info",
            bad_stored={"m": np.array([0, -1e12, 0], np.float32)},
            good_stored={"m": np.array([0, 65504, 0], np.float32)},
        ),
        Case(
            one("[n] y = Add(x, m)", "float16[2,3] x, float16[3] m", "float16[2,3] y"),
            one("[n] y = Add(x, m)", "float16[2,3] x, float16[3] m", "float16[2,3] y"),
            where="m",
            severity="warn",
            bad_stored={"m": np.array([1e-7, 2e-6, 1], np.float16)},
            good_stored={"m": np.array([0, 2e-3, 1], np.float16)},
        ),
    ],
    "TRT037": [
        Case(
            one("[n] y = Softmax(x)", "float16[2,3] x", "float16[2,3] y"),
            one("[n] y = Softmax(x)"),
            severity="warn",
        )
    ],
    "TRT040": [
        Case(
            one("[n] y = Relu(x)", "float[batch,3] x", "float[batch,3] y"),
            one("[n] y = Relu(x)"),
            where="x",
            severity="warn",
        )
    ],
    "TRT041": [
        Case(
            one("[n] y = Relu(x)", "float[0,3] x", "float[0,3] y"),
            one("[n] y = Relu(x)"),
            where="x",
        )
    ],
    "TRT042": [
        Case(
            one("[n] y = NonZero(x)", outputs="int64[2,k] y"),
            one(
                "[n] i = NonZero(c) [g] y = Gather(x, i)",
                "float[2,3] x, float[1] c",
                "float[1,1,3] y",
            ),
            severity="warn",
            good_stored={"c": np.zeros(1, np.float32)},
        )
    ],
    "TRT043": [
        Case(
            one(
                "[n] y = If(c) <then_branch = t () => (float[2,3] a) { a = Identity(x) },"
                " else_branch = e () => (float[6] b) { s = Constant<value_ints = [6]>() b = "
                "Reshape(x, s) }>",
                "float[2,3] x, bool c",
                "float y",
            ),
            one(
                "[n] y = If(c) <then_branch = t () => (float[2,3] a) { a = Identity(x) },"
                " else_branch = e () => (float[2,3] b) { b = Neg(x) }>",
                "float[2,3] x, bool c",
            ),
        ),
        Case(
            one(
                "[n] v, y = Loop(m, , x) <body = b (int64 i, bool c, float[2,3] s) => "
                "(bool d, float[2,3] t, float[2,3] o) "
                "{ d = Identity(c) t = Relu(s) o = Neg(s) }>",
                "float[2,3] x, int64 m",
                "float[k,2,3] y",
            ),
            one(
                "[n] v, y = Loop(m, , x) <body = b (int64 i, bool c, float[2,3] s) => "
                "(bool d, float[2,3] t, float[2,3] o) "
                "{ d = Identity(c) t = Relu(s) o = Neg(s) }>",
                "float[2,3] x, int64 m",
                "float[k,2,3] y",
            ),
            good_stored={"m": np.int64(4)},
        ),
    ],
    "TRT050": [
        Case(
            one("[n] y = Relu(x)", head='<ir_version: 3, opset_import: ["" : 8]>'),
            one("[n] y = Relu(x)", head='<ir_version: 3, opset_import: ["" : 9]>'),
            where="opset",
        ),
        Case(
            one("[n] y = Relu(x)", head='<ir_version: 13, opset_import: ["" : 26]>'),
            one("[n] y = Relu(x)", head='<ir_version: 12, opset_import: ["" : 24]>'),
            where="opset",
        ),
        Case(
            one("[n] y = Relu(x)", head='<ir_version: 12, opset_import: ["" : 25]>'),
            one("[n] y = Relu(x)", head='<ir_version: 12, opset_import: ["" : 24]>'),
            where="opset",
            severity="warn",
        ),
    ],
    "TRT051": [
        Case(
            one("[n] y = Relu(x)", head='<ir_version: 14, opset_import: ["" : 18]>'),
            one("[n] y = Relu(x)", head='<ir_version: 13, opset_import: ["" : 18]>'),
            where="ir_version",
            severity="warn",
        )
    ],
    "TRT053": [
        Case(
            one("[n] a = Relu(x) [n] y = Neg(a)"),
            one("[n] a = Relu(x) [k] y = Neg(a)"),
            severity="warn",
        ),
        Case(one("y = Relu(x)"), one("[n] y = Relu(x)"), where="nodes", severity="info"),
    ],
    "TRT060": [
        Case(
            one(
                "[n] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, w)",
                "float[2,3] x, float s, int8 z, int8 w",
            ),
            one(
                "[n] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, w)",
                "float[2,3] x, float s, int8 z, int8 w",
            ),
            stored={"s": np.float32(0.1), "w": np.int8(0)},
            bad_stored={"z": np.int8(3)},
            good_stored={"z": np.int8(0)},
        )
    ],
    "TRT061": [
        Case(
            one(
                "c = Conv(x, w) [n] y = BatchNormalization(c, s, s, s, s)",
                "float[1,2,3,3] x, float[3,2,1,1] w, float[3] s",
                "float[1,3,3,3] y",
            ),
            one(
                "r = Relu(x) [n] y = BatchNormalization(r, s, s, s, s)",
                "float[1,3,3,3] x, float[3] s",
                "float[1,3,3,3] y",
            ),
            severity="info",
            stored={"s": FULL},
            bad_stored={"w": weights(3, 2, 1, 1)},
        )
    ],
    "TRT062": [
        Case(
            one(
                "[n] q = QuantizeLinear(x, s) [c] y = Cast<to = 1>(q)",
                "float[2,3] x, float s",
            ),
            one(
                "[n] q = QuantizeLinear(x, s) [c] y = DequantizeLinear(q, s)",
                "float[2,3] x, float s",
            ),
            stored={"s": np.float32(0.1)},
        )
    ],
}
