"""Quantization-aware training: the gradient passes a QuantizeLinear and its inverse."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.graph.weights.fake_quantization import is_fake_quantizer
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run, text_model, weights

X = np.random.default_rng(0).uniform(-2, 2, (6, 3)).astype(np.float32)
C = np.random.default_rng(1).uniform(-1, 1, (6, 3)).astype(np.float32)
CASES = [
    ("float s = {0.01}", "s", "", 0.01, 0, 0, 255),
    ("float s = {0.01}, int8 zero = {3}", "s, zero", "", 0.01, 3, -128, 127),
    (
        "float[3] s = {0.01, 0.005, 0.02}, int8[3] zero = {3, 3, 3}",
        *("s, zero", "<axis = -1>", np.array([0.01, 0.005, 0.02], np.float32), 3, -128, 127),
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_straight_through(case, engine):
    constants, settings, attributes, scale, zero, low, high = case
    model = graph(
        f"""g (float[6,3] x, float[6,3] c) => (float[6,3] y, float loss) <{constants}> {{
        h = Identity(x) q = QuantizeLinear{attributes}(h, {settings})
        y = DequantizeLinear{attributes}(q, {settings})
        p = Mul(y, c) loss = ReduceSum<keepdims = 0>(p) }}""",
        opset=20,
    )
    feeds = {"x": X, "c": C}
    expected = run(model, feeds)["y"]
    decompose(model, wrt=["x", "c"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(model, "loss", ["x", "c"], engine), feeds)
    np.testing.assert_allclose(found["c_grad"], expected, rtol=1e-6)
    whole = np.round(X / scale) + zero
    inside = (whole >= low) & (whole <= high)
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(found["x_grad"], C * inside, rtol=1e-6)


def test_settings_of_each_channel_that_torch_casts():
    """`fake_quantize_per_channel_affine` in a file of TorchScript without constant folding."""
    settings = "s = Cast<to = 1>(scales) z = Cast<to = 3>(zeros)"
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,3] w, float[3] scales, int32[3] zeros) => (float[N,3] y) {{
        {settings} q = QuantizeLinear<axis = 1>(w, s, z)
        d = DequantizeLinear<axis = 1>(q, s, z) y = MatMul(x, d) }}""",
        w=weights(4, 3),
        scales=np.array([0.01, 0.02, 0.03], np.float32),
        zeros=np.zeros(3, np.int32),
    )
    program = build_program(model, ProgramConfig(engine="portable"))
    assert [e.name for e in program.catalogue.state if e.kind == "parameter" and e.next] == ["w"]


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_bits_are_a_clip_of_the_integers(engine):
    """Four bits, as Brevitas writes them; the program keeps the nodes for evaluation."""
    text = """QuantizeLinear(w, s, z) k = Clip(q, low, high) d = DequantizeLinear(k, s, z)"""
    stored = "float s = {0.1}, int8 z = {1}, int8 low = {-8}, int8 high = {7}"
    model = graph(
        f"""g (float[6,3] w, float[6,3] c) => (float[6,3] d, float loss) <{stored}> {{
        q = {text} p = Mul(d, c) loss = ReduceSum<keepdims = 0>(p) }}""",
        opset=20,
    )
    feeds = {"w": X, "c": C}
    expected = run(model, feeds)["d"]
    decompose(model, wrt=["w", "c"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(model, "loss", ["w", "c"], engine), feeds)
    np.testing.assert_allclose(found["c_grad"], expected, rtol=1e-6)
    whole = np.round(X / np.float32(0.1)) + 1
    inside = (whole >= -8) & (whole <= 7)
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(found["w_grad"], C * inside, rtol=1e-6)
    program = build_program(
        text_model(
            f"""<ir_version: 8, opset_import: ["" : 18]>
            net (float[N,4] x, float[4,3] w) => (float[N,3] y) <{stored}> {{
            q = {text} y = MatMul(x, d) }}""",
            w=weights(4, 3),
        ),
        ProgramConfig(engine=engine),
    )
    assert [entry.name for entry in program.catalogue.entries("parameter") if entry.next] == ["w"]
    assert {"QuantizeLinear", "Clip"} <= {node.op_type for node in program.evaluation.graph}


@pytest.mark.parametrize("engine", ENGINES)
def test_at_the_limits_the_gradient_passes_where_torch_passes_it(engine):
    """torch.fake_quantize_per_channel_affine(w, w.abs().amax(1) / 127.5, zeros, 0, -128, 127)."""
    largest = np.array([0.3, 0.7, 1.1, 0.11], np.float32)
    scale = largest / np.float32(127.5)
    numbers = ", ".join(f"{number:.9g}" for number in scale)
    model = graph(
        f"""g (float[4,2] w) => (float loss)
        <float[4] s = {{{numbers}}}, int8[4] zero = {{0, 0, 0, 0}}> {{
        q = QuantizeLinear<axis = 0>(w, s, zero) y = DequantizeLinear<axis = 0>(q, s, zero)
        loss = ReduceSum<keepdims = 0>(y) }}""",
        opset=20,
    )
    w = np.stack([largest, -largest], 1)
    decompose(model, wrt=["w"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(model, "loss", ["w"], engine), {"w": w})["w_grad"]
    np.testing.assert_array_equal(found, [[1, 1], [0, 1], [0, 1], [0, 1]])


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        ("x, s, zero", "q, t, zero", ""),  # another scale
        ("x, s, zero", "q, s", ""),  # another zero point, which is 0
        ("x, s, zero", "q, s, zero", "r = Cast<to = 1>(q) y = Add(d, r)"),  # read as integers
        ("x, w, zero", "q, w, zero", ""),  # a scale that is computed
    ],
)
def test_others_are_no_fake_quantization(first, second, more):
    model = graph(
        f"""g (float[6,3] x, float w) => (float[6,3] y)
        <float s = {{0.01}}, float t = {{0.02}}, int8 zero = {{3}}> {{
        q = QuantizeLinear({first}) d = DequantizeLinear({second})
        {more or "y = Identity(d)"} }}"""
    )
    (node,) = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    assert not is_fake_quantizer(node)


def test_integers_with_and_without_a_clip_are_no_fake_quantization():
    """They would have two ranges."""
    model = graph(
        """g (float[6,3] x) => (float[6,3] y) <float s = {0.1}, int8 z = {1}, int8 high = {7}> {
        q = QuantizeLinear(x, s, z) k = Clip(q, , high) a = DequantizeLinear(k, s, z)
        b = DequantizeLinear(q, s, z) y = Add(a, b) }"""
    )
    (node,) = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    assert not is_fake_quantizer(node)


def test_a_program_trains_the_floats_and_evaluates_with_integers():
    program = build_program(
        text_model(
            """<ir_version: 8, opset_import: ["" : 18]>
            net (float[N,4] x, float[4,3] w) => (float[N,3] y) <float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }""",
            w=weights(4, 3),
        ),
        ProgramConfig(),
    )
    assert [entry.name for entry in program.catalogue.entries("parameter") if entry.next] == ["w"]
    operators = {node.op_type for node in program.evaluation.graph}
    assert {"QuantizeLinear", "DequantizeLinear"} <= operators
