"""Normalizations that an exporter wrote out."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.parameters import find_parameters
from tests.support import text_model, weights

OF_KERAS = "r = Div(one, s) m = Mul(r, g) n = Neg(mean) k = Mul(n, m) c = Add(k, b) a = Mul(h, m)"


@pytest.mark.parametrize(
    ("body", "trained"),
    [
        (f"t = Add(v, e) s = Sqrt(t) {OF_KERAS} y = Add(a, c)", "bgw"),
        (f"t = Add(v, two) s = Sqrt(t) {OF_KERAS} y = Add(a, c)", ["b", "g", "mean", "v", "w"]),
        (
            "t = Add(v, e) s = Sqrt(t) d = Sub(h, mean) f = Div(d, s) a = Mul(f, g) y = Add(a, b)",
            "bgw",
        ),
        # The statistics of the batch: what is subtracted is learned, too.
        (
            "q = Mul(h, h) z = ReduceMean(q) t = Add(z, e) s = Sqrt(t) d = Sub(h, mean)"
            " f = Div(d, s) a = Mul(f, g) o = Mul(a, v) y = Add(o, b)",
            ["b", "g", "mean", "v", "w"],
        ),
    ],
)
def test_the_running_statistics_are_not_trained(body, trained):
    """As Keras writes it through jax2onnx; what names nothing is told by its form."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "jax2onnx", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float[4] mean, float[4] v, float[4] g, float[4] b,
             float e, float one, float two) => (float[N,4] y) {{ h = MatMul(x, w) {body} }}""",
        w=weights(4, 4),
        e=np.float32(1e-3),
        one=np.float32(1),
        two=np.float32(2),
        **{name: weights(4, seed=i) ** 2 + 0.5 for i, name in enumerate(["mean", "v", "g", "b"])},
    )
    found = find_parameters(model)
    assert sorted(name for name, p in found.items() if p.trainable) == sorted(trained)
    assert (found["g"].role, found["b"].role) == ("norm_scale", "norm_shift") or trained != "bgw"
    for name, what in ("mean", "running mean"), ("v", "running variance"):
        assert (what in found[name].doubt) is (name not in trained)


RMS = "q = Mul(x, x) m = ReduceMean(q) v = Add(m, e) r = Sqrt(v)"
LAYER = (
    "a = ReduceMean(x) d = Sub(x, a) q = Pow(d, two) m = ReduceMean(q) v = Add(m, e) r = Sqrt(v)"
)


@pytest.mark.parametrize(
    ("body", "scale", "shift"),
    [
        (f"{RMS} i = Reciprocal(r) n = Mul(x, i) y = Mul(g, n)", "norm_scale", None),  # Llama
        (f"{RMS} i = Div(one, r) n = Mul(x, i) y = Mul(n, g)", "norm_scale", None),
        (f"{RMS} k = Add(g, one) n = Div(x, r) y = Mul(n, k)", "norm_scale", None),  # Gemma
        (
            "m = ReduceSumSquare(x) v = Add(m, e) i = Pow(v, half) n = Mul(x, i)"
            " c = Cast<to = 1>(n) y = Mul(c, g)",
            "norm_scale",
            None,
        ),
        (
            "r = ReduceL2(x) c = Clip(r, e) n = Div(x, c) k = Mul(n, two) y = Mul(k, g)",
            "norm_scale",
            None,
        ),
        (f"{LAYER} n = Div(d, r) k = Mul(n, g) y = Add(k, b)", "norm_scale", "norm_shift"),
        # Flax and TensorFlow scale the reciprocal root first.
        (
            f"{LAYER} i = Reciprocal(r) k = Mul(i, g) l = Mul(d, k) y = Add(l, b)",
            "norm_scale",
            "norm_shift",
        ),
        (
            f"{LAYER} i = Reciprocal(r) k = Mul(i, g) l = Mul(x, k) f = Mul(a, k) s = Sub(b, f)"
            " y = Add(l, s)",
            "norm_scale",
            "norm_shift",
        ),
        (
            "h = Reshape(x, grouped) n = InstanceNormalization(h, ones, zeros) u = Reshape(n, same)"
            " k = Mul(u, g) y = Add(b, k)",
            "norm_scale",
            "norm_shift",
        ),
        # torch's dynamo exporter with optimize=False computes the ones and zeros.
        (
            "h = Reshape(x, grouped) c = CastLike(one, x) o = Expand(c, two_of)"
            " n = InstanceNormalization(h, o, zeros) u = Reshape(n, same)"
            " l = CastLike(g, u) k = Mul(u, l) a = CastLike(b, k) y = Add(k, a)",
            "norm_scale",
            "norm_shift",
        ),
        # The runtime's own scale is that of the normalization.
        (
            "h = Reshape(x, grouped) n = InstanceNormalization(h, twos, zeros) u = Reshape(n, same)"
            " k = Mul(u, g) y = Add(b, k)",
            "weight",
            "bias",
        ),
        # Position embeddings have more axes than the scale; neither softmax nor a gate normalizes.
        (f"{RMS} n = Div(x, r) k = Mul(n, g) y = Add(k, w)", "norm_scale", None),
        ("q = Exp(x) r = ReduceSum(q) n = Div(q, r) k = Mul(n, g) y = Add(k, b)", "weight", "bias"),
        ("q = Sigmoid(x) n = Mul(x, q) k = Mul(n, g) y = Add(k, b)", "weight", "bias"),
        ("q = Sqrt(x) n = Div(x, q) k = Mul(n, g) y = Add(k, b)", "weight", "bias"),
    ],
)
def test_scales_and_shifts_have_the_role_of_a_normalization(body, scale, shift):
    """Otherwise the weight decay of no-norm would reach those of every RMSNorm."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4] g, float[4] b, float[1,4] w, float e, float one, float two,
             float half, float[2] ones, float[2] twos, float[2] zeros, int64[3] grouped,
             int64[2] same, int64[1] two_of)
        => (float[N,4] y) {{ {body} }}""",
        e=np.float32(1e-3),
        one=np.float32(1),
        two=np.float32(2),
        half=np.float32(-0.5),
        ones=np.ones(2, np.float32),
        twos=np.full(2, 2, np.float32),
        zeros=np.zeros(2, np.float32),
        grouped=np.array([-1, 2, 2]),
        same=np.array([-1, 4]),
        two_of=np.array([2]),
        w=weights(1, 4),
        g=weights(4),
        b=weights(4, seed=1),
    )
    roles = {name: p.role for name, p in find_parameters(model).items()}
    assert roles["g"] == scale
    assert roles.get("w", "weight") in ("weight", "constant")
    assert shift is None or roles["b"] == shift


@pytest.mark.parametrize(
    "form", ["n = Div(d, r) k = Mul(n, g)", "i = Reciprocal(r) j = Mul(i, g) k = Mul(d, j)"]
)
def test_a_position_embedding_after_a_normalization_is_a_weight(form):
    """With a fixed batch size of 1 it has the shape of the data."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[1,3,4] x, float[4] g, float[1,3,4] p, float e, float two) => (float[1,3,4] y)
        {{ {LAYER} {form} y = Add(k, p) }}""",
        e=np.float32(1e-3),
        two=np.float32(2),
        g=weights(4),
        p=weights(1, 3, 4),
    )
    infer_shapes(model)
    roles = {name: parameter.role for name, parameter in find_parameters(model).items()}
    assert (roles["g"], roles["p"]) == ("norm_scale", "weight")
