from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ConfigError
from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.origins import missing_parameters
from ortboost.graph.weights.parameters import find_parameters, named_parameters
from ortboost.graph.weights.store_weights import store_weights
from ortboost.graph.weights.tie_copies import tie_copies
from tests.support import (
    GOLDEN,
    NAMES,
    golden,
    model_path,
    small_convnet,
    text_model,
    weights,
)


def normalized(path) -> ir.Model:
    model = load_model(path)
    normalize(model, opsets=range(18, 22), ir_version=10)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_trainable_parameters_are_those_of_the_module(name):
    found = find_parameters(normalized(model_path(name)))
    expected = list(golden(name)["param_names"])
    trainable = [parameter.name for parameter in found.values() if parameter.trainable]
    assert sorted(trainable) == sorted(expected)
    sizes = {"mlp": 2410, "lenet5": 39742, "resnet20": 272474, "resnet_bottleneck": 41434}
    sizes |= {"mobilenet_like": 10114, "transformer_tiny": 85130}
    assert sum(found[n].size for n in trainable) == sizes[name]


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_are_buffers(name):
    found = find_parameters(normalized(model_path(name)))
    buffers = [p for p in found.values() if p.role.startswith("running_")]
    expected = {"running_mean": [], "running_var": []}
    for buffer in golden(name).get("buffer_names", []):
        expected[str(buffer).rpartition(".")[2]].append(str(buffer))
    assert {p.name for p in buffers} <= {n for names in expected.values() for n in names}
    if name in ("resnet_bottleneck",):  # no tensors are shared there
        assert len(buffers) == sum(map(len, expected.values()))
    assert not any(p.trainable for p in buffers)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet_bottleneck", "mobilenet_like"])
def test_order_is_that_of_first_use(name):
    model = normalized(model_path(name))
    order = [n for n, p in find_parameters(model).items() if p.trainable]
    used: list[str] = []
    for node in model.graph:
        used += [v.name for v in node.inputs if v is not None and v.name not in used]
    assert order == [n for n in used if n in order]


@pytest.mark.parametrize("export", ["convbn_torchscript", "convbn_opset9", "convbn_dynamo"])
def test_both_exporters_and_an_old_opset_agree(export):
    found = find_parameters(normalized(GOLDEN / "exports" / f"{export}.onnx"))
    roles = {n: p.role for n, p in found.items() if p.role != "constant"}
    assert roles["conv1.weight"] == "weight"
    assert roles["conv1.bias"] == "bias"
    assert sum(role == "norm_scale" for role in roles.values()) == 2
    assert sum(role == "norm_shift" for role in roles.values()) == 2
    assert all(found[n].reason for n in found)


def one(body: str, inputs: str, output: str = "float[batch,4] y", **initializers) -> dict[str, str]:
    model = text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, {inputs}) =>'
        f" ({output}) {{ {body} }}",
        **initializers,
    )
    return {name: p.role for name, p in find_parameters(model).items()}


W44, V4, S = weights(4, 4), weights(4), np.float32(3)


@pytest.mark.parametrize(
    ("body", "value", "role"),
    [
        ("y = MatMul(x, p)", W44, "weight"),
        ("t = Transpose<perm = [1, 0]>(p) y = MatMul(x, t)", W44, "weight"),
        ("t = Cast<to = 1>(p) u = Identity(t) y = MatMul(x, u)", W44, "weight"),
        ("t = Transpose<perm = [1, 0]>(p) u = Cast<to = 1>(t) y = Gemm(x, u)", W44, "weight"),
        ("y = Add(x, p)", V4, "bias"),
        ("y = Add(x, p)", weights(1, 4), "weight"),
        ("y = Mul(x, p)", V4, "weight"),
        ("y = PRelu(x, p)", np.float32([0.25]), "weight"),
        ("y = LayerNormalization(x, p)", V4, "norm_scale"),
        ("y = Add(x, p)", np.array([0, -np.inf, 0, np.nan], np.float32), "constant"),
        ("y = Mul(x, p)", S, "constant"),
        ("y = Add(x, p)", np.float32([3]), "constant"),
        ("y = Pow(x, p)", V4, "constant"),
        ("y = Clip(x, p)", S, "constant"),
        (
            "i = ArgMax<axis = 1, keepdims = 0>(x) y = SoftmaxCrossEntropyLoss(x, i, p)",
            V4,
            "constant",
        ),
        (
            "i = ArgMax<axis = 1, keepdims = 0>(x) y = NegativeLogLikelihoodLoss(x, i, p)",
            V4,
            "constant",
        ),
        ("y = Relu(x)", V4, "constant"),
    ],
)
def test_roles_follow_from_use(body, value, role):
    shape = ",".join(map(str, np.shape(value)))
    assert one(body, f"float[{shape}] p" if shape else "float p", p=value) == {"p": role}


def test_the_bias_of_a_layer_of_stored_data_is_a_bias():
    """As that of the projection of relative positions in DeBERTa and Swin-V2."""
    roles = one(
        "q = MatMul(t, w) s = Add(q, p) y = MatMul(x, s)",
        "float[4,4] t, float[4,4] w, float[4] p",
        t=weights(4, 4, seed=1),
        w=W44,
        p=V4,
    )
    assert roles == {"t": "weight", "w": "weight", "p": "bias"}


def test_integers_are_no_parameters():
    assert one("y = Gather(x, p)", "int64[2] p", "float[m,4] y", p=np.array([0, 1])) == {}


def test_a_norm_scale_is_recognized_whatever_its_name():
    roles = {n: p.role for n, p in find_parameters(small_convnet()).items()}
    assert roles == {
        "cw": "weight",
        "s": "norm_scale",
        "b": "norm_shift",
        "mean": "running_mean",
        "var": "running_var",
        "fw": "weight",
        "fb": "bias",
    }


def test_tied_weights_are_one_parameter():
    roles = one(
        "h = MatMul(x, p) t = Transpose<perm = [1, 0]>(p) y = MatMul(h, t)", "float[4,4] p", p=W44
    )
    assert roles == {"p": "weight"}


PREPROCESSING = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3,8,8] x, float[1,3,1,1] mean, float[1,3,1,1] deviation, float[2,3,1,1] w,
     float[1,2,1,1] shift, float[1,2,1,1] divisor) => (float[N,2,8,8] y) {
  a = Sub(x, mean)  b = Div(a, deviation)  c = Conv(b, w)  d = Sub(c, shift)  y = Div(d, divisor)
}"""


@pytest.mark.parametrize(("producer", "trained"), [("skl2onnx", ["w"]), ("", ["s", "t", "w"])])
def test_the_scaler_of_a_scikit_learn_pipeline_is_no_weight(producer, trained):
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[N,4] x, float[4] s, float[4] t, float[4,2] w) => (float[N,2] y) {{
          a = Mul(x, s) b = Add(a, t) y = MatMul(b, w) }}""",
        s=weights(4, seed=1),
        t=weights(4, seed=2),
        w=weights(4, 2),
    )
    found = find_parameters(model)
    assert sorted(name for name, p in found.items() if p.trainable) == trained
    assert bool(found["s"].doubt) is (producer == "skl2onnx")


def test_mean_and_deviation_of_the_raw_input_are_no_weights():
    shapes = {"mean": 3, "deviation": 3, "shift": 2, "divisor": 2}
    values = {name: np.ones((1, n, 1, 1), np.float32) for name, n in shapes.items()}
    model = text_model(PREPROCESSING, w=np.ones((2, 3, 1, 1), np.float32), **values)
    roles = {name: p.role for name, p in find_parameters(model).items()}
    assert roles == {
        "mean": "constant",
        "deviation": "constant",
        "w": "weight",
        "shift": "weight",
        "divisor": "weight",
    }


@pytest.mark.parametrize("mean", ["float[1,3,1,1] mean", "float[1,3,1,1] mean = {1, 2, 3}"])
def test_the_inverse_of_a_deviation_normalizes_the_raw_input(mean):
    """As TensorFlow folds the division of Keras's Normalization, whose mean may stay an input."""
    model = text_model(
        f"""<ir_version: 8, producer_name: "tf2onnx", opset_import: ["" : 18]>
        net (float[N,3,8,8] x, {mean.split(" =")[0]}, float[1,3,1,1] r, float[2,3,1,1] w,
             float[1,2,1,1] gain) => (float[N,2,8,8] y) {{
          a = Sub(x, mean) b = Mul(a, r) c = Conv(b, w) d = Sub(c, c) e = Mul(d, gain)
          y = Relu(e) }}""",
        r=weights(1, 3, 1, 1, seed=1),
        w=weights(2, 3, 1, 1, seed=2),
        gain=weights(1, 2, 1, 1, seed=3),
        **({"mean": weights(1, 3, 1, 1)} if "=" in mean else {}),
    )
    found = find_parameters(model)
    assert {name for name, p in found.items() if p.trainable} == {"w", "gain"}
    assert "normalizes the raw input" in found["r"].doubt


@pytest.mark.parametrize(
    ("producer", "name", "why"),
    [
        ("tf2onnx", "net/bn/batchnorm/Rsqrt:0", "running variance"),
        ("skl2onnx", "transform_matrix", "PCA"),
        ("", "transform_matrix", ""),
    ],
)
def test_what_an_exporter_names_after_what_was_fitted_is_not_trained(producer, name, why):
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4,4] g) => (y) {{
          a = MatMul(x, w) y = MatMul(a, g) }}""",
        w=W44,
        g=W44 + 1,
    )
    tensor = model.graph.initializers.pop("g")
    tensor.name = name
    model.graph.register_initializer(tensor)
    found = find_parameters(model)[name]
    assert found.trainable is not bool(why)
    assert why in found.doubt


CUT = """<ir_version: 8, opset_import: ["" : 18]>
net (float[5,N,3] x, float[12,3] w, float[12,4] r, float[12] b, float[12] c, float[1,1,4] h0,
     float[7,4] table, int64[1] i0, int64[1] i4, int64[1] i8, int64[1] i12) => (float[k,N,4] y) {
  w1 = Slice(w, i0, i4) w2 = Slice(w, i4, i12) ws = Concat<axis = 0>(w2, w1) wu = Unsqueeze(ws, i0)
  r1, r2 = Split<axis = 0, num_outputs = 2>(r) rs = Concat<axis = 0>(r2, r1) ru = Unsqueeze(rs, i0)
  bc = Concat<axis = 0>(b, c) bu = Unsqueeze(bc, i0)
  first = Slice(h0, i0, i4) h = Identity(first)
  [gru] all, last = GRU<hidden_size = 4>(x, wu, ru, bu)
  part = Slice(table, i0, i4) y = Mul(last, part)
}"""


def test_weights_of_a_recurrent_layer_that_were_cut_up():
    """As written by both torch exporters, and a sliced table, like position embeddings."""
    stored = {"w": (12, 3), "r": (12, 4), "b": (12,), "c": (12,), "h0": (1, 1, 4), "table": (7, 4)}
    model = text_model(
        CUT,
        **{name: weights(*shape) for name, shape in stored.items()},
        **{f"i{k}": np.array([k]) for k in (0, 4, 8, 12)},
    )
    found = find_parameters(model)
    assert {name: found[name].role for name in stored} == {
        "w": "weight",
        "r": "weight",
        "b": "bias",
        "c": "bias",
        "h0": "constant",
        "table": "weight",
    }
    assert found["w"].reason == "input 1 of GRU 'gru'"


MOVED = [  # the path from a table to an Add, and the shape of the table
    ("t = Slice(p, i0, i1)", (3, 4)),
    ("u = Unsqueeze(p, i0) t = Squeeze(u)", (1, 4)),
    ("t = GatherND(p, index)", (3, 4)),
    ("t = Gather(p, i0)", (3, 4)),
    ("q = Reshape(p, rows) t = Gather(q, i0)", (12,)),
    ("t = Transpose(p)", (4, 1)),
    ("t = Expand(p, rows)", (1, 4)),
    ("t = Tile(p, twice)", (1, 2)),
    ("t = Pad(p, pads)", (1, 2)),
    ("a, b = Split<axis = 0, num_outputs = 2>(p) t = Concat<axis = 0>(a, b)", (2, 4)),
    ("t = Cast<to = 1>(p)", (1, 4)),
    ("t = Flatten(p)", (1, 4)),
    ("t = Exp(p)", (1, 4)),
]


@pytest.mark.parametrize(("moves", "shape"), MOVED)
def test_weights_that_are_moved_about_are_weights(moves, shape):
    shape_of = ",".join(map(str, shape))
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[{shape_of}] p, int64[1] i0, int64[1] i1, int64[2] rows,
             int64[2] twice, int64[4] pads, int64[1,1] index) => (float[m,4] y) {{
          {moves} y = Add(x, t) }}""",
        p=weights(*shape),
        i0=np.array([0]),
        i1=np.array([1]),
        rows=np.array([3, 4]),
        twice=np.array([1, 2]),
        pads=np.array([0, 1, 0, 1]),
        index=np.array([[1]]),
    )
    found = find_parameters(model)["p"]
    assert (found.trainable, found.doubt) == (True, "")


def torch_model(
    body: str,
    kinds: dict[str, str] | None = None,
    folded: dict[str, tuple[np.ndarray, list[str]]] | None = None,
    **stored,
) -> ir.Model:
    """A file of torch: from the dynamo exporter if kinds are given, else from TorchScript.

    Folded tensors come with the names that the exporter lists as their sources.
    """
    stored |= {name: array for name, (array, _) in (folded or {}).items()}
    declared = ", ".join(f"float[{','.join(map(str, np.shape(v)))}] {n}" for n, v in stored.items())
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, {declared}) => (y) {{ {body} }}""",
        **stored,
    )
    for name, (_, listed) in (folded or {}).items():
        key = "pkg.onnxscript.optimizer.folded_from"
        model.graph.initializers[name].metadata_props[key] = str(listed)
    for name in (kinds or {}).keys() & stored:
        kind = (kinds or {})[name]
        key = "pkg.torch.export.graph_signature.InputSpec.kind"
        model.graph.initializers[name].metadata_props[key] = kind
    if kinds:
        signature = "\n".join(f"p_{n}: {kind} target='{n}'" for n, kind in kinds.items())
        key = "pkg.torch.export.ExportedProgram.graph_signature"
        model.graph.metadata_props[key] = signature
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    return model


def told(model: ir.Model, name: str) -> tuple[bool, bool]:
    """Whether a tensor is trained, and whether that is in doubt."""
    found = find_parameters(model)[name]
    return found.trainable, bool(found.doubt)


def test_what_the_dynamo_exporter_says_decides():
    """The same use twice: a parameter and a buffer; single numbers too."""
    body = "a = MatMul(x, w) b = MatMul(a, k) c = Mul(b, temperature) y = Mul(c, scale)"
    kinds = {
        "w": "PARAMETER",
        "k": "BUFFER",
        "temperature": "PARAMETER",
        "scale": "CONSTANT_TENSOR",
    }
    stored = {"w": W44, "k": W44, "temperature": S, "scale": np.float32(2)}
    model = torch_model(body, kinds, **stored)
    assert {n: told(model, n) for n in kinds} == {
        "w": (True, False),
        "k": (False, False),
        "temperature": (True, False),
        "scale": (False, False),
    }


def test_the_bias_of_one_output_is_a_bias():
    """The exporter says that it is a parameter; by its use alone it would be a number."""
    kinds = {"w": "PARAMETER", "b": "PARAMETER"}
    stored = {"w": weights(4, 1), "b": weights(1)}
    model = torch_model("q = MatMul(x, w) y = Add(b, q)", kinds, **stored)
    assert {name: p.role for name, p in find_parameters(model).items()} == {
        "w": "weight",
        "b": "bias",
    }


def test_names_of_torchscript_leave_doubt_or_none():
    stored = {
        "fc.weight": W44,
        "inv_freq": V4,
        "cls_token": weights(1, 4),
        "gain": V4,
        "g": S,
        "eps": S,
    }
    body = """a = MatMul(x, fcweight) b = Mul(a, inv_freq) c = Add(b, cls_token) d = Mul(c, gain)
    e = Mul(d, g) y = Add(e, eps)"""
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] fcweight, float[4] inv_freq, float[1,4] cls_token,
          float[4] gain, float g, float eps) => (y) {{ {body} }}""",
        **{name.replace(".", ""): value for name, value in stored.items()},
    )
    weight = model.graph.initializers.pop("fcweight")
    weight.name = "fc.weight"
    model.graph.register_initializer(weight)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert {n: told(model, n) for n in stored} == {
        "fc.weight": (True, False),
        "inv_freq": (False, True),
        "cls_token": (True, False),
        "gain": (True, True),
        "g": (True, True),
        "eps": (False, True),
    }


def test_one_of_two_numbers_of_a_mask_is_no_parameter():
    """The zero of a mask of dynamo's, in a file that lost the exporter's metadata."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, bool[batch,4] seen, float zeros, float low, float gain) => (y) {
          mask = Where(seen, zeros, low)  a = Add(x, mask)  y = Where(seen, a, gain) }""",
        zeros=np.float32(0),
        low=np.float32(-1e9),
        gain=np.float32(2),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, "zeros") == (False, True)
    assert told(model, "gain") == (True, True)


def test_the_added_zeros_of_bart_are_a_buffer():
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[1,4] final_logits_bias) => (float[batch,4] y) {
          a = MatMul(x, w)  y = Add(a, final_logits_bias) }""",
        w=W44,
        final_logits_bias=np.zeros((1, 4), np.float32),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, "final_logits_bias") == (False, True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sqrt_one_minus_alphas_cumprod", (False, True)),
        ("loss_weight", (True, True)),
        ("scale", (True, True)),
    ],
)
def test_the_schedule_of_a_diffusion_process_is_a_buffer(name, expected):
    """A table of one number for each time: of a file of TorchScript, whose loss is in the model."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, int64[batch,1] t, float[9] {name}, float[4,4] w) => (y) {{
          s = Gather({name}, t) a = Mul(x, s) y = MatMul(a, w) }}""",
        w=W44,
        **{name: weights(9)},
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == expected


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("kernel", weights(4, 1, 3, 3), (True, True)),
        ("kernel", np.tile(weights(1, 1, 3, 3), (4, 1, 1, 1)), (False, True)),
        ("weight", np.tile(weights(1, 1, 3, 3), (4, 1, 1, 1)), (True, False)),
    ],
)
def test_a_kernel_may_be_a_buffer(name, array, expected):
    """A fixed filter, such as Sobel's, in a file of TorchScript."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4,6,6] x, float[4,1,3,3] {name}, float[3,4,1,1] head) => (y) {{
          a = Conv<group = 4>(x, {name}) y = Conv(a, head) }}""",
        **{name: array, "head": weights(3, 4, 1, 1)},
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == expected


def test_a_frozen_batch_norm_is_not_trained():
    """torchvision's FrozenBatchNorm2d: four buffers, and no BatchNormalization in the file."""
    names = ("n.weight", "n.bias", "n.running_var")
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] g, float[4] s, float[4] v) => (y) {
          a = MatMul(x, w) r = Sqrt(v) k = Div(g, r) b = Mul(a, k) y = Add(b, s) }""",
        w=W44,
        g=V4,
        s=V4 + 1,
        v=V4**2,
    )
    for old, new in zip("gsv", names, strict=True):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert {name: told(model, name) for name in names} == dict.fromkeys(names, (False, True))
    assert told(model, "w")[0]


def test_a_layer_with_batch_norm_is_trained_while_it_is_rounded():
    """torch's ConvBn2d for quantization-aware training: w g / sqrt(v + e) is rounded."""
    names = ("n.weight", "n.bias", "n.running_mean", "n.running_var")
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] g, float[4] s, float[4] m, float[4] v) => (y)
        <float step = {0.1}, int8 zero = {0}> {
          t = Constant<value_float = 0.00001>() e = Add(v, t) r = Sqrt(e) k = Div(g, r)
          u = Mul(w, k) q = QuantizeLinear(u, step, zero) d = DequantizeLinear(q, step, zero)
          a = MatMul(x, d) b = Div(a, k) y = BatchNormalization(b, g, s, m, v) }""",
        w=W44,
        g=V4 + 1,
        s=V4,
        m=V4,
        v=V4**2,
    )
    for old, new in zip("gsmv", names, strict=True):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    trained = {name for name, p in find_parameters(model).items() if p.trainable}
    assert trained == {"w", "n.weight", "n.bias"}


def test_numbers_in_the_code_of_torch_are_no_parameters():
    """Also as a bias: the zero that the dynamo exporter gives to convolutions without one."""
    model = torch_model(
        """zero = Constant<value_float = 0.0>() typed = CastLike(zero, w)
        two = Constant<value_ints = [2]>() bias = Expand(typed, two)
        i = Constant<value_ints = [1, 1, 2, 2]>() image = Reshape(x, i)
        table = Constant<value_floats = [0.5, 0.25]>() c = Conv(image, w, bias)
        d = Conv(c, v, bias) axes = Constant<value_ints = [2, 3]>()
        pooled = ReduceMean<keepdims = 0>(d, axes) y = Mul(pooled, table)""",
        {"w": "PARAMETER", "v": "PARAMETER"},
        w=weights(2, 1, 1, 1),
        v=weights(2, 2, 1, 1),
    )
    assert [n for n, p in find_parameters(model).items() if p.trainable] == ["w", "v"]


def test_constants_of_a_frozen_torch_module_are_known_by_their_use():
    """`torch.jit.freeze` makes all weights Constant nodes; the tied one is one parameter."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x) => (float[N,2] y) {
        w = Constant<value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 9}>() h = MatMul(x, w)
        half = Constant<value_float = 0.5>() scaled = Mul(h, half)
        t = Constant<value = float[2,4] {1, 3, 5, 7, 2, 4, 6, 9}>() up = MatMul(scaled, t)
        down = MatMul(up, w) b = Constant<value = float[2] {0.5, 2}>() y = Add(down, b) }"""
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    tie_copies(model)
    assert {n: p.trainable for n, p in find_parameters(model).items()} == {
        "w": True,
        "half": False,
        "b": True,
    }


@pytest.mark.parametrize("name", ["onnx::MatMul_7", "decoder/onnx::MatMul_7"])
def test_names_of_torchscript_may_have_a_prefix(name):
    """As `onnx.compose.add_prefix` writes them; the tied weight is one parameter."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,2] w, float[2,4] t) => (float[N,4] y) {
          h = MatMul(x, w) y = MatMul(h, t) }""",
        w=weights(4, 2),
        t=weights(4, 2).T,
    )
    model.graph.initializers["t"].name = name
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert name in tie_copies(model).changed


def test_a_number_that_is_expanded_to_a_bias_is_none_without_the_metadata_of_torch():
    """As after `onnx.utils.extract_model` or `onnx.compose`: one number would serve all layers."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,1,2,2] x, float[2,1,1,1] w, float[2,2,1,1] v, float[2] own)
            => (float[N,2,2,2] y) {
          zero = Constant<value_float = 0.0>() typed = CastLike(zero, w)
          two = Constant<value_ints = [2]>() bias = Expand(typed, two)
          c = Conv(x, w, bias) d = Conv(c, v, bias) y = Conv(d, v, own) }""",
        w=weights(2, 1, 1, 1),
        v=weights(2, 2, 1, 1),
        own=np.zeros(2, np.float32),
    )
    assert [n for n, p in find_parameters(model).items() if p.trainable] == ["w", "v", "own"]


def test_a_recurrent_layer_of_a_scripted_module_has_constants_as_weights():
    """`torch.jit.script` packs them into Constant nodes; the layer is trained all the same."""
    model = torch_model(
        """i = Constant<value_ints = [1, -1, 4]>() steps = Reshape(x, i)
        r = Constant<value = float[1,4,1] {1, 2, 3, 4}>()
        y = LSTM<hidden_size = 1>(steps, u, r)""",
        None,
        u=weights(1, 4, 4),
    )
    assert told(model, "r") == (True, False)


def test_a_parameter_that_counts_is_taken_for_a_projection():
    """The last layer of a distribution focal loss, which has requires_grad=False in torch."""
    counts = np.arange(4, dtype=np.float32).reshape(4, 1)
    model = torch_model(
        "a = MatMul(x, w) b = Softmax(a) y = MatMul(b, dfl)",
        {"w": "PARAMETER", "dfl": "PARAMETER"},
        w=W44,
        dfl=counts,
    )
    assert told(model, "dfl") == (False, True)
    assert "0, 1, 2" in find_parameters(model)["dfl"].doubt


def rows(positions: int, width: int) -> np.ndarray:
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(positions, width).astype("f4")


@pytest.mark.parametrize(("table", "trained"), [(rows(9, 4), False), (weights(9, 4), True)])
def test_sines_of_positions_are_no_weights(table, trained):
    body = """i = Constant<value_ints = [0]>() t = Gather(p, i) m = MatMul(x, w) y = Add(m, t)"""
    assert told(torch_model(body, w=W44, p=table), "p")[0] is trained


@pytest.mark.parametrize(("last", "trained"), [("Identity(h)", False), ("Div(h, f)", True)])
def test_frequencies_that_meet_positions_are_no_weights(last, trained):
    """Rotary embeddings: integers times frequencies, then sines; the name is unknown.

    The step size of a state space model (S4D) is a factor of frequencies and of decays.
    """
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, int64[batch,1] at, float[1,4] f, float[4,4] w) => (y) {{
          p = Cast<to = 1>(at) angles = MatMul(p, f) waves = Sin(angles) h = MatMul(x, w)
          g = {last} y = Mul(g, waves)
        }}""",
        f=weights(1, 4),
        w=W44,
    )
    assert told(model, "f") == (trained, not trained)
    assert told(model, "w") == (True, False)


def test_a_layer_with_a_bias_of_zeros_before_a_sine_is_a_weight():
    """A fresh sinusoidal network (SIREN) of Keras or JAX: only factors can be positions."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] b) => (y) { h = Gemm(x, w, b) y = Sin(h) }""",
        w=W44,
        b=np.zeros(4, np.float32),
    )
    assert told(model, "w") == (True, False)


def test_images_of_bytes_still_meet_weights():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (uint8[batch,4] x, float[4,4] w) => (y) { p = Cast<to = 1>(x) y = MatMul(p, w) }""",
        w=W44,
    )
    assert told(model, "w") == (True, False)


def test_a_weight_normalization_trains_its_two_parameters():
    model = torch_model(
        """two = Constant<value_ints = [1]>() norm = ReduceL2(v, two) unit = Div(v, norm)
        w = Mul(g, unit) y = Gemm<transB = 1>(x, w)""",
        {"g": "PARAMETER", "v": "PARAMETER"},
        g=weights(4, 1),
        v=W44,
    )
    assert {n: p.role for n, p in find_parameters(model).items() if p.size > 1} == {
        "g": "weight",
        "v": "weight",
    }


def test_what_an_exporter_folded_is_a_weight_and_told_if_not_the_same():
    """A transposed matrix is the same weight; a kernel with a folded norm is not."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,1,2,2] x, float[2,1,1,1] k, float[2] b, float[4,3] m) => (y) {
          c = Conv(x, k, b) i = Constant<value_ints = [-1, 4]>() f = Reshape(c, i)
          y = MatMul(f, m) }""",
        k=weights(2, 1, 1, 1),
        b=weights(2),
        m=weights(4, 3),
    )
    renamed = {"k": "onnx::Conv_12", "b": "onnx::Conv_13", "m": "onnx::MatMul_14"}
    for old, new in renamed.items():
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert {n: told(model, n) for n in renamed.values()} == {
        "onnx::Conv_12": (True, True),
        "onnx::Conv_13": (True, True),
        "onnx::MatMul_14": (True, False),
    }


@pytest.mark.parametrize(
    ("body", "doubted"),
    [
        ("y = MatMul(x, m)", False),
        ("y = Gemm<transB=1>(x, m)", True),  # weight normalization; a plain weight keeps its name
        ("s = MatMul(m, w) y = MatMul(x, s)", True),  # `scale * B` of LoRA
        ("n = Abs(m) y = MatMul(x, n)", True),
        ("i = Constant<value_ints = [0, 1, 2]>() g = Gather(m, i) y = MatMul(x, g)", True),
    ],
)
def test_what_torchscript_folds_into_more_than_a_linear_layer_is_doubtful(body, doubted):
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] m, float[4,4] w) => (y) {{ {body} }}""",
        m=W44,
        w=W44,
    )
    value = model.graph.initializers.pop("m")
    value.name = "onnx::MatMul_14"
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, "onnx::MatMul_14") == (True, doubted)


@pytest.mark.parametrize(
    ("name", "doubted"),
    [("/q/Transpose_output_0", False), ("/Transpose_2_output_0", False), ("/Cos_output_0", True)],
)
def test_a_matrix_that_onnxsim_computed_is_doubtful_unless_it_was_transposed(name, doubted):
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] m) => (y) { y = MatMul(x, m) }""",
        m=W44,
    )
    value = model.graph.initializers.pop("m")
    value.name = name
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == (True, doubted)


@pytest.mark.parametrize(
    ("last", "name", "trained"),
    [
        ("Add(m, g)", "/Stack_output_0", False),
        ("Conv(m, g)", "/Stack_output_0", True),
        ("Add(m, g)", "A_imag", True),
    ],
)
def test_a_grid_that_is_added_is_no_weight(last, name, trained):
    """The cells of a feature map, which onnxsim computes; weights of -1, 0 and 1 are even, too.

    So are parameters of a fresh module, as the frequencies of an S4D.
    """
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,3,2,3] x, float[3,3,1,1] w, float[1,3,2,3] g) => (y) {{
          m = Conv(x, w) y = {last} }}""",
        w=weights(3, 3, 1, 1),
        g=np.broadcast_to(np.arange(-1, 2, dtype=np.float32), (1, 3, 2, 3)),
    )
    value = model.graph.initializers.pop("g")
    value.name = name
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == (trained, True)


@pytest.mark.parametrize(
    ("name", "listed", "expected"),
    [
        ("val_3", ["v"], (True, False)),
        ("t", ["v"], (True, False)),
        ("t", ["v", "div"], (True, True)),  # a normalized weight, transposed
        ("tril", ["v"], (True, True)),
        ("index", ["v", "idx"], (True, True)),  # a circulant matrix
        ("slice_7", ["idx", "val_2"], (False, False)),
        ("mul_2", ["w", "val_2"], (False, True)),  # `w` is in the file, too
        ("mul_2", ["val_1", "val_2"], (False, False)),
    ],
)
def test_what_the_dynamo_exporter_lists_as_sources_decides(name, listed, expected):
    kinds = {"w": "PARAMETER", "v": "PARAMETER", "idx": "BUFFER"}
    folded = {name: (weights(4, 4), listed)}
    model = torch_model(f"a = MatMul(x, w) y = MatMul(a, {name})", kinds, folded, w=W44)
    assert told(model, name) == expected
    assert missing_parameters(model) == ("v",)


@pytest.mark.parametrize(
    ("name", "doubted"), [("alpha", True), ("onnx::Clip_7", True), ("/model/Cast_output_0", False)]
)
def test_a_learned_bound_of_a_clip_is_told(name, doubted):
    """``clamp(x, max=alpha)`` of learned quantization, as TorchScript writes it."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float s) => (y) {
          a = MatMul(x, w) y = Clip(a, , s) }""",
        w=W44,
        s=np.float32(0.8),
    )
    value = model.graph.initializers.pop("s")
    value.name = name
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == (False, doubted)


@pytest.mark.parametrize("name", ["onnx::Split_20", "/model/Expand_output_0"])
def test_equal_numbers_that_torchscript_folded_are_told(name):
    """The softmax of zeros: weights of layers as they begin. Numbers of the code are expanded."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] s) => (y) {
          a = MatMul(x, w) y = Mul(a, s) }""",
        w=W44,
        s=np.full(4, 0.25),
    )
    value = model.graph.initializers.pop("s")
    value.name = name
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, name) == (False, name.startswith("onnx::"))


@pytest.mark.parametrize("name", ["onnx::Exp_20", "/model/Squeeze_output_0"])
def test_a_single_number_that_torchscript_folded_is_told(name):
    """``exp(-log_var)`` becomes Exp of a stored ``-log_var``: the parameter is lost.

    Simplifiers fold numbers of the code, too, under names like the second one.
    """
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float s) => (y) {
          a = MatMul(x, w) e = Exp(s) y = Mul(a, e) }""",
        w=W44,
        s=np.float32(-0.7),
    )
    value = model.graph.initializers.pop("s")
    value.name = name
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    assert told(model, "e") == (False, name.startswith("onnx::"))


def test_weights_of_operators_that_are_not_of_the_standard_are_not_forgotten():
    """So that the check rejects a fused file instead of training the rest of it."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[batch,4] x, float[4,4] w, float[4] b) => (y) {
          y = com.microsoft.FusedGemm(x, w, b) }""",
        w=W44,
        b=V4,
    )
    assert all(p.trainable for p in find_parameters(model).values())


def test_where_nothing_else_is_stored_a_literal_is_the_weight():
    model = torch_model(
        "w = Constant<value = float[4,2] {1, 2, 3, 4, 5, 6, 7, 9}>() y = MatMul(x, w)", None, u=V4
    )
    assert told(model, "w")[0]


@pytest.mark.parametrize(("name", "doubted"), [("head_bias", False), ("final_bias", True)])
def test_a_bias_without_its_weight_may_be_a_buffer(name, doubted):
    model = torch_model(
        f"a = MatMul(x, head_weight) y = Add(a, {name})",
        **{"head_weight": weights(4, 3), name: weights(3)},
    )
    assert told(model, name) == (True, doubted)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"p": "PARAMETER", "w": "PARAMETER"}, (True, False)),
        ({"p": "BUFFER", "w": "PARAMETER"}, (False, False)),
        (None, (True, True)),
    ],
)
def test_the_learned_exponent_of_a_generalized_mean(kinds, expected):
    """Radenovic et al., 2018: `p` of `mean(x^p)^(1/p)`; a literal exponent is a setting."""
    model = torch_model(
        "a = MatMul(x, w) b = Pow(a, p) two = Constant<value_float=2.0>() y = Pow(b, two)",
        kinds,
        w=W44,
        p=np.float32([3.0]),
    )
    assert told(model, "p") == expected
    assert told(model, "two") == (False, False)


@pytest.mark.parametrize(("name", "doubted"), [("mul_10", True), ("val_12", False)])
def test_a_number_that_an_optimizing_exporter_computed_is_doubtful(name, doubted):
    """`1 / p` of a generalized mean whose `p` is in the file: `mul_10` is named after its call."""
    model = torch_model(
        f"a = MatMul(x, w) b = Pow(a, {name}) y = Mul(b, {name})",
        {"w": "PARAMETER"},
        **{"w": W44, name: np.float32(0.3)},
    )
    assert told(model, name) == (False, doubted)


LOOP = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,4] x, float[4,4] w, float[N,4] start, int64 n, bool on, float[4,2] head) =>
    (float[N,2] y) {
  kept, h = Loop (n, on, w, start) <body = step (int64 i, bool c, float[4,4] v, float[N,4] s) =>
      (bool c_out, float[4,4] v_out, float[N,4] s_out) {
    c_out = Identity(c)  v_out = Identity(v)  p = MatMul(s, v)  s_out = Tanh(p) }>
  y = MatMul(h, head)
}"""


def test_a_weight_that_a_loop_passes_from_step_to_step_is_one():
    """As tf2onnx and jax2onnx write recurrent layers; what is before the loop may be a state."""
    model = text_model(LOOP, w=W44, head=weights(4, 2))
    assert {n: p.role for n, p in find_parameters(model).items()} == {
        "w": "weight",
        "head": "weight",
    }
    changing = LOOP.replace("v_out = Identity(v)", "v_out = MatMul(v, v)")
    found = find_parameters(text_model(changing, w=W44, head=weights(4, 2)))
    assert found["w"].role == "constant"


@pytest.mark.parametrize("without", ["inputs", "outputs"])
def test_the_body_of_a_damaged_loop_may_lack_values(without):
    """Such a file passes the checker of onnx."""
    model = text_model(LOOP, w=W44, head=weights(4, 2))
    body = next(iter(model.graph)).attributes["body"].as_graph()
    del getattr(body, without)[-2:]
    assert not find_parameters(model)["w"].trainable


def test_a_weight_of_a_scan_is_one_and_so_are_the_parts_of_a_stored_sequence():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float[7,N,4] steps) => (float[7,N,4] y) {
          kept, y = Scan<num_scan_inputs = 1, body = step (float[4,4] v, float[N,4] s) =>
              (float[4,4] v_out, float[N,4] s_out) {
            v_out = Identity(v)  s_out = MatMul(s, v) }> (w, steps)
        }""",
        w=W44,
        steps=weights(7, 2, 4),
    )
    assert {n: p.role for n, p in find_parameters(model).items()} == {
        "w": "weight",
        "steps": "weight",
    }


@pytest.mark.parametrize(
    ("body", "fill", "trained"),
    [
        ("a = MatMul(x, w) y = Mul(a, filled)", 0.0, False),
        ("a = Gemm(filled, w, b) c = MatMul(x, w) y = Add(a, c)", 0.0, False),
        ("y = MatMul(x, filled)", 0.0, True),
        ("a = MatMul(x, w) y = Mul(a, filled)", 0.02, True),  # ONNX's light models have such scales
        ("a = MatMul(x, w) y = Add(a, filled)", 0.0, True),
    ],
)
def test_an_initial_state_is_not_trained(body, fill, trained):
    """jax2onnx writes the zeros of an unrolled LSTM as ConstantOfShape."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[4,4] x, float[4,4] w, float[4] b, int64[2] shape) => (float[4,4] y) {{
          filled = ConstantOfShape<value = float[1] {{{fill}}}>(shape) {body} }}""",
        w=W44,
        b=V4,
        shape=np.array([4, 4]),
    )
    normalize(model, opsets=range(18, 22), ir_version=10)
    store_weights(model)
    found = find_parameters(model)
    assert found["filled"].trainable is trained


def test_a_single_variable_of_tensorflow_is_trained_and_doubtful():
    """`use_scale=True` of Keras's Attention; tf2onnx names variables, but not numbers, so."""
    model = text_model(
        """<ir_version: 10, producer_name: "tf2onnx", opset_import: ["" : 15]>
        net (float[N,4] x, float scale, float half, float[4,4] w) => (float[N,4] y) {
          a = MatMul(x, w) h = Mul(a, scale) y = Mul(h, half) }""",
        w=W44,
        scale=S,
        half=S,
    )
    for old, new in (("scale", "attention/Mul/ReadVariableOp:0"), ("half", "attention/Mul/y:0")):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    assert told(model, "attention/Mul/ReadVariableOp:0") == (True, True)
    assert told(model, "attention/Mul/y:0") == (False, False)


def test_single_numbers_that_a_layer_of_paddle_created():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[1] scale, float half, float[4,4] w) => (float[N,4] y) {
          a = MatMul(x, w) h = Mul(a, scale) y = Mul(h, half) }""",
        w=W44,
        scale=S.reshape(1),
        half=S,
    )
    for old, new in (("scale", "gate_0.w_1"), ("half", "helper.constant.0")):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    assert told(model, "gate_0.w_1") == (True, True)
    assert told(model, "helper.constant.0") == (False, False)


@pytest.mark.parametrize(
    ("producer", "shape", "expected"),
    [
        ("", [1], (True, True)),
        ("skl2onnx", [1, 1], (True, False)),
        ("", [], (False, True)),
        ("skl2onnx", [], (False, False)),  # a number in a formula
    ],
)
def test_the_bias_of_a_layer_with_one_output(producer, shape, expected):
    """A regression, or a classification of two classes."""
    declared = f"float{shape}" if shape else "float"
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float[4,1] v, {declared} b, float[1] half) =>
        (float[N,1] y) {{
          h = MatMul(x, w) a = Relu(h) p = MatMul(a, v) q = Add(p, b) y = Mul(q, half) }}""",
        w=W44,
        v=W44[:, :1],
        b=S.reshape(shape),
        half=S.reshape(1),
    )
    infer_shapes(model)
    assert told(model, "b") == expected
    assert told(model, "half") == (False, False)


@pytest.mark.parametrize(
    ("product", "trained"),
    [("MatMul(x, v)", True), ('Einsum<equation="ni,i->n">(x, v)', True), ("Mul(x, v)", False)],
)
def test_the_bias_after_a_vector(product, trained):
    """`x @ v + b` of JAX, where `v` is a vector."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4] v, float[1] b) => (y) {{ p = {product} y = Add(p, b) }}""",
        v=V4,
        b=S.reshape(1),
    )
    infer_shapes(model)
    assert told(model, "b") == (trained, trained)


def test_the_scales_of_a_quantized_table_are_settings():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        net (int64[N] ids, uint8[6,8] table, float[6,1] scales, float[16,4] w) => (float[N,4] y) {
          e = com.microsoft.GatherBlockQuantized<block_size = 16>(table, ids, scales)
          y = MatMul(e, w) }""",
        table=np.full((6, 8), 0x53, np.uint8),
        scales=weights(6, 1),
        w=weights(16, 4),
    )
    assert told(model, "scales") == (False, False)
    assert told(model, "w") == (True, False)


@pytest.mark.parametrize(("rows", "trained"), [(1, True), (2, False)])
def test_the_bias_after_a_row(rows, trained):
    """`W x + b`, with the weight before the column of data."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[4] x, float[{rows},4] w, float[1] b) => (y) {{
          p = MatMul(w, x) y = Add(p, b) }}""",
        w=W44[:rows],
        b=S.reshape(1),
    )
    infer_shapes(model)
    assert told(model, "b") == (trained, trained)


def test_the_parts_that_a_scan_over_layers_reads_are_weights():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[2,4,4] w, float[2,4] b, float[2,1] times) => (float[N,4] y) {
          y = Scan<num_scan_inputs = 3, body = layer
            (float[N,4] h, float[4,4] wi, float[4] bi, float[1] t) => (float[N,4] next) {
            m = MatMul(h, wi) s = Add(m, bi) a = Tanh(s) next = Mul(a, t) }>(x, w, b, times) }""",
        w=np.stack([W44, W44.T]),
        b=np.stack([V4, 2 * V4]),
        times=np.float32([[0.5], [0.7]]),
    )
    assert told(model, "w") == told(model, "b") == (True, False)
    assert told(model, "times") == (False, True)


@pytest.mark.parametrize(("value", "doubtful"), [(W44[:2], True), (np.zeros((2, 4)), False)])
def test_the_initial_state_of_a_recurrence_is_doubtful_unless_zero(value, doubtful):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[3,2,4] x, float[4,4] w, float[2,4] h0) => (float[2,4] y) {
          y = Scan<num_scan_inputs = 1, body = step
            (float[2,4] h, float[2,4] xi) => (float[2,4] next) {
            m = MatMul(h, w) s = Add(m, xi) next = Tanh(s) }>(h0, x) }""",
        w=W44,
        h0=value.astype(np.float32),
    )
    assert told(model, "h0") == (False, doubtful)


def test_a_network_may_be_deep():
    depth = 1500  # more than Python's recursion limit
    body = " ".join(f"h{i + 1} = Relu(h{i})" for i in range(depth))
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] h0, float[4] w) => (float[N,4] y) {{ {body} y = Mul(h{depth}, w) }}""",
        w=V4,
    )
    assert find_parameters(model)["w"].trainable


def test_a_pattern_that_matches_no_trained_parameter_is_refused():
    trained = [p for p in find_parameters(load_model(model_path("mlp"))).values() if p.trainable]
    weights = named_parameters(trained, ["*.weight"], "boost 'x', patterns")
    assert weights
    assert all(name.endswith(".weight") for name in weights)
    with pytest.raises(ConfigError, match=r"'fc9\.\*' matches no trained parameter") as caught:
        named_parameters(trained, ["*.weight", "fc9.*"], "boost 'x', patterns")
    assert caught.value.where == "boost 'x', patterns"


@pytest.mark.parametrize(
    ("blocks", "doubted"), [(("a",), {"v"}), (("a", "y"), set()), (("y",), {"w"}), ((), set())]
)
def test_a_parameter_that_torch_reads_in_a_block_of_its_own_is_told(blocks, doubted):
    """`torch.export` generates a module for `torch.no_grad()`; what only that reads is doubtful."""
    trace = 'File "<eval_with_key>.36", line 5, in forward\n    linear = torch.ops.aten.linear'
    model = torch_model("a = MatMul(x, v) y = MatMul(a, w)", None, v=W44, w=W44)
    for value in model.graph.initializers.values():
        value.meta.clear()
        kind = "pkg.torch.export.graph_signature.InputSpec.kind"
        value.metadata_props[kind] = "PARAMETER"
    for node in model.graph:
        made = node.outputs[0].name
        plain = 'File "net.py", line 3, in forward'
        node.metadata_props["pkg.torch.onnx.stack_trace"] = trace if made in blocks else plain
    normalize(model, opsets=range(18, 22), ir_version=10)
    found = find_parameters(model)
    assert all(parameter.trainable for parameter in found.values())
    assert {name for name, parameter in found.items() if parameter.doubt} == doubted


@pytest.mark.parametrize(("filled", "trained"), [(0.0, True), (0.5, False)])
def test_an_added_vector_of_zeros_without_a_name_is_a_fresh_bias(filled, trained):
    """Keras with torch's TorchScript exporter: `y = Cast(MatMul(x, w)) + onnx::Add_25`."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] b) => (y) {
          h = MatMul(x, w) c = Cast<to = 1>(h) y = Add(c, b) }""",
        w=W44,
        b=np.full(4, filled),
    )
    value = model.graph.initializers.pop("b")
    value.name = "onnx::Add_25"
    model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, "onnx::Add_25") == (trained, True)


@pytest.mark.parametrize("norm", ["weight_orig", "weight_g"])
def test_the_vectors_of_a_spectral_norm_are_no_weights(norm):
    """A weight normalization has a parameter `weight_v`, beside `weight_g`."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4,4] v) => (y) {
          n = Mul(w, v) y = MatMul(x, n) }""",
        w=W44,
        v=W44 + 1,
    )
    for old, new in (("w", f"0.{norm}"), ("v", "0.weight_v")):
        value = model.graph.initializers.pop(old)
        value.name = new
        model.graph.register_initializer(value)
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert told(model, f"0.{norm}")[0]
    assert told(model, "0.weight_v")[0] == (norm == "weight_g")


@pytest.mark.parametrize(
    ("body", "trained"),
    [("y = Add(h, b)", True), ("y = Mul(h, b)", False)],
)
def test_an_added_vector_of_0_and_1_is_a_fresh_bias(body, trained):
    """Of an LSTM of Keras, which begins with 1 for its forget gate; a mask is multiplied."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] b) => (y) {{ h = MatMul(x, w) {body} }}""",
        w=W44,
        b=np.float32([0, 1, 0, 0]),
    )
    assert find_parameters(model)["b"].trainable is trained


def test_one_number_spread_over_an_activation_is_no_parameter():
    """The zeros of `jnp.where(x > 0, x, 0)`, and of an initial state that tf2onnx expands."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,2,4] x, float[4,4] w, float[2,4] z, float[4] token, float s, int64[2] n)
        => (y, state) {
          h = MatMul(x, w)  zero = Sub(x, x)  c = Greater(h, zero)
          r = Where(c, h, z)  y = Where(c, r, token)
          e = Expand(s, n)  state = MatMul(e, w) }""",
        w=W44, z=np.zeros((2, 4)), token=np.zeros(4), s=np.float32(0), n=np.int64([1, 4]),
    )  # fmt: skip
    trained = {name for name, found in find_parameters(model).items() if found.trainable}
    assert trained == {"w", "token"}


@pytest.mark.parametrize(
    ("producer", "name", "value", "doubt"),
    [
        ("tf2onnx", "norm/gamma:0", np.ones(4), "stores equal tensors once"),
        ("tf2onnx", "norm/gamma:0", np.float32([1, 2, 3, 4]), ""),
        ("tf2onnx", "net/bn/batchnorm/mul:0", np.float32([1, 2, 3, 4]), "BatchNormalization"),
        ("pytorch", "ConvBnFusion_W_fc.weight", np.float32([1, 2, 3, 4]), "BatchNormalization"),
        ("", "/b/BatchNormalization_output_0_weight", np.arange(2, 6), "BatchNormalization"),
        ("other", "norm/gamma:0", np.ones(4), ""),
    ],
)
def test_what_others_merged_or_folded_is_doubtful(producer, name, value, doubt):
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[batch,4] x, float[4,4] w, float[4] g) => (y) {{
          a = MatMul(x, w) b = Mul(a, g) c = Relu(b) y = Mul(c, g) }}""",
        w=W44,
        g=value.astype(np.float32),
    )
    tensor = model.graph.initializers.pop("g")
    tensor.name = name
    model.graph.register_initializer(tensor)
    found = find_parameters(model)[name]
    assert found.trainable
    assert doubt in found.doubt
    assert bool(found.doubt) is bool(doubt)


@pytest.mark.parametrize(
    ("producer", "name", "number", "role"),
    [
        ("MindSpore", "9-Default/LSTM-op0_onnx_hidden_bias", 0, "constant"),
        ("MindSpore", "9-Default/LSTM-op0_onnx_hidden_bias", 1, "bias"),
        ("MindSpore", "lstm.bias_hh_l0", 0, "bias"),
        ("pytorch", "9-Default/LSTM-op0_onnx_hidden_bias", 0, "bias"),
    ],
)
def test_the_second_bias_that_mindspores_exporter_adds_to_an_lstm_is_none(
    producer, name, number, role
):
    """Trained with the first one, it would make the steps of their sum twice as long."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[5,N,3] x, float[1,8,3] w, float[1,8,2] r, float[1,8] b, float[1,8] "{name}")
            => (float[5,1,N,2] y) {{
          two = Concat<axis = 1>(b, "{name}") y = LSTM<hidden_size = 2>(x, w, r, two) }}""",
        w=np.ones([1, 8, 3], np.float32),
        r=np.ones([1, 8, 2], np.float32),
        b=np.zeros([1, 8], np.float32),
        **{name: np.full([1, 8], number, np.float32)},
    )
    assert find_parameters(model)[name].role == role
    assert find_parameters(model)["b"].trainable
