"""Normalizations: all their outputs, large means, half precision, frozen and training forms."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.core.errors import ModelError
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import ENGINES, run

SQUARE = "p = Mul(y, r) q = Exp(p) loss = ReduceMean<keepdims = 0>(q)"


def batch_norm(dims: str, more: str = "", tail: str = SQUARE, outputs: str = "y") -> ir.Model:
    return graph(
        f"""g (float[{dims}] x, float[3] s, float[3] b, float[3] m, float[3] v, float[{dims}] r)
        => (float loss) {{ v2 = Exp(v)
        {outputs} = BatchNormalization<epsilon = 0.001{more}>(x, s, b, m, v2) {tail} }}"""
    )


@pytest.mark.parametrize("dims", ["4,3", "N,3", "4,3,5", "2,3,N,4", "N,3,2,2", "1,3,2,2,2"])
@pytest.mark.parametrize("more", ["", ", training_mode = 1, momentum = 0.0"])
@pytest.mark.parametrize("wrt", [["x", "s", "b"], ["x"], ["s"], ["b"]])
def test_batch_norm(dims, more, wrt):
    outputs = "y, mm, vv" if more else "y"
    model = batch_norm(dims, more, outputs=outputs)
    result = assert_gradients(
        model, wrt, random_feeds(model, N=4), engine="portable", tolerance=2e-3
    )
    assert not any(node.attributes.get_int("training_mode", 0) for node in result.graph)


def test_batch_norm_statistics_may_be_used():
    tail = "a = Mul(y, r) c = Mul(a, a) d = ReduceMean<keepdims = 0>(c) e = Mul(mm, vv)"
    tail += " f = ReduceSum<keepdims = 0>(e) loss = Add(d, f)"
    more = ", training_mode = 1, momentum = 0.25"
    model = batch_norm("4,3,5", more, tail, "y, mm, vv")
    assert_gradients(model, ["x", "s"], random_feeds(model), engine="portable")


def test_batch_norm_is_rewritten_once():
    model = batch_norm("4,3,5", ", training_mode = 1", outputs="y, mm, vv")
    engine = get_engine("portable")
    feeds = random_feeds(model)
    before = run(model, feeds)
    assert [report.rewrite for report in engine.prepare(model)] == ["batch_statistics"]
    assert not engine.prepare(model)
    np.testing.assert_allclose(run(model, feeds)["loss"], before["loss"], rtol=1e-5)


def test_batch_norm_with_a_large_mean():
    """With a mean 1,000 times the deviation, accuracy is limited only by the input."""
    model = batch_norm("8,3,16,16", ", training_mode = 1, momentum = 0.0", outputs="y, mm, vv")
    feeds = random_feeds(model)
    feeds["x"] = (feeds["x"] + 1000.0).astype(np.float32)
    found = run(differentiate(model, "loss", ["x", "s", "b"], "portable"), feeds)
    x, s, b, r = (feeds[name].astype(np.float64) for name in "xsbr")
    s, b = s[:, None, None], b[:, None, None]
    axes = (0, 2, 3)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    normal = (x - mean) / np.sqrt(var + 0.001)
    g = r * np.exp(r * (normal * s + b)) / x.size
    inner = g * s
    gx = (
        inner
        - inner.mean(axes, keepdims=True)
        - normal * (inner * normal).mean(axes, keepdims=True)
    )
    gx /= np.sqrt(var + 0.001)
    for name, exact in (("x", gx), ("s", (g * normal).sum(axes)), ("b", g.sum(axes))):
        scale = np.abs(exact).max()
        np.testing.assert_allclose(found[f"{name}_grad"], exact, atol=1e-3 * scale)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_norm_in_half_precision(training):
    """Computed in float32: sums of squares in float16 would be infinite."""
    outputs, more = ("y, mm, vv", ", training_mode = 1") if training else ("y", "")
    model = graph(
        f"""g (float[64,3,9] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float loss) {{
        h = Cast<to = 10>(x) {outputs} = BatchNormalization<epsilon = 0.01{more}>(h, s, b, m, v)
        f = Cast<to = 1>(y) e = Exp(f) loss = ReduceMean<keepdims = 0>(e) }}"""
    )
    feeds = random_feeds(model)
    feeds["v"] = np.abs(feeds["v"]) + 1
    feeds["x"] *= 300.0 if training else 1.0
    found = run(differentiate(model, "loss", ["x", "s"], "portable"), feeds)
    assert all(np.isfinite(found[name]).all() for name in ("x_grad", "s_grad", "loss"))


AXES = [(-1, "5"), (1, "4,5"), (0, "3,4,5"), (-2, "4,5")]


@pytest.mark.parametrize(("axis", "own"), AXES)
@pytest.mark.parametrize("first", ["3", "N"])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(axis, own, first, bias):
    own = own if first == "3" else own.replace("3", "N")
    model = graph(
        f"""g (float[{first},4,5] x, float[{own}] s, float[{own}] b, float[{first},4,5] r)
        => (float loss) {{
        y = LayerNormalization<axis = {axis}>(x, s{", b" if bias else ""}) {SQUARE} }}"""
    )
    wrt = ["x", "s", "b"] if bias else ["x", "s"]
    assert_gradients(model, wrt, random_feeds(model), engine="portable", tolerance=2e-3)


@pytest.mark.parametrize("use", ["mean", "inv", "y"])
@pytest.mark.parametrize("dims", ["4,5", "N,M"])
def test_layer_norm_statistics_may_be_used(use, dims):
    model = graph(
        f"""g (float[{dims}] x, float[{dims.split(",")[1]}] s) => (float loss) {{
        y, mean, inv = LayerNormalization(x, s) a = Mul({use}, inv) q = Exp(a)
        loss = ReduceMean<keepdims = 0>(q) }}"""
    )
    feeds = random_feeds(model, N=4, M=5)
    assert_gradients(model, ["x"], feeds, engine="portable", tolerance=3e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("named", ['y, "", inv', 'y, mean, ""', 'y, "", ""'])
def test_layer_norm_outputs_may_be_left_out(named, engine):
    read = [name for name in ("y", "mean", "inv") if name in named]
    model = graph(
        f"""g (float[N,5] x, float[5] s, float[5] b) => (float loss) {{
        {named} = LayerNormalization(x, s, b)
        a = Mul({read[0]}, {read[-1]}) q = Exp(a)
        loss = ReduceMean<keepdims = 0>(q) }}"""
    )
    feeds = random_feeds(model, N=4)
    assert_gradients(model, ["x"], feeds, engine=engine, tolerance=3e-3)


@pytest.mark.parametrize(("scale", "bias"), [("1", "1"), ("4,5", "5"), ("5", "5"), ("5", None)])
def test_layer_norm_broadcasts(scale, bias):
    second = "" if bias is None else f", float[{bias}] b"
    model = graph(
        f"""g (float[N,4,5] x, float[{scale}] s{second}, float[N,4,5] r) => (float loss) {{
        y = LayerNormalization<axis = 1>(x, s{", b" if bias else ""}) {SQUARE} }}"""
    )
    wrt = ["x", "s", "b"] if bias else ["x", "s"]
    assert_gradients(model, wrt, random_feeds(model), engine="portable", tolerance=2e-3)


@pytest.mark.parametrize("kind", ["InstanceNormalization", "GroupNormalization<num_groups = 2>"])
@pytest.mark.parametrize("dims", ["2,4,5", "N,4,3,2"])
def test_instance_and_group_norm(kind, dims):
    model = graph(
        f"""g (float[{dims}] x, float[4] s, float[4] b, float[{dims}] r) => (float loss) {{
        y = {kind}(x, s, b) {SQUARE} }}""",
        opset=21,
    )
    feeds = random_feeds(model, N=2)
    assert_gradients(model, ["x", "s", "b"], feeds, engine="portable", tolerance=3e-3)


needs_23 = pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="needs opset 23")


@needs_23
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis):
    """Expanded, it runs without support for opset 23, and matches numpy."""
    own = "5" if axis == -1 else "4,5"
    model = graph(
        f"""g (float[N,4,5] x, float[{own}] s, float[N,4,5] r) => (float loss) {{
        y = RMSNormalization<axis = {axis}, epsilon = 0.01>(x, s) {SQUARE} }}""",
        opset=23,
    )
    feeds = random_feeds(model)
    result = differentiate(model, "loss", ["x", "s"], "portable")
    assert "RMSNormalization" not in {node.op_type for node in result.graph}
    result.opset_imports[""] = 18  # no operator requires a newer opset
    infer_shapes(result)
    found = run(result, feeds)
    x, s, r = (feeds[name].astype(np.float64) for name in "xsr")
    axes = tuple(range(axis % 3, 3))

    def loss(x, s):
        y = x / np.sqrt((x**2).mean(axes, keepdims=True) + 0.01) * s
        return np.exp(y * r).mean()

    np.testing.assert_allclose(found["loss"], loss(x, s), rtol=1e-5)
    for name, array in (("x", x), ("s", s)):
        expected = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            moved = [array.copy(), array.copy()]
            moved[0][index] += 1e-5
            moved[1][index] -= 1e-5
            values = [loss(*((m, s) if name == "x" else (x, m))) for m in moved]
            expected[index] = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(found[f"{name}_grad"], expected, rtol=2e-5, atol=2e-5)


def test_statistics_that_are_computed_from_the_data_are_refused():
    """No gradient would flow through them, without an error."""
    model = graph(
        """g (float[2,3,4] x, float[3] s, float[3] b) => (float loss) {
          axes = Constant<value = int64[2] {0, 2}>()
          m = ReduceMean<keepdims = 0>(x, axes)
          v = ReduceMax<keepdims = 0>(x, axes)
          y = BatchNormalization(x, s, b, m, v)
          loss = ReduceMean<keepdims = 0>(y)
        }"""
    )
    with pytest.raises(ModelError, match="statistics"):
        differentiate(model, "loss", ["x"], "portable")
    differentiate(model, "loss", ["s"], "portable")  # they have none in this case


def test_a_trained_mean_is_refused():
    """Its other use, in the square, has a gradient: the sum of both would lack a part."""
    model = graph(
        """g (float[4,3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float loss) {
          y = BatchNormalization(x, s, b, m, v) q = Mul(m, m) t = Add(y, q)
          loss = ReduceMean<keepdims = 0>(t) }"""
    )
    with pytest.raises(ModelError, match="statistics depend on trained values"):
        differentiate(model, "loss", ["m"], "portable")


@pytest.mark.parametrize("squares", ["Mul(d, d)", "Mul(c, d)"])
def test_other_statistics_of_the_input_are_refused(squares):
    """Variance around another center: not the form for which the rule includes their gradient."""
    model = graph(f"""g (float[4,3] x, float[3] s, float[3] t) => (float loss) {{
        a = Constant<value_ints = [0]>() k = Constant<value_ints = [-1]>()
        e = ReduceMean(x, a) c = Sub(x, e) d = Sub(x, s) p = {squares}
        v = ReduceMean<keepdims = 0>(p, a) m = Reshape(e, k)
        y = BatchNormalization(x, s, t, m, v) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }}""")
    with pytest.raises(ModelError, match="statistics depend on trained values"):
        differentiate(model, "loss", ["x"], "portable")
