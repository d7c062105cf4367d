"""Decompositions: the same values, correct gradients, dynamic batches, only where needed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.decompose import DECOMPOSITIONS, decompose
from ortboost.autodiff.decompose.fourier import write_out_real_inverses
from ortboost.autodiff.engine import differentiate, get_engine
from tests.autodiff.oracle import assert_gradients, graph, random_feeds
from tests.support import ENGINES, native_only, run

native_only()


ENGINE = get_engine("native")

# operator: (inputs beside x, input shape, node text)
NODES = {
    "AffineGrid": (
        "",
        "N,2,3",
        "i = Shape<end=1>(x) k = Constant<value_ints=[1,4,5]>() d = Concat<axis=0>(i, k) "
        "y = AffineGrid<align_corners=1>(h, d)",
    ),
    "Acos": ("", "N,4", "c = Tanh(h) y = Acos(c)"),
    "Acosh": (
        "",
        "N,4",
        "e = Exp(h) two = Constant<value_float=1.5>() c = Add(e, two) y = Acosh(c)",
    ),
    "Asin": ("", "N,4", "c = Tanh(h) y = Asin(c)"),
    "Asinh": ("", "N,4", "y = Asinh(h)"),
    "Atan": ("", "N,4", "y = Atan(h)"),
    "Atanh": ("", "N,4", "t = Tanh(h) d = Constant<value_float=0.9>() c = Mul(t, d) y = Atanh(c)"),
    "Celu": ("", "N,4", "y = Celu<alpha=0.7>(h)"),
    "Compress": (
        "",
        "N,4",
        "k = Constant<value_ints=[1,0,1]>() c = Cast<to=9>(k) y = Compress<axis=1>(h, c)",
    ),
    "ConvTranspose": (
        "float[4,2,3,3] k",
        "N,4,H,W",
        "y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(h, k)",
    ),
    "Cosh": ("", "N,4", "y = Cosh(h)"),
    "CumSum": ("", "N,L", "a = Constant<value_int=1>() y = CumSum(h, a)"),
    "DFT": ("", "N,4,1", "y = DFT<axis=1>(h)"),
    "DepthToSpace": ("", "N,8,H,W", "y = DepthToSpace<blocksize=2>(h)"),
    "Einsum": ("float[4,5] k", "N,L,4", 'y = Einsum<equation="blc,cd->bld">(h, k)'),
    "Elu": ("", "N,4", "y = Elu(h)"),
    "Ceil": ("", "N,4", "c = Ceil(h) d = Sub(c, h) y = Mul(d, d)"),
    "Floor": (
        "",
        "N,4",
        "c = Constant<value_float=0.7>() d = Div(h, c) f = Floor(d) m = Mul(f, c) y = Sub(h, m)",
    ),
    "GlobalMaxPool": ("", "N,2,H,W", "y = GlobalMaxPool(h)"),
    "GridSample": ("float[N,2,5,2] k", "N,2,H,W", "y = GridSample(h, k)"),
    "GroupNormalization": (
        "float[2] s, float[2] b",
        "N,4,H,W",
        "y = GroupNormalization<num_groups=2>(h, s, b)",
    ),
    "HardSigmoid": ("", "N,4", "y = HardSigmoid(h)"),
    "HardSwish": ("", "N,4", "y = HardSwish(h)"),
    "InstanceNormalization": (
        "float[4] s, float[4] b",
        "N,4,L",
        "y = InstanceNormalization(h, s, b)",
    ),
    "LRN": ("", "N,5,H,W", "y = LRN<size=3, alpha=0.3>(h)"),
    "LpNormalization": ("", "N,4", "y = LpNormalization(h)"),
    "Mean": ("float[4] s", "N,4", "y = Mean(h, s, x)"),
    "MeanVarianceNormalization": ("", "N,2,H,W", "y = MeanVarianceNormalization(h)"),
    "Mish": ("", "N,4", "y = Mish(h)"),
    "NegativeLogLikelihoodLoss": (
        "",
        "3,4",
        "k = Constant<value_ints=[0,3,1]>() y = NegativeLogLikelihoodLoss(h, k)",
    ),
    "PRelu": ("float[4] s", "N,4", "y = PRelu(h, s)"),
    "Pad": ("", "N,4", 'p = Constant<value_ints=[0,2,0,3]>() y = Pad<mode="reflect">(h, p)'),
    "ReduceL1": ("", "N,4", "a = Constant<value_ints=[1]>() y = ReduceL1(h, a)"),
    "ReduceLogSum": ("", "N,4", "e = Exp(h) a = Constant<value_ints=[1]>() y = ReduceLogSum(e, a)"),
    "ReduceMax": ("", "N,4", "a = Constant<value_ints=[-1]>() y = ReduceMax<keepdims=0>(h, a)"),
    "ReduceMin": ("", "N,4", "a = Constant<value_ints=[0]>() y = ReduceMin(h, a)"),
    "ReduceProd": ("", "N,4", "a = Constant<value_ints=[1]>() y = ReduceProd<keepdims=0>(h, a)"),
    "ReduceSumSquare": ("", "N,4", "y = ReduceSumSquare(h)"),
    "Resize": (
        "",
        "N,2,3,4",
        'r = Constant<value_floats=[1.0,1.0,2.0,2.0]>() y = Resize<mode="nearest", '
        'coordinate_transformation_mode="asymmetric", nearest_mode="floor">(h, , r)',
    ),
    "STFT": (
        "float[6] k",
        "N,11,1",
        "s = Constant<value_int=3>() y = STFT<onesided=1>(h, s, k)",
    ),
    "Selu": ("", "N,4", "y = Selu(h)"),
    "Shrink": ("", "N,4", "y = Shrink<lambd=0.3, bias=0.1>(h)"),
    "Round": (
        "",
        "N,4",
        "c = Constant<value_float=0.7>() d = Div(h, c) r = Round(d) m = Mul(r, c) y = Sub(h, m)",
    ),
    "Sign": ("", "N,4", "s = Sign(h) a = Abs(h) e = Exp(a) y = Mul(s, e)"),
    "Sinh": ("", "N,4", "y = Sinh(h)"),
    "Softplus": ("", "N,4", "y = Softplus(h)"),
    "Softsign": ("", "N,4", "y = Softsign(h)"),
    "SpaceToDepth": ("", "N,2,4,6", "y = SpaceToDepth<blocksize=2>(h)"),
    "Sum": ("float[4] s", "N,4", "y = Sum(h, s, x)"),
    "Tan": ("", "N,4", "t = Tanh(h) y = Tan(t)"),
    "ThresholdedRelu": ("", "N,4", "y = ThresholdedRelu<alpha=0.3>(h)"),
}


def net(op):
    more, shape, body = NODES[op]
    inputs = f"float[{shape}] x, float[1] w" + (f", {more}" if more else "")
    wrt = ["w", *[part.split()[-1] for part in more.split(", ") if part]]
    model = graph(
        f"g ({inputs}) => (float loss) {{ h = Mul(x, w) {body} q = Mul(y, y) z = Sum(q) "
        "loss = ReduceMean<keepdims=0>(z) }".replace(
            "z = Sum(q) ", "z = Exp(y) u = Sub(q, z) "
        ).replace("(z) }", "(u) }"),
        opset=20 if op == "AffineGrid" else 18,
    )
    return model, wrt


def test_every_rule_has_a_case():
    # A straight-through estimator, no gradient, and an operator that the runtime does not have.
    elsewhere = {"DequantizeLinear", "DeformConv"}
    assert set(NODES) | elsewhere == set(DECOMPOSITIONS)


@pytest.mark.parametrize("op", sorted(NODES))
def test_values_gradients_and_idempotence(op):
    model, wrt = net(op)
    feeds = random_feeds(model, seed=3, N=3, L=4, H=3, W=4)
    work = model.clone()
    report = decompose(work, wrt=wrt, loss="loss", engine=ENGINE)
    assert any(what.startswith(op) for what in report.changed.values())
    assert not report.kept
    # The same operator in another form.
    again = ("Ceil", "Floor", "ReduceMax", "ReduceMean", "ReduceMin", "Round", "Sign")
    assert (op in {node.op_type for node in work.graph}) == (op in again)
    onnx.checker.check_model(ir.to_proto(work), full_check=True)
    np.testing.assert_allclose(
        run(work, feeds)["loss"], run(model, feeds)["loss"], rtol=1e-4, atol=1e-5
    )
    assert not decompose(work, wrt=wrt, loss="loss", engine=ENGINE).modified
    # The reference evaluator cannot run the body of MeanVarianceNormalization in float64.
    source = work if op == "MeanVarianceNormalization" else model
    assert_gradients(source, wrt, feeds, tolerance=3e-3)


@pytest.mark.parametrize("op", sorted(NODES))
def test_only_where_a_gradient_has_to_pass(op):
    model, _ = net(op)
    report = decompose(model, wrt=[], loss="loss", engine=ENGINE)
    assert not report.modified
    assert op in {node.op_type for node in model.graph}


def test_an_engine_that_knows_the_operator_keeps_it():
    class Knows:
        def gradient_support(self, node):
            return None

    model, wrt = net("HardSwish")
    assert not decompose(model, wrt=wrt, loss="loss", engine=Knows()).modified


EXTREMES = {
    "Softplus": ([-1000, 0, 1000], [0, np.log(2), 1000], [0, 0.5, 1]),
    "Elu": ([-1000, 0, 1000], [-1, 0, 1000], [0, 1, 1]),
    "Selu": ([-1000, 0, 1000], [-1.7580993, 0, 1050.701], [0, 1.7580993, 1.050701]),
    "Celu": ([-1000, 0, 1000], [-1, 0, 1000], [0, 1, 1]),
    "Mish": ([-1000, 0, 1000], [0, 0, 1000], [0, 0.6, 1]),
    "Softsign": ([-1000, 0, 1000], [-1000 / 1001, 0, 1000 / 1001], [1 / 1001**2, 1, 1 / 1001**2]),
    "Asinh": ([-1000, 0, 1000], [-7.6009027, 0, 7.6009027], [1e-3, 1, 1e-3]),
    "Atan": ([-1e6, 0, 1e6], [-np.pi / 2, 0, np.pi / 2], [0, 1, 0]),
    "HardSwish": ([-1000, 0, 1000], [0, 0, 1000], [0, 0.5, 1]),
}


@pytest.mark.parametrize("op", EXTREMES)
def test_no_overflow_and_the_corner_at_zero(op):
    """Values and slopes at large arguments and exactly at 0, as in PyTorch."""
    points, values, slopes = EXTREMES[op]
    model = graph(
        f"g (float[3] x) => (float[3] y, float loss) {{ y = {op}(x) loss = "
        f"ReduceSum<keepdims=0>(y) }}"
    )
    decompose(model, wrt=["x"], loss="loss", engine=ENGINE)
    found = run(differentiate(model, "loss", ["x"], "native"), {"x": np.array(points, np.float32)})
    np.testing.assert_allclose(found["y"], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["x_grad"], slopes, rtol=1e-4, atol=1e-6)


def test_reduce_max_spreads_the_gradient_among_ties():
    model = graph("""g (float[2,4] x) => (float loss) { a = Constant<value_ints=[1]>()
        m = ReduceMax<keepdims=0>(x, a) loss = ReduceSum<keepdims=0>(m) }""")
    decompose(model, wrt=["x"], loss="loss", engine=ENGINE)
    x = np.array([[1, 3, 3, 3], [-np.inf, 2, 0, -np.inf]], np.float32)
    found = run(differentiate(model, "loss", ["x"], "native"), {"x": x})
    assert found["loss"] == pytest.approx(5.0)
    np.testing.assert_allclose(found["x_grad"], [[0, 1 / 3, 1 / 3, 1 / 3], [0, 1, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('y = Einsum<equation="ii->i">(h)', "diagonal of axis 'i', of unknown length"),
        ('y = Einsum<equation="ijk->ij">(h)', "does not fit its operand 0 of rank 2"),
        ("y = Sign(h)", "its derivative is zero"),
        ("y = Floor(h)", "its derivative is zero"),
        ("s = Sign(h) d = Sub(s, h) y = Add(h, d)", "its derivative is zero"),
        ("s = Sign(h) m = ReduceMean(h) a = Abs(m) y = Mul(s, a)", "its derivative is zero"),
        ("s = Sign(h) y = Mul(s, h)", "its derivative is zero"),
        ("f = Floor(h) y = Mul(f, h)", "its derivative is zero"),
        ("f = Floor(h) d = Sub(f, h) y = Add(h, d)", "its derivative is zero"),
        ("f = Floor(h) d = Sub(h, f) y = Sub(h, d)", "its derivative is zero"),
        ("f = Floor(h) d = Sub(h, f) m = Mul(d, w) y = Sub(h, m)", "its derivative is zero"),
        ("r = Round(h) d = Sub(r, h) y = Add(h, d)", "its derivative is zero"),
        (
            "r = Round(h) d = Sub(r, h) m = Greater(x, w) z = Where(m, w, d) y = Sum(h, z)",
            "is zero",
        ),
        ("c = Ceil(h) d = Sub(c, h) n = Neg(c) y = Mul(d, n)", "its derivative is zero"),
        ("d = Div(h, w) f = Floor(d) m = Mul(f, h) y = Sub(h, m)", "its derivative is zero"),
        ("y = DFT<axis=0>(h)", "real or complex"),
        ("c = Shape<end=1>(x) k = Squeeze(c) y = STFT(h, k, w)", "frame step"),
        ("k = Constant<value_int=2>() y = STFT(h, k)", "frame length"),
        (
            "c = Constant<value_ints=[2, 5, 2]>() i = Expand(h, c) n = Constant<value_int=12>() "
            "y = DFT<axis=1, inverse=1, onesided=1>(i, n)",
            "5 one-sided values for 12 samples",
        ),
        (
            "k = Transpose<perm=[1,0]>(h) p = Constant<value_ints=[1,0,1,0]>() y = "
            'Pad<mode="edge">(k, p)',
            "no fixed length",
        ),
        ("a = Constant<value_ints=[0]>() y = ReduceProd(h, a)", "fixed length"),
    ],
)
def test_forms_that_no_rule_fits_say_why(body, reason):
    model = graph(f"""g (float[N,N] x, float[1] w) => (float loss) {{ h = Mul(x, w) {body}
        loss = ReduceMean<keepdims=0>(y) }}""")
    report = decompose(model, wrt=["w"], loss="loss", engine=ENGINE)
    assert reason in next(iter(report.kept.values()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("body", "slope"),
    [
        ("s = Sign(x) m = Mul(s, c) y = Sub(x, m)", lambda x: np.ones_like(x)),
        ("f = Floor(x) y = Sub(x, f)", lambda x: np.ones_like(x)),
        ("a = Add(x, c) f = Floor(a) d = Sub(x, f) y = Abs(d)", lambda x: np.sign(x - np.round(x))),
        ("d = Div(x, c) r = Round(d) m = Mul(r, c) y = Sub(x, m)", lambda x: np.ones_like(x)),
        (
            "z = Constant<value_float=0.0>() t = Constant<value_float=2.0>() f = Floor(x) "
            "g = Add(f, c) h = Add(g, c) low = Max(f, z) a = CastLike(t, h) high = Min(h, a) "
            "u = Sub(high, x) v = Sub(x, low) p = Mul(low, t) q = Add(p, high) i = Cast<to=7>(q) "
            "k = Cast<to=1>(i) w = Mul(u, v) y = Add(w, k)",
            lambda x: np.minimum(np.floor(x) + 1, 2) + np.maximum(np.floor(x), 0) - 2 * x,
        ),
        ("s = Sign(x) a = Abs(x) r = Sqrt(a) y = Mul(r, s)", lambda x: 0.5 / np.sqrt(np.abs(x))),
        (
            "s = Sign(x) a = Abs(x) o = CastLike(c, a) b = Add(o, a) l = Log(b) y = Mul(s, l)",
            lambda x: 1 / (0.5 + np.abs(x)),
        ),
    ],
    ids=[
        "softshrink",
        "fraction",
        "triangle",
        "wrapped angle",
        "grid",
        "signed root",
        "signed logarithm",
    ],
)
def test_steps_that_are_factors_of_their_own_argument(engine, body, slope):
    model = graph(f"""g (float[5] x) => (float loss) {{ c = Constant<value_float=0.5>() {body}
        loss = ReduceSum<keepdims=0>(y) }}""")
    x = np.array([-2.3, -0.4, 0.6, 1.7, 3.1], np.float32)
    decompose(model, wrt=["x"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(model, "loss", ["x"], engine), {"x": x})
    np.testing.assert_allclose(found["x_grad"], slope(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("attributes", "length", "shape", "expected"),
    [
        ("axis=1", "", "2,5,2", lambda z: np.fft.fft(z, axis=1)),
        ("axis=0", "", "5,3,2", lambda z: np.fft.fft(z, axis=0)),
        ("axis=1, inverse=1", "", "2,6,3,2", lambda z: np.fft.ifft(z, axis=1)),
        ("axis=2, onesided=1", "", "2,3,6,1", lambda z: np.fft.rfft(z.real, axis=2)),
        ("axis=1", "7", "2,5,2", lambda z: np.fft.fft(z, n=7, axis=1)),
        ("axis=1, inverse=1", "3", "2,5,2", lambda z: np.fft.ifft(z, n=3, axis=1)),
    ],
)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("opset", [18, 20])
def test_dft_is_that_of_numpy(attributes, length, shape, expected, opset, fixed):
    axis = attributes[5]
    given = "n" if length else ""
    if opset == 20:
        attributes, given = attributes[6:].lstrip(", "), f"{given}, axis"
    *sizes, parts = shape.split(",")
    declared = shape if fixed else ",".join([*"NMK"[: len(sizes)], parts])
    text = f"""g (float[{declared}] x) => (float[a, b, c] y) {{
        n = Constant<value_int={length or 0}>() axis = Constant<value_int={axis}>()
        h = Identity(x) y = DFT<{attributes}>(h, {given}) }}"""
    text = text.replace("[a, b, c]", "[" + ",".join("abcd"[: shape.count(",") + 1]) + "]")
    model = graph(text.replace("<>", ""), opset)
    feeds = random_feeds(model, **dict(zip("NMK", map(int, sizes), strict=False)))
    assert decompose(model, wrt=["x"], loss="y", engine=ENGINE).modified
    found = run(model, feeds)["y"]
    z = feeds["x"][..., 0] + 1j * (feeds["x"][..., 1] if shape.endswith("2") else 0)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected(z), atol=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize(
    ("given", "shape"),
    [("w", "N,L"), ("w, n", "2,20,1"), (", n", "N,L,1")],
    ids=["window", "both", "length"],
)
def test_stft_is_that_of_numpy(given, shape, onesided):
    model = graph(
        f"""g (float[{shape}] x) => (float[a,b,c,2] y) {{ h = Identity(x)
        s = Constant<value_int=4>() n = Constant<value_int=7>()
        w = Constant<value_floats=[0.1, 0.5, 0.9, 1.0, 0.9, 0.5, 0.2]>()
        y = STFT<onesided = {onesided}>(h, s, {given}) }}"""
    )
    feeds = random_feeds(model, N=2, L=20)
    assert decompose(model, wrt=["x"], loss="y", engine=ENGINE).modified
    assert not any(node.op_type == "STFT" for node in model.graph)
    found = run(model, feeds)["y"]
    frames = np.stack([feeds["x"].reshape(2, 20)[:, i : i + 7] for i in range(0, 14, 4)], 1)
    window = np.array([0.1, 0.5, 0.9, 1.0, 0.9, 0.5, 0.2]) if "w" in given else 1.0
    expected = (np.fft.rfft if onesided else np.fft.fft)(frames * window)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, atol=1e-5)


@pytest.mark.parametrize("length", [None, 8, 9])
@pytest.mark.parametrize("opset", [18, 20])
def test_an_inverse_dft_of_one_side_is_that_of_numpy(length, opset):
    """onnxruntime 1.19 does not open such a model."""
    attributes, given = "inverse = 1, onesided = 1", "n" if length else ""
    if opset == 20:
        given = f"{given}, axis"
    else:
        attributes += ", axis = 1"
    model = graph(
        f"""g (float[2,5,3,2] x) => (float[2,L,3,1] y) {{
        n = Constant<value_int={length or 0}>() axis = Constant<value_int=1>()
        h = Identity(x) y = DFT<{attributes}>(h, {given}) }}""",
        opset,
    )
    feeds = random_feeds(model)
    assert write_out_real_inverses(model).modified
    z = feeds["x"][..., 0] + 1j * feeds["x"][..., 1]
    expected = np.fft.irfft(z, n=length, axis=1)
    np.testing.assert_allclose(run(model, feeds)["y"][..., 0], expected, atol=1e-6)


@pytest.mark.parametrize("equation", ["ii->i", "ii->", "aii->ia", "iji->j", "iii->i"])
def test_diagonals_of_einsum(equation):
    left, _, right = equation.partition("->")
    shape = ",".join("34"[letter in "aj"] for letter in left)
    out = ",".join("34"[letter in "aj"] for letter in right)
    model = graph(f"""g (float[{shape}] x) => (float[{out}] y) {{
        h = Neg(x) y = Einsum<equation="{equation}">(h) }}""")
    feeds = random_feeds(model)
    feeds["x"][0].fill(0.25)
    assert decompose(model, wrt=["x"], loss="y", engine=ENGINE).modified
    np.testing.assert_allclose(
        run(model, feeds)["y"], np.einsum(equation, -feeds["x"]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("equation", "shape", "inputs"),
    [("ii", "3,3", "x"), ("iij", "2,2,2", "x"), ("...ii", "2,2,2", "x"), ("ji,kj", "3,3", "x, x")],
)
def test_implicit_results_of_einsum(equation, shape, inputs):
    """They have the letters that occur once in the whole equation, in alphabetical order."""
    model = graph(f"""g (float[{shape}] x) => (float loss) {{
        y = Einsum<equation = "{equation}">({inputs}) s = Exp(y)
        loss = ReduceSum<keepdims = 0>(s) }}""")
    assert_gradients(model, ["x"], random_feeds(model))


def test_shrink_with_a_negative_threshold():
    """Both conditions may hold; the standard tests the lower one first."""
    model = graph("""g (float[3,4] x) => (float loss) {
        y = Shrink<lambd = -0.5, bias = 0.2>(x) s = Mul(y, y)
        loss = ReduceSum<keepdims = 0>(s) }""")
    assert_gradients(model, ["x"], random_feeds(model))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE])
def test_a_normalized_zero_vector_and_its_gradient(engine, power, dtype):
    """A division by the smallest number would make every step overflow that has a zero vector."""
    model = graph(f"""g (float[2,3] x, float[3] w) => (float[2,3] z, float loss) {{
        h = Cast<to = {int(dtype)}>(x) y = LpNormalization<p = {power}>(h) z = Cast<to = 1>(y)
        q = Mul(z, w) loss = ReduceSum<keepdims = 0>(q) }}""")
    feeds = {"x": np.float32([[0, 0, 0], [1, -2, 2]]), "w": np.float32([8, -9, 10])}
    decompose(model, wrt=["x"], loss="loss", engine=get_engine(engine))
    found = run(differentiate(model, "loss", ["x"], engine), feeds)
    np.testing.assert_allclose(found["z"][0], 0)
    np.testing.assert_allclose(found["z"][1], feeds["x"][1] / (5 if power == 1 else 3), rtol=1e-3)
    assert np.abs(found["x_grad"]).max() <= 10
