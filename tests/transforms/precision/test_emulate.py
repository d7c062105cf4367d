"""Emulated values match numpy's float16 and ml_dtypes' bfloat16 bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.transforms.precision import PrecisionConfig, emulate_precision, place_precision
from tests.support import ENGINES, NAMES, model_path, run, shipped_program, text_model, weights

TYPES = {
    "fp16": (ir.DataType.FLOAT16, np.dtype(np.float16)),
    "bf16": (ir.DataType.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
# rounding to even, overflow at 65520, subnormals, the smallest one and half of it, specials
EDGES = np.array(
    (
        65519.99,
        65520.0,
        -65520.0,
        1000000.0,
        2.0 ** (-24),
        2.0 ** (-25),
        1.0001 * 2.0 ** (-25),
        6e-08,
        6.1e-05,
        1e-40,
        2049.0,
        2051.0,
        1 + 2.0 ** (-11),
        1 + 3 * 2.0 ** (-11),
        3.4e38,
        np.inf,
        -np.inf,
        np.nan,
        0.0,
        -0.0,
    ),
    np.float32,
)


def rounded(array, dtype):
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype).astype(np.float32)


def assert_bits(found, expected):
    np.testing.assert_array_equal(found, expected)  # nan equals nan
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def at_level(model, feeds, level):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def emulated(text, compute, force, **initializers):
    model = text_model(text, **initializers)
    config = PrecisionConfig(compute, force_low=force, emulate=True)
    place_precision(model, config)
    report = emulate_precision(model, config.low)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, report


ARITHMETIC = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[N] x, float[N] w) => (float[N] y, float[N] z, float[N] u) {
      p = Mul(x, w)  s = Add(p, x)  y = Sub(s, w)  z = Div(x, w)  r = Relu(p)  u = Mul(r, r)
    }"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compute", TYPES)
def test_arithmetic_is_that_of_the_short_type_at_every_optimization_level(compute, level):
    """A result that is exact in float32 and rounded once is that of the type itself."""
    dtype = TYPES[compute][1]
    model, _ = emulated(ARITHMETIC, compute, ("Mul", "Add", "Sub", "Div"))
    rng = np.random.default_rng(0)
    spread = np.exp(rng.normal(size=(2, 4000)) * 5) * rng.choice([-1, 1], (2, 4000))
    x = np.concatenate([EDGES, spread[0], EDGES]).astype(np.float32)
    w = np.concatenate([EDGES[::-1], spread[1], EDGES]).astype(np.float32)
    found = at_level(model, {"x": x, "w": w}, level)
    with np.errstate(all="ignore"):
        a, b = x.astype(dtype), w.astype(dtype)
        p = a * b
        r = np.maximum(p, dtype.type(0))
        expected = [(p + a) - b, a / b, r * r]
    for value, right in zip(found, expected, strict=True):
        assert_bits(value, right.astype(np.float32))


@pytest.mark.parametrize("compute", TYPES)
def test_a_cast_of_float32_rounds_as_numpy_does(compute):
    model, _ = emulated(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] y) { y = Neg(x) }""",
        compute,
        ("Neg",),
    )
    assert_bits(run(model, {"x": EDGES})["y"], -rounded(EDGES, TYPES[compute][1]))


def test_products_of_matrices_are_summed_in_float32_and_rounded_once():
    model, _ = emulated(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,64] x, float[64,3] w) => (float[N,3] y) { y = MatMul(x, w) }""",
        "fp16",
        (),
        w=np.random.default_rng(1).integers(-64, 64, (64, 3)).astype(np.float32) / 8,
    )
    x = np.random.default_rng(2).integers(-64, 64, (9, 64)).astype(np.float32) / 4
    w = np.random.default_rng(1).integers(-64, 64, (64, 3)).astype(np.float32) / 8
    exact = x.astype(np.float64) @ w  # short sums of small integers are exact in float32
    assert (exact.astype(np.float32).astype(np.float64) == exact).all()
    assert_bits(run(model, {"x": x})["y"], rounded(exact, np.float16))
    assert (rounded(exact, np.float16) != exact).any()


def gradient_graph(engine_name, compute, *, emulate):
    """`loss = sum(g x w)`, the product in the short type."""
    engine = get_engine(engine_name)
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[K] x, float[K] w, float[K] g) => (float loss) {
          [product] p = Mul(x, w)  [weigh] q = Mul(p, g)  loss = ReduceSum<keepdims = 0>(q)
        }"""
    )
    config = PrecisionConfig(compute, force_low=("product",), keep_fp32=("weigh",), emulate=emulate)
    place_precision(model, config, masters=["w"])
    result = engine.differentiate(model, "loss", ["x", "w"])
    if emulate:
        emulate_precision(result, config.low)
    return result


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compute", TYPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_are_rounded_too(engine, compute, level):
    """`w_grad = short(short(g) x)`: rounded when entering the region, and after the product."""
    dtype = TYPES[compute][1]
    result = gradient_graph(engine, compute, emulate=True)
    rng = np.random.default_rng(3)
    finite = EDGES[np.isfinite(EDGES)]
    g = np.concatenate([finite, np.exp(rng.normal(size=500) * 6)]).astype(np.float32)
    x, w = (np.exp(rng.normal(size=(2, g.size)) * 4)).astype(np.float32)
    names = [value.name for value in result.graph.outputs]
    found = dict(zip(names, at_level(result, {"x": x, "w": w, "g": g}, level), strict=True))
    with np.errstate(all="ignore"):
        a, b, c = x.astype(dtype), w.astype(dtype), g.astype(dtype)
        expected = {"x_grad": c * b, "w_grad": c * a}
    for name, right in expected.items():
        assert found[name].dtype == np.float32
        assert_bits(found[name], right.astype(np.float32))
    if compute == "fp16":
        assert np.isinf(found["w_grad"]).any()
        assert (found["w_grad"] == 0).any()
        tiny = np.abs(found["w_grad"])
        assert ((tiny > 0) & (tiny < 2.0**-14)).any()  # subnormal numbers


@pytest.mark.parametrize("engine", ENGINES)
def test_without_emulation_the_cpu_does_not_round(engine):
    """Why emulation is needed: the runtime removes the casts."""
    result = gradient_graph(engine, "fp16", emulate=False)
    x = np.full(3, 300.0, np.float32)
    found = run(result, {"x": x, "w": x, "g": np.full(3, 1e-9, np.float32)})
    assert np.isfinite(found["loss"])  # 300 * 300 is above 65504
    assert result.graph.outputs[1].dtype == ir.DataType.FLOAT


@pytest.mark.parametrize(
    ("name", "compute"), [*((name, "fp16") for name in NAMES), ("lenet5", "bf16")]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_emulated_step_has_no_short_tensor_but_inside_of_pairs(engine, name, compute):
    config = PrecisionConfig(compute, policy="all", keep_batchnorm=False, emulate=True)
    step = shipped_program(name, engine=engine, precision=config).step
    low = TYPES[compute][0]
    pairs = 0
    for node in step.graph.all_nodes():
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype == low:
                assert node.op_type == "Cast"
                assert (node.name or "").startswith("ortboost/precision/round")
                pairs += 1
    assert pairs > 4
    before = sum(1 for _ in step.graph.all_nodes())
    copy = step.clone()
    assert not emulate_precision(copy, low).changed
    assert sum(1 for _ in copy.graph.all_nodes()) == before


def test_constants_attributes_and_subgraphs():
    model = text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float16[2] x, bool c, float16[2] k) => (float16[2] y, float[2] z) {
          a = Add(x, k)
          s = Shape(x)
          f = ConstantOfShape(s)
          b = If (c) <then_branch = t () => (float16[2] u) { u = Mul(a, f) },
                      else_branch = e () => (float16[2] v) { v = Div(a, f) }>
          y = Identity(b)
          z = Cast<to = 1>(b)
        }""",
        k=np.array([2049.0, 1.0], np.float16),
    )
    half = ir.AttrTensor("value", ir.tensor(np.array([0.5], np.float16)))
    made = next(node for node in model.graph if node.op_type == "ConstantOfShape")
    made.attributes["value"] = half
    emulate_precision(model, ir.DataType.FLOAT16)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    once = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not emulate_precision(model, ir.DataType.FLOAT16).changed
    assert ir.to_proto(model).SerializeToString(deterministic=True) == once
    x, k = np.array([1.0, 40000.0], np.float16), np.array([2049.0, 1.0], np.float16)
    for chosen in (True, False):
        found = run(model, {"x": x, "c": np.array(chosen)})
        with np.errstate(over="ignore"):
            right = (x + k) * np.float16(0.5) if chosen else (x + k) / np.float16(0.5)
        assert found["y"].dtype == np.float16
        np.testing.assert_array_equal(found["y"], right)
        np.testing.assert_array_equal(found["z"], right.astype(np.float32))


def test_a_float32_model_is_left_alone():
    model = ir.load(model_path("mlp"))
    count = len(list(model.graph))
    assert not emulate_precision(model, ir.DataType.FLOAT16).modified
    assert len(list(model.graph)) == count


def test_rounding_of_weights():
    w = weights(4, 4)
    model, _ = emulated(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] y) { y = MatMul(x, w) }""",
        "fp16",
        (),
        w=w,
    )
    eye = np.eye(4, dtype=np.float32)
    assert_bits(run(model, {"x": eye})["y"], rounded(w, np.float16))


def test_the_inputs_of_a_loop_body_are_float32_too():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float16[3,2] x, float16[2] h) => (float16[2] y) {
          y, s = Scan<num_scan_inputs = 1, body = b (float16[2] i, float16[2] e)
            => (float16[2] o, float16[2] p) { o = Add(i, e) p = Identity(o) }>(h, x)
        }"""
    )
    feeds = {"x": weights(3, 2).astype(np.float16), "h": weights(2, seed=1).astype(np.float16)}
    expected = run(model, feeds)["y"]
    assert emulate_precision(model, ir.DataType.FLOAT16).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(run(model, feeds)["y"], expected)
    assert not emulate_precision(model, ir.DataType.FLOAT16).modified


@pytest.mark.parametrize(
    "body",
    [
        "h = Cast<to = 10>(x) y = Cast<to = 1>(h) z = Cast<to = 1>(h)",  # one name too many
        "y = Cast<to = 1>(u) z = Exp(x)",
        "y = Cast<to = 1>(w) z = Cast<to = 1>(w)",
        "h = Cast<to = 10>(x) y = If(c) <then_branch = a () => (p) { p = Cast<to = 1>(h) },"
        " else_branch = b () => (q) { q = Neg(x) }> z = Exp(x)",
    ],
)
def test_casts_whose_names_are_seen_outside_stay(body):
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[N] x, float16[N] u, bool c) => (float[N] y, float[N] z)
        <float16[2] w = {{1, 2}}> {{ {body} }}"""
    )
    x = np.array([1.0001, 3.3], np.float32)
    feeds = {"x": x, "u": x.astype(np.float16), "c": np.array(True)}
    before = run(model, feeds)
    emulate_precision(model, ir.DataType.FLOAT16)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, feeds)
    assert after.keys() == before.keys()
    for name in before:
        assert_bits(after[name], before[name])
