from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.parameters import find_parameters
from ortboost.graph.query import all_tensors, known_shape, match_names, static_shape
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
    if name in ("resnet_bottleneck",):  # nothing is stored once for two there
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
        ("y = Relu(x)", V4, "constant"),
    ],
)
def test_roles_follow_from_use(body, value, role):
    shape = ",".join(map(str, np.shape(value)))
    assert one(body, f"float[{shape}] p" if shape else "float p", p=value) == {"p": role}


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


def test_all_tensors_looks_into_subgraphs():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (bool c, float[N] x, float[1] w) => (float[N] y) {
          y = If(c) <
            then_branch = yes () => (float[N] t) { t = Mul(x, w) },
            else_branch = no () => (float[N] e) <float[1] inner = {2.0}> { e = Add(x, inner) }
          >
        }""",
        w=np.float32([2]),
    )
    assert {value.name for value, _ in all_tensors(model)} == {"w", "inner"}


@pytest.mark.parametrize(
    ("patterns", "matched", "idle"),
    [
        (["fc1.*"], {"fc1.weight", "fc1.bias"}, []),
        (["*.bias", "no*"], {"fc1.bias"}, ["no*"]),
        (["fc2.weight"], {"fc2.weight"}, []),
        (["fc?.weight", "[x]"], {"fc1.weight", "fc2.weight"}, ["[x]"]),
        ([], set(), []),
    ],
)
def test_match_names(patterns, matched, idle):
    assert match_names(["fc1.weight", "fc1.bias", "fc2.weight"], patterns) == (matched, idle)


def test_names_match_in_their_own_case():
    assert match_names(["Fc1.weight"], ["fc1.*"]) == (set(), ["fc1.*"])


def test_shapes():
    value = ir.Value(name="v", shape=ir.Shape(["batch", 3, None]))
    assert known_shape(value) == ("batch", 3, None)
    assert static_shape(value) is None
    assert known_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="u")) is None
    assert static_shape(ir.Value(name="w", shape=ir.Shape([2, 3]))) == (2, 3)


PREPROCESSING = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3,8,8] x, float[1,3,1,1] mean, float[1,3,1,1] deviation, float[2,3,1,1] w,
     float[1,2,1,1] shift, float[1,2,1,1] divisor) => (float[N,2,8,8] y) {
  a = Sub(x, mean)  b = Div(a, deviation)  c = Conv(b, w)  d = Sub(c, shift)  y = Div(d, divisor)
}"""


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
    """As both torch exporters write them; a table that is cut and multiplied stays a constant."""
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
        "table": "constant",
    }
    assert found["w"].reason == "in parts, input 1 of GRU 'gru'"
