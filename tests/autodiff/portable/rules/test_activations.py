"""Activations at their kinks, at large values, and with overflowed gradients."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import run

ALL = (
    "Relu",
    "LeakyRelu<alpha = 0.3>",
    "LeakyRelu<alpha = -0.3>",
    "Elu",
    "Elu<alpha = 0.7>",
    "Elu<alpha = -0.7>",
    "Selu",
    "Selu<alpha = 1.2, gamma = 0.8>",
    "Celu",
    "Celu<alpha = 0.6>",
    "HardSigmoid",
    "HardSigmoid<alpha = 0.4, beta = 0.3>",
    "HardSwish",
    "Mish",
    "Softplus",
    "Softsign",
    "ThresholdedRelu<alpha = 0.5>",
    "Shrink<lambd = 0.6, bias = 0.2>",
    "Tanh",
    "Sigmoid",
    "Erf",
    "Sinh",
    "Cosh",
    "Tan",
    "Atan",
    "Asinh",
)


def slope(text: str, at: list[float], upstream: float = 1.0, dtype: str = "float") -> np.ndarray:
    """Gradient of ``upstream * sum(f(x))``, in float32; x of another type by a Cast."""
    kind = {"float": 1, "float16": 10}[dtype]
    name, _, attributes = text.partition("<")
    options = f"<{attributes}" if attributes else ""
    model = graph(
        f"""g (float[{len(at)}] x, float k) => (float loss) {{
        h = Cast<to = {kind}>(x) y = {name}{options}(h) w = Cast<to = {kind}>(k) s = Mul(y, w)
        t = Cast<to = 1>(s) loss = ReduceSum<keepdims = 0>(t) }}""",
        opset=20,
    )
    result = differentiate(model, "loss", ["x"], "portable")
    return run(result, {"x": np.float32(at), "k": np.asarray(upstream, np.float32)})["x_grad"]


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("shape", ["[3,4]", "[N]", "[N,0]", ""])
def test_against_central_differences(text, shape):
    if (text, shape) == ("Softsign", ""):
        pytest.skip("the reference evaluator cannot compute it")
    name, _, attributes = text.partition("<")
    options = f"<{attributes}" if attributes else ""
    model = graph(f"""g (float{shape} x) => (float loss) {{
        y = {name}{options}(x) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""")
    assert_gradients(model, ["x"], random_feeds(model, seed=1), engine="portable")


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form):
    model = graph(
        f"""g (float[N] x) => (float loss) {{ y = Gelu<approximate = "{form}">(x)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""",
        opset=20,
    )
    assert_gradients(model, ["x"], random_feeds(model, N=9), engine="portable")


@pytest.mark.skipif(24 not in get_engine("portable").opsets, reason="onnx or the runtime is older")
@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swish(alpha):
    model = graph(
        f"""g (float[N] x) => (float loss) {{ y = Swish<alpha = {alpha}>(x)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""",
        opset=24,
    )
    assert_gradients(model, ["x"], random_feeds(model, N=9), engine="portable")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Relu", [0.0]),
        ("LeakyRelu<alpha = 0.3>", [0.3]),
        ("Elu<alpha = 0.7>", [0.7]),
        ("Selu", [1.05070102 * 1.67326324]),
        ("Celu<alpha = 0.6>", [1.0]),
        ("ThresholdedRelu<alpha = 0.0>", [0.0]),
        ("Abs", [0.0]),
        ("Softplus", [0.5]),
        ("Softsign", [1.0]),
        ("Mish", [0.6]),
        ("HardSwish", [0.5]),
        ("HardSigmoid", [0.2]),
    ],
)
def test_corner_at_zero_as_in_pytorch(text, expected):
    np.testing.assert_allclose(slope(text, [0.0]), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "points", "expected"),
    [  # of torch.nn.functional in torch 2.13
        ("HardSigmoid<alpha = 0.16666667, beta = 0.5>", [-3, 3], [0, 0]),
        ("HardSwish", [-3, 3], [0, 1]),
        ("Shrink", [-0.5, 0.5], [0, 0]),
        ("ThresholdedRelu<alpha = 1.0>", [1], [0]),
    ],
)
def test_corners_away_from_zero_as_in_pytorch(text, points, expected):
    np.testing.assert_allclose(slope(text, points), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Softplus", [0, 1]),
        ("Mish", [0, 1]),
        ("Gelu", [0, 1]),
        ('Gelu<approximate = "tanh">', [0, 1]),
        ("Elu", [0, 1]),
        ("Celu", [0, 1]),
        ("Selu", [0, 1.05070102]),
        ("HardSwish", [0, 1]),
        ("Sigmoid", [0, 0]),
        ("Tanh", [0, 0]),
        ("Erf", [0, 0]),
        ("Softsign", [1 / 1001**2, 1 / 1001**2]),
    ],
)
@pytest.mark.parametrize("size", [1000.0, 1e18])
def test_far_from_zero(text, expected, size):
    if text == "Softsign" and size > 1e3:
        expected = [0, 0]
    found = slope(text, [-size, size])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("text", ["Gelu", 'Gelu<approximate = "tanh">', "Elu", "Relu"])
def test_half_precision_far_from_zero(text):
    np.testing.assert_allclose(slope(text, [-90, 90], dtype="float16"), [0, 1], atol=1e-3)


@pytest.mark.parametrize(
    ("text", "masked", "open_"),
    [("Relu", -1.0, 1.0), ("ThresholdedRelu<alpha = 0.5>", 0.2, 0.7), ("Shrink", 0.2, 0.9)],
)
def test_infinite_gradient_of_a_masked_position(text, masked, open_):
    """In float16 it gives 0, like the kernels of the native engine; otherwise not finite."""
    model = graph(f"""g (float16[2] x, float16[2] k) => (float loss) {{
        y = {text}(x) s = Mul(y, k) t = Cast<to = 1>(s) loss = ReduceSum<keepdims = 0>(t) }}""")
    result = differentiate(model, "loss", ["x"], "portable")
    feeds = {
        "x": np.array([masked, open_], np.float16),
        "k": np.array([np.inf, np.inf], np.float16),
    }
    np.testing.assert_array_equal(run(result, feeds)["x_grad"], np.array([0, np.inf], np.float16))


def test_infinite_gradient_never_becomes_finite_at_an_open_position():
    found = slope("Relu", [2.0, 3.0], upstream=np.inf)
    assert np.isinf(found).all()


def test_clip_at_its_bounds_and_without_them():
    body = "y = Clip(x, {}) s = Mul(y, x) loss = ReduceSum<keepdims = 0>(s)"
    for bounds, expected in ((("low", "high"), [-1, -1, 1, 1, 1]), (("low",), [-1, -1, 1, 2, 4])):
        names = ", ".join(bounds)
        declared = ", ".join(f"float {name}" for name in bounds)
        model = graph(f"g (float[5] x, {declared}) => (float loss) {{ {body.format(names)} }}")
        feeds = {"x": np.float32([-2, -1, 0.5, 1, 2]), "low": np.array(-1, np.float32)}
        feeds["high"] = np.array(1, np.float32)
        given = {name: feeds[name] for name in ("x", *bounds)}
        found = run(differentiate(model, "loss", ["x"], "portable"), given)["x_grad"]
        np.testing.assert_allclose(found, expected)


def test_prelu_of_a_dead_channel():
    model = graph("""g (float[2,3] x, float[3] a) => (float loss) {
        y = PRelu(x, a) loss = ReduceSum<keepdims = 0>(y) }""")
    feeds = {"x": np.float32([[0, 1, -2], [0, 3, -4]]), "a": np.float32([0.1, 0.2, 0.3])}
    found = run(differentiate(model, "loss", ["x", "a"], "portable"), feeds)
    np.testing.assert_allclose(found["x_grad"], np.float32([[0.1, 1, 0.3]] * 2))
    np.testing.assert_allclose(found["a_grad"], [0, 0, -6])


@pytest.mark.parametrize("text", ["QuickGelu", "FastGelu", "Gelu", "BiasGelu"])
def test_operators_of_the_microsoft_domain_get_standard_gradients(text):
    bias = text in ("FastGelu", "BiasGelu")
    given = "x, c" if bias else "x"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        g (float[2,3] x, float[3] c) => (float loss) {{ y = com.microsoft.{text}({given})
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}""")
    wrt = ["x", "c"] if bias else ["x"]
    result = differentiate(model, "loss", wrt, "portable")
    assert [n.domain for n in result.graph if n.domain] == ["com.microsoft"]
    feeds = {"x": np.float32([[-1, 0, 2], [0.5, -3, 1]]), "c": np.float32([0.1, -0.2, 0.3])}
    needed = {name: feeds[name] for name in ("x", "c")}
    found, step = run(result, needed), 1e-2
    for name in wrt:
        for index in np.ndindex(feeds[name].shape):
            ends = []
            for sign in (1, -1):
                moved = feeds[name].copy()
                moved[index] += sign * step
                ends.append(run(model, {**needed, name: moved})["loss"])
            wanted = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(found[f"{name}_grad"][index], wanted, rtol=2e-2, atol=2e-2)


CLIPS = {
    "both bounds": "x, low, high",
    "lower bound": "x, low",
    "upper bound": "x, , high",
    "crossed bounds": "x, high, low",
}
BOUNDS = {"low": np.array(-0.6, np.float32), "high": np.array(0.8, np.float32)}


@pytest.mark.parametrize("inputs", CLIPS.values(), ids=CLIPS)
def test_bounds_of_clip_get_what_they_replace(inputs):
    """As in learned clipping, where the bound is also the scale: no use is dropped silently."""
    model = graph(f"""g (float[N,4] x, float low, float high) => (float loss) {{
        y = Clip({inputs}) s = Mul(y, high) t = Sub(s, low) q = Mul(t, t)
        loss = ReduceSum<keepdims = 0>(q) }}""")
    feeds = {**random_feeds(model), **BOUNDS}
    assert_gradients(model, ["x", "low", "high"], feeds, engine="portable")
