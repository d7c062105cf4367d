"""Weight gradients of few channels, and padding."""

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cuda.weight_gradients import pad_before_transpose, patches_of_few_channels
from tests.runtime.cuda.support import OLD, graph, inputs, rewritten, run, types, values
from tests.support import batch_for


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
