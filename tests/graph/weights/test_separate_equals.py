from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.graph.evaluate import add_initializer
from ortboost.graph.weights.origins import CALL_KEY, SIGNATURE_KEY
from ortboost.graph.weights.parameters import find_parameters
from ortboost.graph.weights.separate_equals import separate_equals
from tests.support import run, text_model, weights

NORMS = """net (float[N,4] x, float[4,4] w, float[4] one) => (float[N,4] y) {
  norm2_weight = Identity(one) a = Mul(x, one) h = MatMul(a, w) y = Mul(h, norm2_weight) }"""


def torchscript(text: str, producer: str = "pytorch", **stored: np.ndarray) -> ir.Model:
    return text_model(
        f'<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]> {text}', **stored
    )


def norms(producer: str = "pytorch", text: str = NORMS) -> ir.Model:
    return torchscript(text, producer, w=weights(4, 4), one=np.ones(4, np.float32))


def test_an_equal_parameter_gets_its_own_tensor():
    model = norms()
    x = weights(3, 4)
    before = run(model.clone(), {"x": x})["y"]
    report = separate_equals(model)
    assert report.changed == {"norm2_weight": "equal to 'one' when exported"}
    assert "first 'norm2_weight'" in report.notes[0]
    assert np.array_equal(run(model, {"x": x})["y"], before)
    assert [n for n, p in find_parameters(model).items() if p.trainable] == [
        "one", "w", "norm2_weight",
    ]  # fmt: skip
    assert not separate_equals(model).modified


@pytest.mark.parametrize(
    "model",
    [
        norms("tf2onnx"),
        norms(text=NORMS.replace("norm2_weight", "val_2")),  # an Identity of the code
        norms(text=NORMS.replace("Identity(one)", "Identity(x)")),
        norms(text="""net (float[4,4] w, float[4] one) => (float[4] norm2_weight) {
            norm2_weight = Identity(one) }"""),
    ],
    ids=["producer", "name", "data", "output"],
)  # fmt: skip
def test_other_identities_stay(model):
    assert not separate_equals(model).changed


def test_the_dynamo_exporter_writes_identities_of_its_own():
    model = norms()
    key = "pkg.torch.export.ExportedProgram.graph_signature"
    model.graph.metadata_props[key] = "\n# inputs\np_one: PARAMETER target='one'\n"
    assert not separate_equals(model).changed


def of_dynamo(*calls: str) -> ir.Model:
    """Two normalizations and a linear layer that read tensors of others, with calls of torch."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x, float[4] "n1.weight", float[4] "n1.bias", float[4,4] val_0) =>
          (float[N,4] y) {
          a = LayerNormalization(x, "n1.weight", "n1.bias") h = MatMul(a, val_0)
          b = Add(h, "n1.bias") y = LayerNormalization(b, "n1.weight", "n1.bias") }""",
        **{"n1.weight": np.ones(4, np.float32), "n1.bias": np.zeros(4, np.float32)},
        val_0=weights(4, 4),
    )
    names = [f"{layer}.{leaf}" for layer in ("n1", "n2", "fc") for leaf in ("weight", "bias")]
    listed = "".join(f"p_{n.replace('.', '_')}: PARAMETER target='{n}'\n" for n in names)
    model.graph.metadata_props[SIGNATURE_KEY] = f"\n# inputs\n{listed}x: USER_INPUT\n# outputs\n"
    for node, call in zip(model.graph, calls, strict=True):
        node.metadata_props[CALL_KEY] = (
            f"%c : [num_users=1] = call_function[target=t](args = {call}"
        )
    return model


FIRST = "(%x, [4], %p_n1_weight, %p_n1_bias)"
LINEAR = "(%layer_norm, %p_fc_weight, %p_fc_bias)"


def reads(model: ir.Model) -> list[list[str | None]]:
    return [[value.name for value in node.inputs if value] for node in model.graph]


def test_calls_in_torch_tell_what_the_dynamo_exporter_merged():
    model = of_dynamo(FIRST, LINEAR, LINEAR, "(%linear, [4], %p_n2_weight, %p_n2_bias)")
    x = weights(3, 4)
    before = run(model.clone(), {"x": x})["y"]
    report = separate_equals(model)
    assert report.changed == {
        "fc.bias": "equal to 'n1.bias' when exported",
        "n2.bias": "equal to 'n1.bias' when exported",
        "n2.weight": "equal to 'n1.weight' when exported",
    }
    assert reads(model) == [
        ["x", "n1.weight", "n1.bias"],
        ["a", "val_0"],  # the transposed fc.weight
        ["h", "fc.bias"],
        ["b", "n2.weight", "n2.bias"],
    ]
    assert np.array_equal(run(model, {"x": x})["y"], before)
    assert not separate_equals(model).modified


def test_parameters_that_torch_shares_stay_one():
    """``torch.export`` calls both by one name, not always the one of the file."""
    model = of_dynamo(
        "(%x, [4], %p_n2_weight, %p_n1_bias)", LINEAR, LINEAR,
        "(%linear, [4], %p_n2_weight, %p_n1_bias)",
    )  # fmt: skip
    assert set(separate_equals(model).changed) == {"fc.bias"}
    assert reads(model)[0] == ["x", "n1.weight", "n1.bias"]
    assert reads(model)[3] == ["b", "n1.weight", "n1.bias"]


@pytest.mark.parametrize(
    "call",
    [
        "(%linear, [4])",
        "(%linear, %p_n2_weight, %p_fc_weight)",  # either may be meant
        "(%linear, %p_n1_weight, %p_n1_bias)",  # read twice by torch, too
    ],
)
def test_where_the_call_is_not_sure_nothing_is_separated(call):
    assert not separate_equals(of_dynamo(FIRST, FIRST, FIRST, call)).modified


LAYERS = {
    "Gemm<transB = 1>(x, w)": ("float[N,3] x", (2, 3), 2),
    "Gemm(x, w)": ("float[N,3] x", (3, 2), 2),
    "Conv(x, w)": ("float[N,3,5] x", (4, 3, 2), 4),
    "ConvTranspose<group = 3>(x, w)": ("float[N,3,5] x", (3, 2, 2), 6),
}


def layer(text: str, call: str) -> ir.Model:
    given, shape, _ = LAYERS[text]
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net ({given}, float[{",".join(map(str, shape))}] w) => (float y) {{ y = {text} }}""",
        w=weights(*shape),
    )
    listed = "p_w: PARAMETER target='w'\np_b: PARAMETER target='b'\np_c: PARAMETER target='c'\n"
    model.graph.metadata_props[SIGNATURE_KEY] = f"\n# inputs\n{listed}x: USER_INPUT\n# outputs\n"
    model.graph[0].metadata_props[CALL_KEY] = f"%y : [] = call_function[target=t](args = {call}"
    return model


@pytest.mark.parametrize("text", LAYERS)
def test_a_bias_of_0_that_the_exporter_left_out_is_trained(text):
    model = layer(text, "(%x, %p_w, %p_b)")
    report = separate_equals(model)
    assert report.changed == {"b": "0 when exported, and left out"}
    assert report.notes == [
        "1 bias of 0 that the exporter left out: added again and trained, as in torch"
    ]
    assert reads(model) == [["x", "w", "b"]]
    bias = model.graph.initializers["b"].const_value.numpy()
    np.testing.assert_array_equal(bias, np.zeros(LAYERS[text][2], np.float32))
    assert find_parameters(model)["b"].trainable
    assert not separate_equals(model).modified


@pytest.mark.parametrize(
    "call",
    [
        "(%x, %p_w)",  # a layer without a bias
        "(%x, %p_c, %p_b)",  # of another weight
        "(%conv, %p_b)",  # of a normalization that is folded into it
        "(%x, %p_w, %p_b, %p_c)",  # either may be the bias
    ],
)
def test_no_bias_is_added_where_the_call_is_not_sure(call):
    assert not separate_equals(layer("Conv(x, w)", call)).modified


def test_a_folded_weight_or_bias_is_not_a_bias_left_out():
    model = layer("Conv(x, w)", "(%x, %p_b)")  # the weight is computed from b
    model.graph.initializers["w"].name = "val_0"
    assert not separate_equals(model).modified
    model = layer("Conv(x, w)", "(%x, %p_w, %p_b)")  # the bias is computed from b
    model.graph[0].resize_inputs(3)
    bias = add_initializer(model.graph, "val_1", np.ones(4, np.float32))
    model.graph[0].replace_input_with(2, bias)
    assert not separate_equals(model).modified


@pytest.mark.parametrize("call", ["(%x, %p_w)", "(%x, %p_w, %p_b)"])
def test_parameters_that_are_inputs_are_not_absent(call):
    model = layer("Conv(x, w)", call)
    weight = model.graph.initializers.pop("w")
    model.graph.inputs.extend([weight, ir.val("b", ir.DataType.FLOAT, [4])])
    assert not separate_equals(model).modified


def test_a_buffer_that_was_merged_is_not_trained():
    model = of_dynamo(FIRST, LINEAR, "(%mm, %b_shift)", "(%linear, [4], %p_n2_weight, %p_n2_bias)")
    listed = model.graph.metadata_props[SIGNATURE_KEY]
    key = "b_shift: BUFFER target='shift'\n# outputs"
    model.graph.metadata_props[SIGNATURE_KEY] = listed.replace("# outputs", key)
    separate_equals(model)
    assert reads(model)[2] == ["h", "shift"]
    found = find_parameters(model)
    assert not found["shift"].trainable
    assert found["n2.bias"].trainable
