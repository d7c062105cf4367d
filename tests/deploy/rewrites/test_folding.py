"""Rewrites that change weights or operators: results are equal within rounding."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.deploy.pipeline import optimize
from ortboost.deploy.rewrites.fold_affine import fold_affine
from ortboost.deploy.rewrites.fold_forward import fold_forward
from ortboost.deploy.rewrites.fuse_gelu import fuse_gelu
from ortboost.deploy.rewrites.fuse_gemm import fuse_gemm
from ortboost.deploy.rewrites.fuse_hardswish import fuse_hardswish
from ortboost.deploy.rewrites.fuse_layer_norm import fuse_layer_norm
from ortboost.deploy.rewrites.lift_opset import lift_opset
from ortboost.deploy.rewrites.split_skip_norm import split_skip_norm
from ortboost.deploy.targets import get_target
from tests.deploy.rewrites.support import assert_kept, check, model_of, ops
from tests.support import weights

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
IMAGE = {"x": weights(2, 4, 6, 6, seed=7, scale=1.0)}
NORM = {
    "s": 1 + 0.3 * weights(4, seed=1),
    "b": weights(4, seed=2),
    "m": weights(4, seed=3),
    "v": 0.5 + np.abs(weights(4, seed=4)),
}
NORM_TYPES = "float[4] s, float[4] b, float[4] m, float[4] v"


# ---- BatchNormalization before the layer ---------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "weight"),
    [
        ("group = 1", (4, 4, 3, 3)),
        ("group = 2, strides = [2,2]", (6, 2, 3, 3)),
        ("group = 4", (4, 1, 2, 2)),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_bn_before_conv(attributes, weight, bias):
    body = f"""[bn] n = BatchNormalization(x, s, b, m, v)
    y = Conv<{attributes}>(n, w{", k" if bias else ""})"""
    types = f"float[n,4,6,6] x, {NORM_TYPES}, float[{','.join(map(str, weight))}] w"
    stored = {"w": weights(*weight), **NORM}
    if bias:
        types += f", float[{weight[0]}] k"
        stored["k"] = weights(weight[0], seed=9)
    model = model_of(body, types, "float[n,c,h,w2] y", **stored)
    report = check(fold_forward, model, IMAGE, **CLOSE)
    assert ops(model) == {"Conv": 1}
    assert list(report.changed) == ["bn"]


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_bn_before_gemm(transposed, bias):
    body = f"""[bn] n = BatchNormalization(x, s, b, m, v)
    y = Gemm<transB = {transposed}, alpha = 0.5, beta = 2.0>(n, w{", k" if bias else ""})"""
    stored = {"w": weights(3, 4) if transposed else weights(4, 3), **NORM}
    types = f"float[n,4] x, {NORM_TYPES}, float[{'3,4' if transposed else '4,3'}] w"
    if bias:
        types += ", float[3] k"
        stored["k"] = weights(3, seed=9)
    model = model_of(body, types, "float[n,3] y", **stored)
    check(fold_forward, model, {"x": weights(5, 4)}, **CLOSE)
    assert ops(model) == {"Gemm": 1}


def test_a_padding_conv_is_folded_only_without_shift():
    body = """[bn] n = BatchNormalization(x, s, b, m, v) y = Conv<pads = [1,1,1,1]>(n, w)"""
    types = f"float[n,4,6,6] x, {NORM_TYPES}, float[4,4,3,3] w"
    model = model_of(body, types, "float[n,4,6,6] y", w=weights(4, 4, 3, 3), **NORM)
    assert "pads" in check(fold_forward, model, IMAGE).kept["bn"]
    pure = {**NORM, "b": np.zeros(4, np.float32), "m": np.zeros(4, np.float32)}
    model = model_of(body, types, "float[n,4,6,6] y", w=weights(4, 4, 3, 3), **pure)
    check(fold_forward, model, IMAGE, **CLOSE)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize(
    ("body", "outputs", "reason"),
    [
        (
            "[bn] n = BatchNormalization(x,s,b,m,v) h = Conv(n, w) k = ReduceMax(w) y = Add(h, k)",
            "",
            "shared",
        ),
        ("[bn] n = BatchNormalization(x,s,b,m,v) u = Relu(w) y = Conv(n, u)", "", "computed"),
        ("[bn] n = BatchNormalization(x,s,b,m,v) y = Conv(n, w)", ", float[n,4,6,6] n", None),
        ("[bn] n = BatchNormalization(x,s,b,m,v) r = Relu(n) y = Conv(r, w)", "", None),
    ],
)  # fmt: skip
def test_bn_that_stays(body, outputs, reason):
    types = f"float[n,4,6,6] x, {NORM_TYPES}, float[4,4,3,3] w"
    model = model_of(body, types, f"float[n,4,4,4] y{outputs}", w=weights(4, 4, 3, 3), **NORM)
    report = check(fold_forward, model, IMAGE)
    assert report.changed == {}
    assert_kept(report, "bn", reason)


@pytest.mark.parametrize(
    ("node", "constant", "pads", "changed"),
    [
        ("Mul(x, c)", np.float32(0.9), 1, True),
        ("Mul(c, x)", weights(1, 4, 1, 1), 1, True),
        ("Div(x, c)", weights(4, 1, 1) + 3, 1, True),
        ("Sub(c, x)", weights(1, 4, 1, 1), 0, True),
        ("Add(x, c)", np.float32(0.9), 0, True),
        ("Add(x, c)", np.float32(0.9), 1, "pads"),
        ("Div(c, x)", np.float32(0.9), 1, "not a constant"),
        ("Mul(x, c)", weights(1, 1, 6, 6), 1, "one value per channel"),
        ("Mul(x, c)", weights(1, 1, 4, 1, 1), 1, None),  # adds an axis
    ],
)
def test_affine_before_conv(node, constant, pads, changed):
    shape = ",".join(map(str, np.shape(constant)))
    types = f"float[n,4,6,6] x, float[{shape}] c, float[4,2,3,3] w"
    body = f"[a] h = {node} y = Conv<group = 2, pads = {[pads] * 4}>(h, w)"
    model = model_of(body, types, "float[n,4,k,l] y", w=weights(4, 2, 3, 3), c=constant)
    if changed is None:
        assert not fold_forward(model).changed
        return
    report = check(fold_forward, model, IMAGE, **CLOSE)
    assert report.changed if changed is True else changed in report.kept["a"]


def test_half_of_a_gelu_stays_where_runtimes_recognize_it():
    body = """r = Div(x, root) e = Erf(r) p = Add(e, one) q = Mul(x, p) [a] h = Mul(q, half)
    y = Conv(h, w)"""
    types = "float[n,4,6,6] x, float root, float one, float half, float[4,4,3,3] w"
    stored = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    model = model_of(body, types, "float[n,4,4,4] y", w=weights(4, 4, 3, 3), **stored)
    assert_kept(check(fold_forward, model, IMAGE), "a", "Gelu")


@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (4, 4, 6)])  # an axis of length 1; one less
def test_a_multiplication_that_broadcasts_its_input_is_not_folded(shape):
    types = f"float[{','.join(map(str, shape))}] x, float[1,4,1,1] c, float[4,4,3,3] w"
    stored = {"w": weights(4, 4, 3, 3), "c": weights(1, 4, 1, 1)}
    model = model_of("[a] h = Mul(x, c) y = Conv(h, w)", types, "float[n,4,k,l] y", **stored)
    report = check(fold_forward, model, {"x": weights(*shape)})
    assert_kept(report, "a", "broadcast")


# ---- affine --------------------------------------------------------------------------------------

SCALE, ONE = 1 + 0.3 * weights(1, 4, 1, 1, seed=5), np.float32(1.5)


@pytest.mark.parametrize(
    "op", ["Add(h, c)", "Add(c, h)", "Sub(h, c)", "Sub(c, h)", "Mul(h, c)", "Div(h, c)"]
)
@pytest.mark.parametrize("operand", [SCALE, SCALE[0], ONE])
@pytest.mark.parametrize("bias", [False, True])
def test_affine_after_conv(op, operand, bias):
    body = f"h = Conv(x, w{', k' if bias else ''}) y = {op}"
    shape = ",".join(map(str, operand.shape))
    types = f"float[n,4,6,6] x, float[4,4,3,3] w, float{f'[{shape}]' if shape else ''} c"
    stored = {"w": weights(4, 4, 3, 3), "c": operand}
    if bias:
        types += ", float[4] k"
        stored["k"] = weights(4, seed=9)
    model = model_of(body, types, "float[n,4,4,4] y", **stored)
    check(fold_affine, model, IMAGE, **CLOSE)
    assert ops(model) == {"Conv": 1}


@pytest.mark.parametrize("groups", [1, 2])
def test_affine_after_transposed_conv(groups):
    body = f"h = ConvTranspose<group = {groups}>(x, w) [m] g = Mul(h, c) y = Relu(g)"
    width = 4 // groups
    model = model_of(
        body, f"float[n,4,6,6] x, float[4,{width},3,3] w, float[4,1,1] c", "float[n,4,8,8] y",
        w=weights(4, width, 3, 3), c=SCALE[0],
    )  # fmt: skip
    check(fold_affine, model, IMAGE, **CLOSE)
    assert ops(model) == {"ConvTranspose": 1, "Relu": 1}
    assert model.graph[0].outputs[0].name == "g"


@pytest.mark.parametrize("op", ["Add(h, c)", "Mul(c, h)"])
@pytest.mark.parametrize("transposed", [0, 1])
def test_affine_after_gemm(op, transposed):
    body = f"h = Gemm<transB = {transposed}, alpha = 2.0, beta = 0.5>(x, w, k) y = {op}"
    types = f"float[n,4] x, float[{'3,4' if transposed else '4,3'}] w, float[3] k, float[3] c"
    model = model_of(
        body, types, "float[n,3] y",
        w=weights(3, 4) if transposed else weights(4, 3), k=weights(3, seed=1),
        c=weights(3, seed=2),
    )  # fmt: skip
    check(fold_affine, model, {"x": weights(5, 4)}, **CLOSE)
    assert ops(model) == {"Gemm": 1}


@pytest.mark.parametrize(
    ("body", "operand", "reason"),
    [
        ("h = Conv(x, w) [a] y = Mul(h, c)", weights(1, 1, 4, 1), "one value per channel"),
        ("h = Conv(x, w) [a] y = Div(c, h)", weights(1, 4, 1, 1) + 3, "not a constant"),
        ("h = Conv(x, w) [a] y = Div(h, c)", np.zeros((1, 4, 1, 1), np.float32), "by zero"),
        ("h = Conv(x, w) r = Relu(h) [a] z = Mul(h, c) y = Add(r, z)", SCALE, None),
        ("h = Conv(x, w) g = Conv(x, w) z = Add(g, h) [a] y = Mul(z, c)", SCALE, None),
        ("h = Conv(x, w) g = ReduceMax(w) [a] z = Mul(h, c) y = Add(g, z)", SCALE, "shared"),
        ("u = Relu(w) h = Conv(x, u) [a] y = Mul(h, c)", SCALE, "computed"),
        ("h = Conv(x, w) [a] y = Mul(h, c)", np.full((1, 4, 1, 1), 3e38, np.float32), "finite"),
    ],
)
def test_affine_that_stays(body, operand, reason):
    shape = ",".join(map(str, operand.shape))
    types = f"float[n,4,6,6] x, float[4,4,3,3] w, float[{shape}] c"
    model = model_of(body, types, "float[n,4,4,4] y", w=weights(4, 4, 3, 3, scale=2.0), c=operand)
    report = check(fold_affine, model, *([] if reason in ("by zero", "finite") else [IMAGE]))
    assert report.changed == {}
    assert_kept(report, "a", reason)


# ---- Gelu ----------------------------------------------------------------------------------------

ORDERS = {
    "ort": "a = Mul(x, f) y = Mul(a, half)",
    "dynamo": "a = Mul(half, f) y = Mul(x, a)",
    "halved": "a = Mul(x, half) y = Mul(a, f)",
    "divided": "a = Mul(f, x) y = Div(a, two)",
}
GELU_TYPES = "float[n,8] x, float root, float inv, float one, float half, float two"
GELU = {
    "root": np.float32(math.sqrt(2)),
    "inv": np.float32(math.sqrt(0.5)),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "two": np.float32(2),
}
POINTS = {"x": np.linspace(-5, 5, 40, dtype=np.float32).reshape(5, 8)}


def gelu(order, inner="Div(x, root)", opset=20, **stored):
    body = f"i = {inner} e = Erf(i) f = Add(e, one) {ORDERS[order]}"
    return model_of(body, GELU_TYPES, "float[n,8] y", opset=opset, **{**GELU, **stored})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("inner", ["Div(x, root)", "Mul(x, inv)", "Mul(inv, x)"])
def test_gelu(order, inner):
    model = gelu(order, inner)
    check(fuse_gelu, model, POINTS)
    assert ops(model) == {"Gelu": 1}


@pytest.mark.parametrize("order", ORDERS)
def test_gelu_below_opset_20(order):
    model = gelu(order, opset=18)
    before = ops(model)
    assert "opset 20" in next(iter(check(fuse_gelu, model, POINTS).kept.values()))
    assert ops(model) == before
    report = check(lambda m: fuse_gelu(m, order=True), model, POINTS)
    assert bool(report.changed) == (order in ("dynamo", "divided"))
    assert ops(model) == {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2}
    assert not check(lambda m: fuse_gelu(m, order=True), model, POINTS).changed


@pytest.mark.parametrize(
    "stored",
    [
        {"root": np.float32(1.4)},
        {"root": np.float32(1.4142)},
        {"one": np.float32(1.1)},
        {"half": np.float32(0.25)},
    ],
)
def test_what_is_no_gelu(stored):
    model = gelu("ort", **stored)
    assert check(fuse_gelu, model, POINTS).changed == {}
    assert "Gelu" not in ops(model)


def test_a_scalar_that_gets_a_dimension_is_no_gelu():
    types = "float x, float[1] root, float[1] one, float[1] half"
    body = f"i = Div(x, root) e = Erf(i) f = Add(e, one) {ORDERS['ort']}"
    stored = {name: GELU[name].reshape(1) for name in ("root", "one", "half")}
    model = model_of(body, types, "float[1] y", opset=20, **stored)
    assert not check(fuse_gelu, model, {"x": np.array(0.7, np.float32)}).changed


def test_a_gelu_that_is_read_inside_stays():
    body = "i = Div(x, root) e = Erf(i) f = Add(e, one) a = Mul(x, f) y = Mul(a, half) z = Neg(f)"
    model = model_of(body, GELU_TYPES, "float[n,8] y, float[n,8] z", opset=20, **GELU)
    assert check(fuse_gelu, model, POINTS).changed == {}


def test_the_opset_is_lifted_for_a_gelu_only():
    model = gelu("dynamo", opset=18)
    assert not lift_opset(model, limit=19).changed
    report = check(lambda m: lift_opset(m, limit=21), model, POINTS)
    assert report.changed == {"model": "opset 18 -> 20, for 1 Gelu"}
    assert model.opset_imports[""] == 20
    plain = model_of("y = Erf(x)", "float[n] x", "float[n] y")
    assert not lift_opset(plain, limit=21).changed


# ---- LayerNormalization --------------------------------------------------------------------------

SQUARES = {"mul": "q = Mul(d, d)", "pow": "q = Pow(d, two)"}
QUOTIENTS = {"div": "n = Div(d, r)", "reciprocal": "i = Reciprocal(r) n = Mul(d, i)"}
LN = {
    "ax": np.array([-1]),
    "two": np.float32(2),
    "eps": np.float32(1e-5),
    "g": 1 + weights(6),
    "b": weights(6, seed=1),
}
LN_TYPES = "float[n,5,6] x, int64[1] ax, float two, float eps, float[6] g, float[6] b"
ROWS = {"x": weights(3, 5, 6, scale=2.0)}


LN_BODY = """m = ReduceMean(x, ax) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, ax)
    e = Add(v, eps) r = Sqrt(e) n = Div(d, r) s = Mul(n, g) y = Add(s, b)"""


def norm(square="mul", quotient="div", tail="s = Mul(n, g) y = Add(s, b)", opset=18, **stored):
    body = f"""m = ReduceMean(x, ax) d = Sub(x, m) {SQUARES[square]} v = ReduceMean(q, ax)
    e = Add(v, eps) r = Sqrt(e) {QUOTIENTS[quotient]} {tail}"""
    types, y = LN_TYPES, "float[n,5,6] y"
    if np.ndim(stored.get("eps", 0)):
        types, y = types.replace("float eps", "float[1,1,1,1] eps"), "float[1,n,5,6] y"
    return model_of(body, types, y, opset=opset, **{**LN, **stored})


def test_a_layer_norm_in_double_keeps_its_precision():
    """The operator computes in float32, or in double with much cancellation (onnxruntime 1.19)."""
    numbers = {k: v.astype(np.float64) for k, v in LN.items() if v.dtype == np.float32}
    types = LN_TYPES.replace("float", "double")
    model = model_of(LN_BODY, types, "double[n,5,6] y", **{**LN, **numbers})
    assert not check(fuse_layer_norm, model, {"x": ROWS["x"] + np.float64(1e4)}).changed


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
@pytest.mark.parametrize(
    "tail", ["s = Mul(n, g) y = Add(s, b)", "s = Mul(g, n) y = Add(b, s)", "y = Mul(n, g)"]
)
def test_layer_norm(square, quotient, tail):
    model = norm(square, quotient, tail)
    check(fuse_layer_norm, model, ROWS, **CLOSE)
    assert ops(model) == {"LayerNormalization": 1}


@pytest.mark.parametrize(
    ("stored", "tail"),
    [
        ({"ax": np.array([1])}, "s = Mul(n, g) y = Add(s, b)"),
        ({"eps": np.full((1, 1, 1, 1), 1e-5, np.float32)}, "s = Mul(n, g) y = Add(s, b)"),
        ({"two": np.float32(3)}, "s = Mul(n, g) y = Add(s, b)"),
        ({}, "y = Mul(n, n)"),
        ({}, "s = Mul(n, two) y = Add(s, b)"),
        ({}, "s = Mul(n, g) t = Add(s, b) y = Add(t, d)"),
    ],
)
def test_what_is_no_layer_norm(stored, tail):
    model = norm("pow" if "two" in stored else "mul", tail=tail, **stored)
    before = ops(model)
    report = check(fuse_layer_norm, model, ROWS, **CLOSE)
    if "t = Add" in tail:  # there the deviation is read elsewhere, and stays
        assert report.changed != {}
        assert ops(model)["Sub"] == 1
    else:
        assert report.changed == {}
        assert ops(model) == before


# ---- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["h = MatMul(x, w) y = Add(h, k)", "h = MatMul(x, w) y = Add(k, h)"]
)
def test_gemm(body):
    types = "float[n,4] x, float[4,3] w, float[3] k"
    model = model_of(body, types, "float[n,3] y", w=weights(4, 3), k=weights(3))
    check(fuse_gemm, model, {"x": weights(5, 4)})
    assert ops(model) == {"Gemm": 1}


@pytest.mark.parametrize(
    ("body", "x", "k", "reason"),
    [
        ("h = MatMul(x, w) [a] y = Add(h, k)", "n,2,4", (3,), "two matrices"),
        ("h = MatMul(x, w) [a] y = Add(h, k)", "5,4", (5, 1), "not a bias"),
        ("h = MatMul(x, w) [a] y = Add(h, k)", "5,4", (2, 5, 3), "not a bias"),
        ("h = MatMul(x, w) c = Exp(h) [a] y = Add(h, c)", "n,4", (3,), None),
    ],
)
def test_what_is_no_gemm(body, x, k, reason):
    types = f"float[{x}] x, float[4,3] w, float[{','.join(map(str, k))}] k"
    outputs = f"float[{','.join('abc'[: max(len(x.split(',')), len(k))])}] y"
    model = model_of(body, types, outputs, w=weights(4, 3), k=weights(*k))
    shape = [int(d) if d.isdigit() else 5 for d in x.split(",")]
    report = check(fuse_gemm, model, {"x": weights(*shape)})
    assert report.changed == {}
    assert_kept(report, "a", reason)


def test_a_product_of_integers_is_no_gemm():
    """The runtime has no such kernel."""
    integers = np.arange(12).reshape(4, 3)
    types = "int64[n,4] x, int64[4,3] w, int64[3] k"
    body = "h = MatMul(x, w) [a] y = Add(h, k)"
    model = model_of(body, types, "int64[n,3] y", w=integers, k=integers[0])
    report = check(fuse_gemm, model, {"x": integers.reshape(3, 4)})
    assert_kept(report, "a", "integers")


HARD = {
    "HardSwish": [
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "a = Add(three, x) c = Clip(a, zero, six) d = Mul(c, sixth) y = Mul(d, x)",
        "d = HardSigmoid<alpha = 0.16666667, beta = 0.5>(x) y = Mul(x, d)",
    ],
    "HardSigmoid": ["a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)"],
}
HARD_NUMBERS = {"three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6}


def hard(
    body: str, dtype=np.float32, x: str = "[n,8]", y: str = "[n,8]", opset: int = 18, **numbers
) -> ir.Model:
    kind = {"float32": "float", "float64": "double"}.get(np.dtype(dtype).name, "float16")
    given = {name: np.array(v, dtype) for name, v in {**HARD_NUMBERS, **numbers}.items()}
    shapes = {name: f"{list(a.shape)}" if a.ndim else "" for name, a in given.items()}
    types = ", ".join(f"{kind}{shapes[name]} {name}" for name in given)
    return model_of(body, f"{kind}{x} x, {types}", f"{kind}{y} y", opset=opset, **given)


@pytest.mark.parametrize(("op", "body"), [(op, body) for op in HARD for body in HARD[op]])
def test_hard_activations(op, body):
    model = hard(body)
    check(fuse_hardswish, model, POINTS)
    assert ops(model) == {op: 1}


def test_a_hard_activation_in_half_precision():
    model = hard(HARD["HardSwish"][0], np.float16)
    check(fuse_hardswish, model, {"x": POINTS["x"].astype(np.float16)}, rtol=1e-2, atol=1e-2)
    assert ops(model) == {"HardSwish": 1}


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"three": 2.0}, (5, 8)),
        ({"three": 3.0002}, (5, 8)),
        ({"dtype": np.float64}, (5, 8)),  # no kernel in ONNX Runtime
        ({"six": np.full((1, 1, 1), 6.0), "y": "[1,n,8]"}, (5, 8)),
        ({"three": [3.0], "x": "", "y": "[1]"}, ()),
    ],
)
@pytest.mark.parametrize("op", HARD)
def test_what_is_no_hard_activation(op, options, shape):
    model = hard(HARD[op][0], **options)
    before = ops(model)
    if "six" not in options:  # Clip takes scalars only
        check(
            fuse_hardswish,
            model,
            {"x": np.asarray(weights(*shape), options.get("dtype", np.float32))},
        )
    else:
        fuse_hardswish(model)
    assert ops(model) == before


def old_norm():
    """As written for opset 13, whose ReduceMean has its axes as an attribute."""
    body = LN_BODY.replace("ReduceMean(x, ax)", "ReduceMean<axes = [-1]>(x)")
    body = body.replace("ReduceMean(q, ax)", "ReduceMean<axes = [-1]>(q)")
    types = LN_TYPES.replace(", int64[1] ax, float two", "")
    stored = {name: LN[name] for name in ("eps", "g", "b")}
    return model_of(body, types, "float[n,5,6] y", opset=13, **stored)


@pytest.mark.parametrize(
    ("make", "feeds", "op", "since"),
    [
        (old_norm, ROWS, "LayerNormalization", 17),
        (lambda: hard(HARD["HardSwish"][2], opset=13), POINTS, "HardSwish", 14),
    ],
)
def test_the_opset_is_lifted_for_an_operator_that_saves_nodes(make, feeds, op, since):
    assert not lift_opset(make(), limit=since - 1).changed
    model = make()
    report = check(lambda m: lift_opset(m, limit=20), model, feeds)
    assert report.changed == {"model": f"opset 13 -> {since}, for 1 {op}"}
    optimize(model, get_target("onnxruntime"))
    assert ops(model) == {op: 1}


def test_a_residual_sum_is_kept_from_the_fusion():
    body = "[a] s = Add(x, z) y = LayerNormalization(s, g, b)"
    types = "float[n,6] x, float[n,6] z, float[6] g, float[6] b"
    stored = {"g": LN["g"], "b": LN["b"]}
    feeds = {"x": weights(3, 6), "z": weights(3, 6, seed=1)}
    model = model_of(body, types, "float[n,6] y", **stored)
    assert check(split_skip_norm, model, feeds).changed == {"a": "written as Sum"}
    assert ops(model) == {"Sum": 1, "LayerNormalization": 1}
    model = model_of(body + " w = Relu(s)", types, "float[n,6] y, float[n,6] w", **stored)
    assert check(split_skip_norm, model, feeds).changed == {}
    model = model_of(body, types.replace("[n,6] z", "[k,6] z"), "float[n,6] y", **stored)
    assert "differ in shape" in check(split_skip_norm, model, feeds).kept["a"]


def test_unused_dtype_is_kept():
    """float16 models stay float16."""
    model = model_of(
        "h = Conv(x, w) y = Mul(h, c)",
        "float16[n,4,6,6] x, float16[4,4,3,3] w, float16 c",
        "float16[n,4,4,4] y",
        w=weights(4, 4, 3, 3).astype(np.float16),
        c=np.float16(2),
    )
    check(fold_affine, model, {"x": IMAGE["x"].astype(np.float16)}, rtol=1e-2, atol=1e-2)
    assert {v.dtype for v in model.graph.initializers.values()} == {ir.DataType.FLOAT16}
