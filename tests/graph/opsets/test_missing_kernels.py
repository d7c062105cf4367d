from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.api.export_model import export
from ortboost.autodiff.engine import get_engine
from ortboost.graph.io import save_model
from ortboost.graph.normalize import normalize
from ortboost.graph.opsets.missing_kernels import narrow_pools, runnable, sort_for_argmax
from tests.support import run, text_model, weights

OPSETS, IR_VERSION = range(18, 22), 10


@pytest.mark.parametrize(
    ("opset", "node"),
    [
        (25, "r = Swish<alpha = 0.5>(x)"),
        (25, "r = If(q) <then_branch = a () => (float[N,2,3] b) { b = Swish(x) }, "
        "else_branch = c () => (float[N,2,3] d) { d = Relu(x) }>"),
        (22, "n = RandomNormalLike(x) r = Add(x, n)"),
        (22, "n = Bernoulli<seed = 1.0>(h) r = Mul(x, n)"),
        (22, "r = GlobalLpPool(x)"),
    ],
)  # fmt: skip
def test_operators_that_run_at_an_older_opset_only(opset, node, tmp_path):
    """onnxruntime 1.31.1 has no kernel for them at their newest opset."""
    if opset not in (22, *get_engine("portable").opsets):
        pytest.skip("onnx or the runtime is older")
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[N,2,3] x, bool q) => (float[N,?,?] y) {{
          h = Sigmoid(x) {node} y = Relu(r) }}"""
    )
    save_model(model, tmp_path / "m.onnx")
    x, q = np.abs(weights(4, 2, 3)), np.array(True)
    (found,) = run(runnable(tmp_path / "m.onnx", model), {"x": x, "q": q}).values()
    if "Swish" in node:
        alpha = 0.5 if "alpha" in node else 1.0
        np.testing.assert_allclose(found, x / (1 + np.exp(-alpha * x)), rtol=1e-5)
    assert model.opset_imports[""] == opset
    normalize(model, opsets=get_engine("portable").opsets, ir_version=IR_VERSION)
    assert run(model, {"x": x, "q": q})["y"].shape == found.shape


def test_other_files_run_as_they_are(tmp_path):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 24]>
        net (float[N,2,3] x) => (float[N,2,3] y) { y = Swish(x) }"""
    )
    assert runnable(tmp_path / "m.onnx", model) == tmp_path / "m.onnx"
    assert runnable(model, model) is model


@pytest.mark.parametrize(
    ("producer", "number", "kept"), [("pytorch", 0, 2), ("pytorch", 1, 3), ("other", 0, 3)]
)
def test_the_zeros_that_torch_adds_to_a_convolution_are_dropped(producer, number, kept, tmp_path):
    """`nn.Conv3d(bias=False)` with optimize=False: zeros of shape [channels, 2]."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[N,1,2,2,2] x, float[3,1,2,2,2] w) => (float[N,3,1,1,1] y)
        <int64[1] two = {{2}}, float z = {{{number}}}> {{
          s = Shape<start = 0, end = 1>(w) t = Concat<axis = 0>(s, two) c = CastLike(z, x)
          b = Expand(c, t) y = Conv(x, w, b) }}""",
        w=weights(3, 1, 2, 2, 2),
    )
    file = tmp_path / "m.onnx"
    save_model(model, file)
    if kept == 2:  # an export is compared with what runs
        y = run(runnable(file, model), {"x": weights(2, 1, 2, 2, 2)})["y"]
        assert y.shape == (2, 3, 1, 1, 1)
        assert export(file, tmp_path / "out.onnx").parity.ok
    else:
        assert runnable(file, model) == file
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    (conv,) = (node for node in model.graph if node.op_type == "Conv")
    assert len(conv.inputs) == kept


@pytest.mark.parametrize("kind", ["uint8", "int16"])
def test_small_integers_are_compared_as_int32(kind):
    """The identity matrix of torch's dynamo exporter; onnxruntime 1.19 cannot compare bytes."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[40,40] x, int64[40] i, int64[1] axis) => (float[40,40] y) {{
          n = Cast<to = {ir.DataType[kind.upper()].value}>(i)
          rows = Unsqueeze(n, axis) e = Equal(rows, n) w = Cast<to = 1>(e) y = MatMul(x, w) }}""",
        i=np.arange(40),
        axis=np.array([1]),
    )
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    x = weights(40, 40)
    assert np.array_equal(run(model, {"x": x})["y"], x)
    before = len(model.graph)
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    assert len(model.graph) == before


@pytest.mark.parametrize("kind", ["", "int64", "bool"])
def test_an_identity_matrix_of_booleans_runs(kind):
    """`torch.eye(n, dtype=torch.bool)` of the TorchScript exporter, which no onnxruntime runs."""
    cast = f"z = Cast<to = {ir.DataType[kind.upper()].value}>(h)" if kind else "z = Identity(h)"
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,3] w) => (float[N,3] y) <float low = {{-5}}> {{
          h = MatMul(x, w) {cast} e = EyeLike<dtype = 9>(z) y = Where(e, low, h) }}""",
        w=np.eye(3, dtype=np.float32),
    )
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    x = weights(4, 3)
    found = run(model, {"x": x})["y"]
    assert np.array_equal(found, np.where(np.eye(4, 3, dtype=bool), np.float32(-5), x))
    before = len(model.graph)
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    assert len(model.graph) == before


def test_a_cosine_of_float64_runs():
    """RT-DETR computes its positions so; onnxruntime 1.19 has no kernel for it."""
    model = text_model("""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N] x) => (float[N] y) {
          d = Cast<to = 11>(x) c = Cos(d) y = Cast<to = 1>(c) }""")
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    x = np.array([-1000, -0.5, 0, 1, 3, 20000], np.float32)
    np.testing.assert_allclose(run(model, {"x": x})["y"], np.cos(x.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_dilated_convolution_with_automatic_padding_runs(mode):
    """MindSpore's default padding; "Dilation not supported for AutoPadType" of onnxruntime."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,H,7] x, float[1,1,3,2] w) => (float[N,1,H,7] y) {{
          y = Conv<auto_pad = "{mode}", dilations = [2, 3]>(x, w) }}""",
        w=weights(1, 1, 3, 2),
    )
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    x, w = weights(2, 1, 9, 7), model.graph.initializers["w"].const_value.numpy()
    top, left = 2, 1 if mode == "SAME_UPPER" else 2
    wide = np.pad(x, [(0, 0), (0, 0), (top, 4 - top), (left, 3 - left)])
    wanted = sum(
        w[0, 0, i, j] * wide[:, :, 2 * i : 2 * i + 9, 3 * j : 3 * j + 7]
        for i in range(3)
        for j in range(2)
    )
    np.testing.assert_allclose(run(model, {"x": x})["y"], wanted, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        'auto_pad = "SAME_UPPER", strides = [2, 2]',  # the runtime has it without dilation
        'auto_pad = "VALID", dilations = [2, 3]',
        "pads = [1, 1, 1, 1], dilations = [2, 3]",
    ],
)
def test_other_convolutions_keep_their_padding(settings):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,H,7] x, float[1,1,3,2] w) => (float[N,1,a,b] y) {{
          y = Conv<{settings}>(x, w) }}""",
        w=weights(1, 1, 3, 2),
    )
    x = weights(2, 1, 9, 7)
    before = run(model, {"x": x})["y"]
    normalize(model, opsets=OPSETS, ir_version=IR_VERSION)
    np.testing.assert_array_equal(run(model, {"x": x})["y"], before)


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("axis", "keep"), [(1, 0), (-1, 1), (0, 0)])
def test_extrema_of_int64_are_found_by_sorting(operator, axis, keep):
    """CLIP: ``text.argmax(dim=-1)``; of equal numbers, the first one counts."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,5] x) => (int64 y) {{ y = {operator}<axis = {axis}, keepdims = {keep}>(x) }}"""
    )
    model.graph.outputs[0].shape = None
    assert sort_for_argmax(model).modified
    x = np.random.default_rng(0).integers(0, 3, (4, 5)) + 2**60
    wanted = (np.argmax if operator == "ArgMax" else np.argmin)(x, axis=axis, keepdims=bool(keep))
    assert np.array_equal(run(model, {"x": x})["y"], wanted)


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_pool_over_more_axes_than_it_pools_runs(pool):
    """As Keras on JAX writes MaxPooling2D of [N, H, W, C] through jax2onnx."""
    header = '<ir_version: 10, opset_import: ["" : 18]>'
    wide = text_model(
        f"""{header} net (float[1,1,N,6,8,3] x) => (float[a,b,c,d,e,f] y) {{
          y = {pool}<kernel_shape = [1, 2, 3, 1], strides = [1, 2, 1, 1],
                     pads = [0, 1, 0, 0, 0, 0, 1, 0]>(x) }}"""
    )
    flat = text_model(
        f"""{header} net (float[N,3,6,8] x) => (float[a,b,c,d] y) {{
          y = {pool}<kernel_shape = [2, 3], strides = [2, 1], pads = [1, 0, 0, 1]>(x) }}"""
    )
    assert narrow_pools(wide).modified
    assert not narrow_pools(wide).modified
    x = weights(5, 6, 8, 3)
    y = run(flat, {"x": x.transpose(0, 3, 1, 2)})["y"].transpose(0, 2, 3, 1)
    assert np.array_equal(run(wide, {"x": x[None, None]})["y"], y[None, None])


@pytest.mark.parametrize("settings", ['auto_pad = "SAME_UPPER"', "ceil_mode = 1"])
def test_a_pool_whose_padding_depends_on_the_lengths_stays(settings):
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[1,1,N,6,8,3] x) => (float[a,b,c,d,e,f] y) {{
          y = MaxPool<kernel_shape = [1, 2, 3, 1], {settings}>(x) }}"""
    )
    assert not narrow_pools(model).modified
