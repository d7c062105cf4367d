"""Scan and Loop: backpropagation through time against central differences in float64."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.core.errors import ModelError
from tests.autodiff.numeric import as_double, numeric_gradients
from tests.autodiff.oracle import graph, random_feeds
from tests.support import run

STEP = """p = MatMul(xi, w) q = MatMul(s, u) r = Add(p, q) t = Add(r, c) so = Tanh(t)
    yo = Mul(so, so)"""
SCAN = """g (float[T,B,3] x, float[B,2] h, float[3,2] w, float[2,2] u, float[2] c) => (float loss) {
    hn, y, z = Scan<num_scan_inputs = 1 %s, body = b (float[B,2] s, float[B,3] xi) =>
        (float[B,2] so, float[B,2] yo, float[B,3] zo) { STEP zo = Mul(xi, xi) }>(h, x)
    y2 = Mul(y, y) a = ReduceSum<keepdims = 0>(y2) k = Exp(hn) l = ReduceSum<keepdims = 0>(k)
    sz = Sin(z) d = ReduceSum<keepdims = 0>(sz) loss = Sum(a, l, d) }""".replace("STEP", STEP)
# w is passed through as a state, as tf2onnx and jax2onnx do; x is gathered step by step.
LOOP = """g (int64 n, float[T,B,3] x, float[B,2] h, float[3,2] w, float[2,2] u, float[2] c) =>
    (float loss) {
    one = Constant<value_int = 1>() on = Cast<to = 9>(one)
    hn, wn, y = Loop<body = b (int64 i, bool k, float[B,2] s, float[3,2] v) =>
        (bool ko, float[B,2] so, float[3,2] vo, float[B,2] yo) {
        ko = Identity(k) vo = Identity(v) xi = Gather<axis = 0>(x, i) STEP }>(n, on, h, w)
    y2 = Mul(y, y) a = ReduceSum<keepdims = 0>(y2) e = Exp(hn) l = ReduceSum<keepdims = 0>(e)
    loss = Add(a, l) }""".replace("STEP", STEP.replace("w)", "v)", 1))
WEIGHTS = ["x", "h", "w", "u", "c"]


def with_columns(text: str) -> str:
    """The same with states `[2, B]` and weights as left operands, as the recurrent layers here."""
    for old, new in (
        *((f"MatMul({a}, {b})", f"MatMul({b}, {a})") for a in ("xi", "s") for b in "wvu"),
        *((f"float[{rows}B,{n}]", f"float[{rows}{n},B]") for rows in ("", "T,") for n in (2, 3)),
        *(("float[3,2]", "float[2,3]"), ("float[2] c", "float[2,1] c")),
    ):
        text = text.replace(old, new)
    return text


def differences(model: ir.Model, wrt, feeds) -> dict[str, np.ndarray]:
    """Central differences in float64; onnx's own evaluator has no directions of a Scan."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        as_double(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    point = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    found = {}
    for name in wrt:
        gradient = np.zeros(point[name].shape)
        for index in np.ndindex(*gradient.shape):
            pair = []
            for move in (1e-5, -1e-5):
                moved = point[name].copy()
                moved[index] += move
                pair.append(session.run(["loss"], {**point, name: moved})[0])
            gradient[index] = (pair[0] - pair[1]) / 2e-5
        found[name] = gradient
    return found


def assert_gradients(model: ir.Model, feeds, wrt) -> ir.Model:
    expected = differences(model, wrt, feeds)
    loss = run(model, feeds)["loss"]
    result = differentiate(model, "loss", wrt, "portable")
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    names = [out.name for node in result.graph.all_nodes() for out in node.outputs if out.name]
    assert len(names) == len(set(names))
    found = run(result, feeds)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-5)
    for name in wrt:
        np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=1e-4, atol=1e-4)
    return result


@pytest.mark.parametrize(
    "layout",
    [
        "",
        ", scan_input_directions = [1]",
        ", scan_output_directions = [1, 0]",
        ", scan_output_axes = [1, -1], scan_output_directions = [0, 1]",
    ],
)
@pytest.mark.parametrize("turned", [str, with_columns])
def test_scan(layout, turned):
    model = graph(turned(SCAN % layout))
    assert_gradients(model, random_feeds(model, T=4, B=2), WEIGHTS)


def test_sequences_along_another_axis():
    model = graph(SCAN.replace("float[T,B,3] x", "float[B,T,3] x") % ", scan_input_axes = [1]")
    assert_gradients(model, random_feeds(model, T=4, B=2), WEIGHTS)


@pytest.mark.parametrize("turned", [str, with_columns])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_loop(steps, turned):
    model = graph(turned(LOOP))
    feeds = {**random_feeds(model, T=4, B=2), "n": np.array(steps)}
    assert_gradients(model, feeds, WEIGHTS)


LINEAR = """g (float[T,B,2] x, float[B,2] h) => (float loss) {
    hn, z = Scan<num_scan_inputs = 1, body = b (float[B,2] s, float[B,2] xi) =>
        (float[B,2] so, float[B,2] zo) { STEP zo = Neg(xi) }>(h, x)
    y = Mul(hn, hn) AFTER loss = ReduceSum<keepdims = 0>(k) }"""


@pytest.mark.parametrize("step", ["so = Neg(s)", "two = Add(s, s) so = Add(two, xi)"])
@pytest.mark.parametrize("after", ["k = Identity(y)", "m = ReduceSum(z) k = Add(y, m)"])
def test_a_scan_whose_linear_steps_need_no_slice_still_counts_them(step, after):
    """onnxruntime 1.19 runs a Scan without sequences for no step at all; later ones refuse it."""
    model = graph(LINEAR.replace("STEP", step).replace("AFTER", after))
    assert_gradients(model, random_feeds(model, T=4, B=2), ["h"])


def test_a_step_may_read_a_trained_value_for_nothing():
    """What is left of a state that no step changes."""
    after = "m = ReduceSum(z) k = Add(y, m)"
    model = graph(LINEAR.replace("STEP", "so = Identity(s)").replace("AFTER", after))
    assert_gradients(model, random_feeds(model, T=4, B=2), ["h"])


@pytest.mark.parametrize("state", ["2", "D,2,3"])
def test_a_captured_weight_times_a_state_that_is_no_matrix(state):
    model = graph(
        f"""g (float[T,2] x, float[{state}] h, float[2,2] w) => (float loss) {{
        hn = Scan<num_scan_inputs = 1, body = b (float[{state}] s, float[2] xi) =>
            (float[{state}] so) {{ p = MatMul(w, s) a = ReduceSum<keepdims = 0>(xi)
            q = Add(p, a) so = Tanh(q) }}>(h, x)
        loss = ReduceSum<keepdims = 0>(hn) }}"""
    )
    assert_gradients(model, random_feeds(model, T=4, D=2), ["x", "h", "w"])


def test_loop_that_ends_by_its_condition():
    model = graph(
        """g (float[2] h, float[2] w) => (float loss) {
        n = Constant<value_int = 100>() one = Constant<value_int = 1>() on = Cast<to = 9>(one)
        y = Loop<body = b (int64 i, bool k, float[2] s) => (bool ko, float[2] so) {
            so = Mul(s, w) three = Constant<value_int = 3>() ko = Less(i, three) }>(n, on, h)
        loss = ReduceSum<keepdims = 0>(y) }"""
    )
    feeds = {"h": np.array([1, 2], np.float32), "w": np.array([0.5, -1.5], np.float32)}
    result = assert_gradients(model, feeds, ["h", "w"])
    w, h = feeds["w"].astype(float), feeds["h"]  # four steps: y = w^4 h
    np.testing.assert_allclose(run(result, feeds)["w_grad"], 4 * w**3 * h, rtol=1e-5)


def test_lengths_that_differ_from_step_to_step():
    """Rows between two offsets, as torch writes EmbeddingBag: they cannot be stacked."""
    model = graph(
        """g (int64[O] o, float[R,2] x, float[2,2] w) => (float loss) {
        n = Shape(o) one = Constant<value_ints = [1]>() less = Sub(n, one) m = Squeeze(less)
        yes = Constant<value_int = 1>() on = Cast<to = 9>(yes)
        y = Loop<body = b (int64 i, bool k) => (bool ko, float[P] yo) {
            ko = Identity(k) i1 = Constant<value_ints = [1]>() zero = Constant<value_ints = [0]>()
            start = Gather(o, i) j = Add(i, i1) end = Gather(o, j) from = Unsqueeze(start, zero)
            rows = Slice(x, from, end, zero) p = MatMul(rows, w) q = Tanh(p)
            yo = ReduceSum<keepdims = 0>(q, zero) }>(m, on)
        s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }"""
    )
    feeds = {**random_feeds(model, R=6), "o": np.array([0, 2, 5, 6])}
    assert_gradients(model, feeds, ["x", "w"])


def test_only_what_the_gradient_reads_is_kept():
    result = differentiate(graph(SCAN % ""), "loss", ["c"], "portable")
    forward = next(node for node in result.graph if node.op_type == "Scan")
    # hn, y, z, and of each step the new state, for the derivative of the Tanh and of the square
    assert len(forward.outputs) == 4
    products = [node for node in result.graph if node.op_type in ("Gemm", "MatMul")]
    assert not products


@pytest.mark.parametrize("turned", [str, with_columns])
def test_weight_gradients_are_one_product_over_all_steps(turned):
    result = differentiate(graph(turned(SCAN % "")), "loss", ["w", "u"], "portable")
    outside = [node.op_type for node in result.graph]
    assert outside.count("Gemm") == 2
    *_, backward = (node for node in result.graph if node.op_type == "Scan")
    body = backward.attributes["body"].as_graph()
    assert [node.op_type for node in body if node.op_type in ("Gemm", "MatMul")] == ["Gemm"]  # ds
    (product,) = (node for node in body if node.op_type == "Gemm")
    assert not product.attributes.get_int("transA", 0)  # the weight is transposed once, outside


def test_no_step_copies_what_is_kept():
    text = (SCAN % "").replace("so = Tanh(t)", "e = Exp(t) so = Tanh(e)")
    result = differentiate(graph(text), "loss", WEIGHTS, "portable")
    forward, backward = (node for node in result.graph if node.op_type == "Scan")
    copies = [
        node.inputs[0].name
        for node in (*steps_of(forward), *steps_of(backward))
        if node.op_type == "Identity"
    ]
    # A state before a step is an input of the body; after it, it is an output already.
    assert copies == ["so", "s"]
    # The gradients of the state and of c; of the slices; and of both products, which is one.
    assert len(backward.outputs) == 4


def steps_of(loop: ir.Node) -> ir.Graph:
    return loop.attributes["body"].as_graph()


def test_state_that_only_another_state_makes_active():
    """The sum of the outputs, carried as a state: its gradient reaches the weight one step on."""
    model = graph(
        """g (float[T,2] x, float[2] a, float[2] z, float[2] w) => (float loss) {
        s, r = Scan<num_scan_inputs = 1, body = b (float[2] p, float[2] q, float[2] xi) =>
            (float[2] po, float[2] qo) { m = Mul(xi, w) po = Add(p, m) t = Mul(p, p)
            qo = Add(q, t) }>(a, z, x)
        loss = ReduceSum<keepdims = 0>(r) }"""
    )
    assert_gradients(model, random_feeds(model, T=4), ["x", "a", "z", "w"])


def test_loops_in_loops_and_branches():
    model = graph(
        """g (float[T,2,2] x, float[2] h, float[2] w, bool c) => (float loss) {
        hn = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2,2] xi) => (float[2] so) {
            inner = Scan<num_scan_inputs = 1, body = d (float[2] v, float[2] xj) => (float[2] vo) {
                m = Mul(v, w) o = Add(m, xj) vo = Sin(o) }>(s, xi)
            so = If(c)<then_branch = t () => (float[2] ty) { ty = Mul(inner, w) },
                else_branch = e () => (float[2] ey) { ey = Exp(inner) }> }>(h, x)
        loss = ReduceSum<keepdims = 0>(hn) }"""
    )
    for choice in (True, False):
        feeds = {**random_feeds(model, T=3), "c": np.array(choice)}
        assert_gradients(model, feeds, ["x", "h", "w"])


def test_bodies_are_decomposed_and_prepared():
    """LpNormalization is decomposed, and the padding of the Conv is made explicit."""
    model = graph(
        """g (float[T,1,2,4] x, float[1,2,4] h, float[2,2,3] w) => (float loss) {
        hn = Scan<num_scan_inputs = 1, body = b (float[1,2,4] s, float[1,2,4] xi) =>
            (float[1,2,4] so) { m = Add(s, xi) v = Conv<auto_pad = "SAME_UPPER">(m, w)
            so = LpNormalization<axis = -1>(v) }>(h, x)
        p = Mul(hn, x) loss = ReduceSum<keepdims = 0>(p) }"""
    )
    feeds, wrt = random_feeds(model, T=3), ["x", "h", "w"]
    expected = numeric_gradients(model, "loss", wrt, feeds)  # the runtime has no Conv of float64
    found = run(differentiate(model, "loss", wrt, "portable"), feeds)
    for name in wrt:
        np.testing.assert_allclose(found[f"{name}_grad"], expected[name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("r = Round(s) so = Add(r, xi)", "derivative is zero"),
        ("r = RandomNormalLike(s) so = Mul(r, s)", "random numbers"),
    ],
)
def test_refused_with_a_reason(step, reason):
    model = graph(
        f"""g (float[T,2] x, float[2] h) => (float loss) {{
        hn = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] xi) => (float[2] so) {{
            {step} }}>(h, x)
        loss = ReduceSum<keepdims = 0>(hn) }}"""
    )
    (node,) = [node for node in model.graph if node.op_type == "Scan"]
    assert reason in (get_engine("portable").gradient_support(node) or "")
    with pytest.raises(ModelError, match="no gradient in the portable engine"):
        differentiate(model, "loss", ["h"], "portable")


TENSOR = ir.TensorType(ir.DataType.FLOAT)


@pytest.mark.parametrize(
    ("kind", "refused"), [(ir.SequenceType(TENSOR), True), (TENSOR, False), (None, False)]
)
def test_only_a_sequence_of_tensors_is_refused(kind, refused):
    state = ir.Value(name="s", type=kind)
    body = ir.Graph([state], [state], nodes=[], name="b")
    output = ir.Value(name="y", type=kind)
    node = ir.Node(
        "", "Scan", [ir.Value(name="h", type=kind)], [ir.AttrGraph("body", body)], outputs=[output]
    )
    reason = get_engine("portable").gradient_support(node)
    assert ("sequence of tensors" in (reason or "")) == refused
