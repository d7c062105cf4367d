"""Running statistics of a BatchNormalization that an exporter wrote out."""

from __future__ import annotations

import numpy as np
import pytest

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
    for name, what in ("mean", "running mean"), ("v", "running variance"):
        assert (what in found[name].doubt) is (name not in trained)
