"""Forms that are fast on a GPU: what they become, what they compute, where they must not fire."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx_ir.passes import common

from ortboost.graph.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cuda.batch_norm import factors_by_channel, statistics_by_image
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.gelu import fewer_passes
from ortboost.runtime.cuda.kernels import load_kernels
from ortboost.runtime.cuda.reductions import reductions_in_two_steps
from ortboost.runtime.cuda.weight_gradients import pad_before_transpose, patches_of_few_channels
from ortboost.runtime.peepholes import emulated_for
from ortboost.runtime.session import open_session
from tests.support import batch_for, model_path

NEWEST = load_kernels("cuda=1.31.1")
OLD = onnxruntime.__version__.startswith("1.19")
# On CUDA, both releases sum squares of differences (Welford).
needs_accurate = pytest.mark.skipif(
    OLD, reason="its LayerNormalization on the CPU subtracts the square of the mean"
)


def graph(text, opset=18, **stored):
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}]> g {text}')
    for name, array in stored.items():
        value = next(v for v in model.graph.inputs if v.name == name)
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(value)
    for value in model.graph.outputs:
        if not value.shape:  # not written in the text: not a scalar
            value.shape = None
    infer_shapes(model)
    return model


def run(model, **feeds):
    return open_session(emulated_for(model, "cpu"), device="cpu", threads=1).run(None, feeds)


def types(model):
    return [node.op_type for node in model.graph if node.op_type not in ("Constant", "Reshape")]


def rewritten(model, rewrite):
    """A rewritten copy, checked; a second run finds nothing."""
    changed = model.clone()
    assert rewrite(changed)
    common.RemoveUnusedNodesPass()(changed)
    assert not rewrite(changed)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    return changed


def values(*shape, seed=0, mean=0.0):
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(np.float32)


# ---- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0, 2, 3], [3, 0], [0, -1, -2], [0, 1, 3]])
def test_a_reduction_takes_the_last_axes_first(op_type, keepdims, axes):
    text = (
        f"(float[n,3,4,5] x, int64[k] a) => (float y) {{ y = {op_type}<keepdims={keepdims}>(x,a) }}"
    )
    model = graph(text.replace("int64[k]", f"int64[{len(axes)}]"), a=np.array(axes))
    changed = rewritten(model, reductions_in_two_steps)
    assert types(changed) == [op_type, op_type]
    x = values(6, 3, 4, 5)
    before, after = run(model, x=x)[0], run(changed, x=x)[0]
    assert before.shape == after.shape
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_sum_of_16_bit_values_is_rounded_once():
    text = "(float16[n,2,64,64] x, int64[3] a) => (float16 y) { y = ReduceSum<keepdims=0>(x, a) }"
    changed = rewritten(graph(text, a=np.array([0, 2, 3])), reductions_in_two_steps)
    assert types(changed) == ["Cast", "ReduceSum", "ReduceSum", "Cast"]
    x = np.full((8, 2, 64, 64), 20.0, np.float16)  # 81,920 for each image: no float16
    x[4:] = -20.0
    assert run(changed, x=x)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("axes", [[2, 3], [0], [0, 1], [1], [0, 2], [1, 3], [0, 1, 2, 3]])
def test_other_reductions_stay(axes):
    text = f"(float[n,3,4,5] x, int64[{len(axes)}] a) => (float y) {{ y = ReduceSum(x, a) }}"
    assert not reductions_in_two_steps(graph(text, a=np.array(axes)))


def test_axes_that_are_computed_and_types_that_are_not_float_stay():
    assert not reductions_in_two_steps(
        graph("(float[n,3,4,5] x, int64[3] a) => (float y) { y = ReduceSum(x, a) }")
    )
    text = "(int64[n,3,4] x, int64[2] a) => (int64 y) { y = ReduceSum(x, a) }"
    assert not reductions_in_two_steps(graph(text, a=np.array([0, 2])))


# ---- batch normalization ------------------------------------------------------------------------

BATCH_NORM = """(SHORT[n,3,12,16] h, float[3] s, float[3] b) => (float[n,3,12,16] y, float[3] var) {
    CAST
    axes = Constant<value_ints = [0, 2, 3]>()
    m = ReduceMean<keepdims = 1>(x, axes)
    c = Sub(x, m)
    sq = Mul(c, c)
    var = ReduceMean<keepdims = 0>(sq, axes)
    flat = Constant<value_ints = [-1]>()
    mean = Reshape(m, flat)
    y = BatchNormalization(x, s, b, mean, var)
}"""


@pytest.mark.parametrize(
    ("short", "cast"), [("float", "x = Identity(h)"), ("float16", "x = Cast<to = 1>(h)")]
)
@pytest.mark.parametrize("mean", [0.0, pytest.param(300.0, marks=needs_accurate)])
def test_statistics_of_each_image_make_those_of_the_batch(short, cast, mean):
    model = graph(BATCH_NORM.replace("SHORT", short).replace("CAST", cast))
    changed = rewritten(model, statistics_by_image)
    assert "LayerNormalization" in types(changed)
    x = values(5, 3, 12, 16, mean=mean) * np.array([1, 10, 0.0]).reshape(1, 3, 1, 1)
    x = x.astype(short.replace("float", "float32") if short == "float" else short)
    feeds = {"h": x, "s": values(3, seed=1), "b": values(3, seed=2)}
    wide = x.astype(np.float64)
    exact = wide.var((0, 2, 3))
    after = run(changed, **feeds)
    np.testing.assert_allclose(after[1], exact, rtol=2e-4, atol=1e-7)
    assert after[1][2] < 1e-12  # a constant channel
    exact_y = (wide - wide.mean((0, 2, 3), keepdims=True)) / np.sqrt(exact + 1e-5)[:, None, None]
    exact_y = exact_y * feeds["s"][:, None, None] + feeds["b"][:, None, None]
    np.testing.assert_allclose(after[0], exact_y, rtol=1e-3, atol=2e-3)


def test_statistics_of_small_images_stay():
    model = graph(
        BATCH_NORM.replace("12,16", "7,7")
        .replace("SHORT", "float")
        .replace("CAST", "x = Identity(h)")
    )
    changed = model.clone()
    statistics_by_image(changed)
    assert "LayerNormalization" not in types(changed)


def test_a_nonfinite_image_is_seen():
    model = graph(BATCH_NORM.replace("SHORT", "float").replace("CAST", "x = Identity(h)"))
    changed = rewritten(model, statistics_by_image)
    x = values(2, 3, 12, 16)
    x[1, 0, 0, 0] = np.inf
    y, variance = run(changed, h=x, s=np.ones(3, np.float32), b=np.zeros(3, np.float32))
    assert not np.isfinite(variance[0])
    assert not np.isfinite(y[:, 0]).any()
    assert np.isfinite(y[:, 1:]).all()


def test_other_axes_and_older_opsets_stay():
    """With as many images as channels, the statistics of another axis have the same shape."""
    text = BATCH_NORM.replace("SHORT[n,3", "float[3,3").replace("CAST", "x = Identity(h)")
    text = text.replace("float[n,3", "float[3,3")
    assert statistics_by_image(graph(text))
    assert not statistics_by_image(graph(text.replace("[0, 2, 3]", "[1, 2, 3]")))
    older = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    assert not statistics_by_image(older)


SCALED = """(float[n,3,H] x, float[3] s, float[3] zero, float[3] v) => (float[n,3,H] y) {
    y = BatchNormalization<epsilon = 0.125>(x, s, zero, zero, v) }"""


def test_a_batch_normalization_that_only_scales_is_a_product():
    model = graph(SCALED, zero=np.zeros(3, np.float32))
    changed = rewritten(model, factors_by_channel)
    assert types(changed) == ["Add", "Sqrt", "Div", "Mul"]
    feeds = {"x": values(4, 3, 5), "s": values(3, seed=1), "v": np.array([0, 1, 2], np.float32)}
    np.testing.assert_allclose(run(changed, **feeds)[0], run(model, **feeds)[0], rtol=1e-5)


def test_one_that_shifts_stays():
    assert not factors_by_channel(graph(SCALED, zero=np.array([0, 0, 1], np.float32)))
    assert not factors_by_channel(graph(SCALED))


def test_a_vector_has_no_channels():
    text = SCALED.replace("float[n,3,H]", "float[n]").replace("[3]", "[1]")
    assert not factors_by_channel(graph(text, zero=np.zeros(1, np.float32)))


# ---- weight gradients ---------------------------------------------------------------------------


def first_layer(channels, kernel, stride, pads, side, dilation=1):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, channels, kernel, kernel)).astype(np.float32)
    text = f"""(float[n,{channels},{side},{side}] x, float[4,{channels},{kernel},{kernel}] w,
        float[4] f, float[4] one) => (float[n,3] y) {{
        c = Conv<strides = [{stride},{stride}], pads = {[pads] * 4},
                 dilations = [{dilation},{dilation}]>(x, w)
        r = Relu(c) p = GlobalAveragePool(r) q = Flatten(p)
        k = Constant<value_ints = [1, 1]>() y0 = Mul(q, f) y = MatMul(y0, h) }}"""
    text = text.replace("float[4] one", "float[4,3] h")
    return graph(text, w=weight, f=values(4, seed=3), h=values(4, 3, seed=4))


@pytest.mark.parametrize("layer", [(3, 7, 2, 3, 32, 1), (1, 7, 1, 3, 12, 1), (3, 5, 2, 0, 18, 2)])
def test_weight_gradients_of_few_channels(layer):
    program = build_program(first_layer(*layer), ProgramConfig(engine="portable"))
    step = program.step.clone()
    infer_shapes(step)
    before = sum(node.op_type == "Conv" for node in step.graph)
    changed = rewritten(step, patches_of_few_channels)
    convs = [node for node in changed.graph if node.op_type == "Conv"]
    assert len(convs) == before
    feeds = {**program.initial, **batch_for(program, 4), "learning_rate": np.float32(0.1)}
    for one, other in zip(
        run(step, **inputs(step, feeds)), run(changed, **inputs(changed, feeds)), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
    if OLD:
        return  # it runs no product of an empty batch
    empty = {**feeds, **batch_for(program, 0)}
    weight = [v.name for v in changed.graph.outputs].index("ortboost/next/w")
    assert np.isfinite(run(changed, **inputs(changed, empty))[weight]).all()


def test_weight_gradients_are_summed_over_the_batch_before_they_are_rounded():
    text = """(float16[n,2,16,16] x, float16[n,3,16,16] g) => (float16[3,2,7,7] w) {
        a = Transpose<perm = [1,0,2,3]>(x) b = Transpose<perm = [1,0,2,3]>(g)
        c = Conv<pads = [3,3,3,3]>(a, b) w = Transpose<perm = [1,0,2,3]>(c) }"""
    changed = rewritten(graph(text), patches_of_few_channels)
    x, g = (np.full((2, n, 16, 16), v, np.float16) for n, v in ((2, 20), (3, 20)))
    g[1] = -g[
        1
    ]  # 102,400 for the first image, which is no float16, and as much less for the second
    assert not np.abs(run(changed, x=x, g=g)[0]).any()


def test_only_the_guard_of_an_empty_batch_is_seen_through():
    text = """(float[n,3,12,12] x, float[n,4,12,12] g, bool c) => (float[4,3,7,7] w) {
        a = Transpose<perm = [1,0,2,3]>(x) b = Transpose<perm = [1,0,2,3]>(g)
        k = Conv<pads = [3,3,3,3]>(a, b) z = Constant<value_float = 0.0>()
        s = Where(c, k, z) w = Transpose<perm = [1,0,2,3]>(s) }"""
    assert not patches_of_few_channels(graph(text))
    size = "n = Size(x) o = Constant<value_int = 0>() c = Greater(n, o) "
    text = text.replace(", bool c", "").replace("a = Tr", size + "a = Tr")
    assert patches_of_few_channels(graph(text))


def inputs(model, feeds):
    names = {value.name for value in model.graph.inputs}
    return {name: np.asarray(array) for name, array in feeds.items() if name in names}


def test_images_of_any_size_keep_their_convolution():
    model = first_layer(3, 7, 2, 3, 32)
    for value in model.graph.inputs:
        if value.name == "x":
            value.shape = ir.Shape(["n", 3, "h", "w"])
    program = build_program(model, ProgramConfig(engine="portable"))
    step = program.step.clone()
    infer_shapes(step)
    assert not patches_of_few_channels(step)


PADDED = """(float[n,3,4,5] x) => (float[n,a,b,c] y) {
    t = Transpose<perm = PERM>(x) p = Constant<value_ints = PADS>() y = Pad(t, p) }"""


def test_an_image_is_padded_before_its_channels_move():
    text = PADDED.replace("PERM", "[0,2,3,1]").replace("PADS", "[0,1,2,0,0,3,4,0]")
    model = graph(text)
    changed = rewritten(model, pad_before_transpose)
    assert types(changed) == ["Pad", "Transpose"]
    x = values(2, 3, 4, 5)
    np.testing.assert_array_equal(run(changed, x=x)[0], run(model, x=x)[0])


@pytest.mark.parametrize(
    ("perm", "pads"),
    [
        ("[0,2,3,1]", "[0,1,2,1,0,3,4,0]"),  # channels, too
        ("[2,0,3,1]", "[0,1,0,0,0,0,0,0]"),  # the batch
    ],
)
def test_padding_of_other_axes_stays(perm, pads):
    assert not pad_before_transpose(graph(PADDED.replace("PERM", perm).replace("PADS", pads)))


# ---- Gelu ---------------------------------------------------------------------------------------

GELUS = {
    "torchscript": "d = Div(c, root) e = Erf(d) a = Add(e, one) m = Mul(c, a) y = Mul(m, half)",
    "dynamo": "d = Mul(c, iroot) e = Erf(d) a = Add(e, one) b = Mul(a, half) y = Mul(c, b)",
    "halved": "h = Mul(c, half) d = Div(c, root) e = Erf(d) a = Add(e, one) y = Mul(h, a)",
}


@pytest.mark.parametrize("compute", ["fp32", "fp16"])
@pytest.mark.parametrize("form", GELUS)
def test_gelu_and_its_gradient(form, compute):
    text = f"""(float[n,5] x, float[5,8] w, float[8,3] v) => (float[n,3] z) {{
        root = Constant<value_float = 1.4142135>() iroot = Constant<value_float = 0.70710678>()
        one = Constant<value_float = 1.0>() half = Constant<value_float = 0.5>()
        c = MatMul(x, w) {GELUS[form]} z = MatMul(y, v) }}"""
    model = graph(text, w=values(5, 8), v=values(8, 3, seed=1))
    config = {"engine": "portable"} | (
        {} if compute == "fp32" else {"precision": {"compute": compute}}
    )
    program = build_program(model, ProgramConfig.from_dict(config))
    step = program.step.clone()
    infer_shapes(step)
    changed = step.clone()
    assert fewer_passes(changed)
    common.RemoveUnusedNodesPass()(changed)
    found = [node.op_type for node in changed.graph]
    assert found.count("Gelu") == 1
    bells = [node for node in changed.graph if node.op_type == "Exp"]
    assert "Sub" in {node.inputs[0].producer().op_type for node in bells}
    gelu = next(node for node in changed.graph if node.op_type == "Gelu")
    erf = next(node for node in changed.graph if node.op_type == "Erf")
    order = list(changed.graph)
    assert order.index(erf) > order.index(gelu) + 1  # where the gradient reads it
    feeds = {**program.initial, **batch_for(program, 6), "learning_rate": np.float32(1.0)}
    # The CPU provider has the Gelu of com.microsoft in float32 only: that of the standard is equal.
    changed.opset_imports[""] = 20
    gelu.domain = ""
    tolerance = {"fp32": 1e-5, "fp16": 1e-2}[compute]
    for one, other in zip(
        run(step, **inputs(step, feeds)), run(changed, **inputs(changed, feeds)), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


def test_what_a_branch_reads_is_not_moved_behind_it():
    text = """(float[n,5] c, float[n,5] g, bool p) => (float[n,5] y, float[n,5] q, float[n,5] z) {
        root = Constant<value_float = 1.4142135>() one = Constant<value_float = 1.0>()
        half = Constant<value_float = 0.5>()
        d = Div(c, root) e = Erf(d) a = Add(e, one) m = Mul(c, a) y = Mul(m, half)
        q = If(p) <then_branch = t () => (float[n,5] r) { r = Neg(a) },
                   else_branch = f () => (float[n,5] r2) { r2 = Identity(c) }>
        z = Mul(g, a) }"""
    changed = rewritten(graph(text), fewer_passes)
    assert [n.op_type for n in changed.graph if n.op_type in ("If", "Add")] == ["Add", "If"]


def test_other_bells_stay():
    text = """(float[n] u, float[n] d) => (float[n] y) {
        k = Constant<value_float = 1.1>() r = Constant<value_float = 1.4142135>()
        s = Mul(d, d) m = Neg(s) e = Exp(m) f = Mul(e, k) t = Mul(u, f) y = Div(t, r) }"""
    assert not fewer_passes(graph(text))


# ---- together -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "mobilenet_like"])
def test_a_whole_step_computes_the_same(name):
    program = build_program(model_path(name), ProgramConfig(engine="portable"))
    changed = for_cuda(program.step, NEWEST)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    feeds = {**program.initial, **batch_for(program, 8), "learning_rate": np.float32(0.01)}
    names = [value.name for value in changed.graph.outputs]
    before = dict(zip(names, run(program.step, **inputs(program.step, feeds)), strict=True))
    after = dict(zip(names, run(changed, **inputs(changed, feeds)), strict=True))
    for key, array in before.items():
        np.testing.assert_allclose(after[key], array, rtol=1e-3, atol=1e-4, err_msg=key)
